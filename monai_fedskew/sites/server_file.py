"""The server's half of fedskew.json: where the RUN folders of all studies are kept.

A hospital's half is in ``site_file``; here too relative paths are relative to the file::

    {"runs": "/srv/fedskew/runs"}
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fedskew.core.json_object import read_object
from monai_fedskew.errors import ConfigError

__all__ = ["parse_runs_folder", "read_runs_folder"]

_HINT = "`fedskew nvflare site-setup KIT --runs DIR --apply` writes it"


def read_runs_folder(path: Path) -> Path:
    """Read where the server keeps its RUN folders; the folder may not exist yet.

    Args:
        path: the server's own file, whose owner alone decides.

    Raises:
        ConfigError: the file lacks the key ``runs``, or it names no folder.
        DataError: the file is not there or cannot be read.
    """
    return parse_runs_folder(path, read_object(path, _HINT))


def parse_runs_folder(path: Path, content: Mapping[str, Any]) -> Path:
    """Make of the file's content what ``read_runs_folder`` returns, with the same errors."""
    runs = content.get("runs")
    if not isinstance(runs, str) or not runs or "\0" in runs:
        raise ConfigError(f"{path}: runs={runs!r} must name the folder where runs are kept; {_HINT}")
    folder = Path(os.path.normpath(path.absolute().parent / runs))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{path}: runs {folder} is a file; name a folder, {_HINT}")
    return folder
