"""Files written wholly or not at all: beside their place first, then put there by one rename."""

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["flush", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a text file in UTF-8 so that a reader sees the old content or the new, never half of it."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()  # there only if something failed


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk before going on: a rename alone does not survive a crash."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
