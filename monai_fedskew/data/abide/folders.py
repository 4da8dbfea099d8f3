"""Output folders that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monai_fedskew.errors import ConfigError, DataError

__all__ = ["check_folders", "whole_or_nothing"]


def check_folders(data: Path, out: Path, *, force: bool, mark: str) -> None:
    """Refuse an input folder that is absent, and an output folder that must not be replaced.

    Args:
        data: input folder.
        out: output folder.
        force: whether `out` may be replaced.
        mark: file that only an earlier output has.

    Raises:
        ConfigError: `out` exists without `force`, is no earlier output, or holds the data.
        DataError: `data` does not exist.
    """
    if not data.is_dir():
        raise DataError(f"data folder {data} does not exist")
    if not out.exists():
        return
    if not force:
        raise ConfigError(f"output folder {out} exists; choose another, or replace it with --force")
    if not out.is_dir() or (any(out.iterdir()) and not (out / mark).is_file()):
        raise ConfigError(f"output folder {out} is no earlier output (no {mark} in it): it is not replaced")
    if out.resolve() in (data.resolve(), *data.resolve().parents):
        raise ConfigError(f"output folder {out} would replace the data in {data}; choose another")


@contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """Give a folder beside `out` that takes its place at the end, or vanishes with an error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     with whole_or_nothing(Path(tmp) / "out") as folder:
        ...         _ = (folder / "file").write_text("")
        ...     [path.name for path in Path(tmp).iterdir()]
        ['out']
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.mkdir()
    try:
        yield temporary
        if out.exists():
            old = temporary.with_name(f"{temporary.name}.old")
            out.rename(old)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
