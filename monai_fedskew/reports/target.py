"""Where a report may be written, and writing it whole or not at all."""

import os
import stat
from pathlib import Path

from monai_fedskew.errors import ConfigError

__all__ = ["default_page", "is_default", "may_write", "require_page", "table_beside", "write_whole"]


def default_page(folder: Path) -> Path:
    """Return the page of a RUN or COMPARE folder."""
    return folder / "report.html"


def is_default(folder: Path, page: Path) -> bool:
    """Tell whether a page is the one that belongs to a folder, which is made anew at every call."""
    return page.name == default_page(folder).name and page.parent.resolve() == folder.resolve()


def table_beside(folder: Path, page: Path) -> Path:
    """Return the file of scores that belongs to a page about a folder.

    Example:
        >>> [table_beside(Path("runs"), page).as_posix() for page in (Path("runs/report.html"), Path("mine.html"))]
        ['runs/table.csv', 'mine.csv']
    """
    return folder / "table.csv" if is_default(folder, page) else page.with_suffix(".csv")


def require_page(page: Path) -> None:
    """Raise ConfigError if a page's name is that of another kind of file, such as a run's own run.json."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out {page}: the page is HTML; choose a name that ends in .html")


def may_write(target: Path, *, is_derived: bool, force: bool = False) -> None:
    """Check that a file may be written, before any work is done.

    Args:
        target: the file.
        is_derived: whether only this package writes files of this name there, so that an existing one may be replaced.
        force: replace an existing file all the same.

    Raises:
        ConfigError: the target is a folder, a device, a link or another thing that is no regular file, it exists and
            may not be replaced, or its folder cannot be one.
    """
    for parent in target.parents:
        if parent.exists() and not parent.is_dir():
            raise ConfigError(f"{target}: {parent} is no folder; choose another file with --out")
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "a device or pipe"
        raise ConfigError(f"{target} is {kind}, no regular file, and is left alone; move it, or choose another --out")
    if not is_derived and not force:
        raise ConfigError(f"{target} exists; choose another file with --out, or replace it with --force")


def write_whole(target: Path, text: str) -> None:
    """Write a text file in one step, so that a reader never sees half of it; makes its folder."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
