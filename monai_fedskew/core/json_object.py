"""A JSON file that must hold an object."""

import json
from pathlib import Path
from typing import Any

from monai_fedskew.errors import DataError

__all__ = ["read_object"]


def read_object(path: Path, hint: str) -> dict[str, Any]:
    """Return the object a JSON file holds.

    Args:
        path: the file.
        hint: what to do if it cannot be read, to end the error with.

    Raises:
        DataError: the file is not there, is no JSON or holds something else.
    """
    if not path.is_file():
        raise DataError(f"{path.absolute()} {'is a folder' if path.is_dir() else 'does not exist'}; {hint}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error}); correct it, or {hint}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, not an object; correct it, or {hint}")
    return content
