"""Output folders that are written whole or not at all."""

import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from monai_fedskew.errors import ConfigError, DataError

__all__ = ["check_folders", "whole_or_nothing"]


def check_folders(data: Path, out: Path, *, force: bool, mark: str) -> None:
    """Refuse an input folder that is absent, and an output folder that must not be replaced.

    What a call that was killed left beside `out` is cleared away first.

    Args:
        data: input folder.
        out: output folder.
        force: whether `out` may be replaced.
        mark: file that only an earlier output has.

    Raises:
        ConfigError: `out` exists without `force`, is no earlier output, holds the data, is a link, has no name, or lies
            below a file.
        DataError: `data` does not exist.
    """
    if not data.is_dir():
        raise DataError(f"data folder {data} does not exist")
    if out.name in ("", ".."):
        raise ConfigError(f"output folder '{out}' has no name of its own; name a new folder")
    if out.is_symlink():
        raise ConfigError(f"output folder {out} is a symbolic link; name the folder {out.readlink()} itself")
    above = next((path for path in out.parents if path.exists() and not path.is_dir()), None)
    if above is not None:
        raise ConfigError(f"output folder {out} would lie below {above}, which is a file; choose another")
    _sweep(out)
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

    What is at `out` when it starts is replaced; what another call puts there meanwhile is not.

    Raises:
        ConfigError: another call has written `out` meanwhile.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     with whole_or_nothing(Path(tmp) / "out") as folder:
        ...         _ = (folder / "file").write_text("")
        ...     [path.name for path in Path(tmp).iterdir()]
        ['out']
    """
    made = [path for path in out.parents if not path.exists()]
    temporary, replaces = out.with_name(f".{out.name}.{os.getpid()}"), out.exists()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        if out.exists() and not replaces:
            raise ConfigError(f"output folder {out} was written by another call meanwhile; it is kept, choose another")
        if replaces:
            old = temporary.with_name(f"{temporary.name}.old")
            out.rename(old)
            temporary.rename(out)
            shutil.rmtree(old)
        else:
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for path in made:
            with suppress(OSError):  # holds the output, or was never made
                path.rmdir()


def _sweep(out: Path) -> None:
    """Remove the temporary folders of calls for `out` that were killed; an old output that they moved comes back."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.(\d+)(\.old)?")
    for path in sorted(out.parent.glob(f".{glob.escape(out.name)}.*"), reverse=True):  # `.old` first
        found = pattern.fullmatch(path.name)
        if found is None or not path.is_dir() or path.is_symlink() or _is_running(int(found[1])):
            continue
        if found[2] and not out.exists():
            path.rename(out)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    if process == os.getpid():  # in a container every call may have the same number
        return False
    if os.name != "posix":
        return True  # elsewhere asking with signal 0 would end the process
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
