"""The folders of a site's private state: where a run lies, what is there, who writes it, how it is dropped."""

import fcntl
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import takewhile
from pathlib import Path

from monai_fedskew.core.private import StateKey
from monai_fedskew.errors import ConfigError, DataError

__all__ = [
    "Held",
    "drop",
    "list_held",
    "make_private",
    "open_private",
    "require_free",
    "round_file",
    "rounds_in",
    "run_folder",
    "take",
]

_SUFFIX, _LOCK = ".safetensors", ".lock"


@dataclass(frozen=True)
class Held:
    """The private state of one run at one site, as far as names and sizes of files tell.

    Args:
        folder: where it lies.
        study: name of the study.
        site: name of the site.
        run: id of the run.
        network: the first 12 digits of the hash of the network.
        rounds: the rounds that are there, ascending.
        size: bytes of all of them.
        written: when the last one was, None where there is none.
    """

    folder: Path
    study: str
    site: str
    run: str
    network: str
    rounds: tuple[int, ...]
    size: int
    written: datetime | None


def run_folder(root: Path, key: StateKey) -> Path:
    """Return where the private state of a run lies."""
    return root / key.study / key.site / key.network[:12] / key.run


def round_file(folder: Path, round: int) -> Path:
    """Return the file of a round."""
    return folder / f"{round}{_SUFFIX}"


def rounds_in(folder: Path) -> tuple[int, ...]:
    """Return the rounds a run's folder holds, ascending; none if it does not exist."""
    names = [path.stem for path in folder.glob(f"*{_SUFFIX}") if path.is_file()]
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit()))


def list_held(root: Path) -> list[Held]:
    """Return all private state below a folder, by study, site, run and network; folders of other things are left out.

    Raises:
        DataError: there is no such folder.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; private state is written there in the first round of a study")
    found = [_held(folder) for folder in root.glob("*/*/*/*") if _is_state(folder)]
    return sorted(found, key=lambda held: (held.study, held.site, held.run, held.network))


def drop(root: Path, held: Held) -> None:
    """Delete the private state of a run for good, and folders above it that become empty.

    Raises:
        ConfigError: a process is writing it.
    """
    taken = _take_free(held)
    try:
        shutil.rmtree(held.folder)
    finally:
        os.close(taken)
    for folder in _below(root, held.folder):
        if any(folder.iterdir()):
            return
        folder.rmdir()


def require_free(held: Held) -> None:
    """Raise ConfigError if a process is writing this private state."""
    os.close(_take_free(held))


def take(folder: Path) -> int | None:
    """Take a run's folder for this process, until the descriptor that is returned is closed or the process ends.

    None if this process has it already, through a store that is perhaps not yet cleared away.

    Raises:
        ConfigError: another process holds it.
    """
    lock = open_private(str(folder / _LOCK), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 1000).decode()
        os.close(lock)
        if holder == _this_process():
            return None
        raise ConfigError(
            f"{folder}: another process ({holder or 'unknown'}) holds this private state; end it, or wait for it"
        ) from None
    os.truncate(lock, 0)
    os.write(lock, _this_process().encode())
    return lock


def make_private(root: Path, folder: Path) -> None:
    """Make ``root`` and what lies between it and ``folder``, for the owner only, as far as they are missing."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for path in reversed([folder, *_below(root.parent, folder)]):
        path.mkdir(mode=0o700, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file so that only its owner can read it; an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)


def _is_state(folder: Path) -> bool:
    """Whether a run wrote here: else ``drop`` would delete whatever lies four folders deep."""
    is_ours = (folder / _LOCK).is_file() or bool(rounds_in(folder))
    return folder.is_dir() and not folder.is_symlink() and is_ours


def _take_free(held: Held) -> int:
    taken = take(held.folder)
    if taken is None:
        raise ConfigError(f"{held.folder}: is in use by this process; close its store first")
    return taken


def _below(top: Path, folder: Path) -> Iterator[Path]:
    return takewhile(lambda path: path != top, folder.parents)


def _held(folder: Path) -> Held:
    network, site, study = (path.name for path in list(folder.parents)[:3])
    rounds = rounds_in(folder)
    stats = [round_file(folder, round).stat() for round in rounds]
    written = datetime.fromtimestamp(max(stat.st_mtime for stat in stats), UTC) if stats else None
    return Held(
        folder=folder,
        study=study,
        site=site,
        run=folder.name,
        network=network,
        rounds=rounds,
        size=sum(stat.st_size for stat in stats),
        written=written,
    )


@cache
def _token() -> str:
    """Tells this process from one of the same number in another container."""
    return uuid.uuid4().hex[:8]


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}, {_token()}"
