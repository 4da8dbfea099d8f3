"""A site's private state on disk: a file a round, so that it outlives a process, a job and a machine.

<root>/<study>/<site>/<network[:12]>/<run>/<round>.safetensors  about.json

Nothing in it names a place, so that the folder can be copied to another machine as it is. It is made from patients'
data: folders are 0700, files 0600.
"""

import json
import os
import weakref
import zlib
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from monai_fedskew.core.private import StateKey
from monai_fedskew.core.state import State, describe
from monai_fedskew.core.versions import versions
from monai_fedskew.core.whole_file import flush
from monai_fedskew.errors import DataError, StateError
from monai_fedskew.sites.state_folder import make_private, open_private, round_file, rounds_in, run_folder, take

__all__ = ["SiteStore", "read_about"]

_SCHEMA, _ABOUT = 1, "about.json"
_NAMED = 5  # at most so many entries are spelled out in an error
_PACKAGES = ("monai-fedskew", "torch", "safetensors")


class SiteStore:
    """Keeps private state below a folder; see Store.

    The first write takes the run of the site for this process, until ``close`` or the end of the process.

    Args:
        root: the folder; made when something is first written.

    Example:
        >>> import tempfile
        >>> key = StateKey("study", "run", "NYU", "0" * 64)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = SiteStore(Path(folder, "state"))
        ...     store.write(key, 1, {"model/bn.weight": torch.ones(2)}, keep=())
        ...     store.read(key, 1)["model/bn.weight"].tolist()
        [1.0, 1.0]
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[Path, int] = {}
        weakref.finalize(self, _free, self._locks)
        self._described: dict[Path, dict[str, str]] = {}

    def read(self, key: StateKey, round: int) -> State:
        """Return the private state of exactly this round.

        Raises:
            StateError: there is none, or it was written by another network; says what there is.
            DataError: its file is damaged.
        """
        path = round_file(run_folder(self.root, key), round)
        if not path.is_file():
            raise StateError(_missing(self.root, key, round))
        try:
            with safe_open(path, framework="pt") as file:
                said = file.metadata() or {}
                state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise DataError(f"{path}: is damaged ({error}); {_mend(path)}") from error
        for name, value in _identity(key, round).items():
            if said.get(name) != value:
                raise StateError(
                    f"{path}: belongs to {name} {said.get(name)!r}, not {value!r}; put back the file that belongs here"
                )
        if said.get("digest") != _digest(state):
            raise DataError(f"{path}: is damaged (its content is not what was written); {_mend(path)}")
        return state

    def write(self, key: StateKey, round: int, state: State, *, keep: Collection[int]) -> None:
        """Keep the state of a round, wholly or not at all; other rounds of the run that are not in ``keep`` go.

        Raises:
            ConfigError: another process writes this run of the site.
        """
        folder = run_folder(self.root, key)
        make_private(self.root, folder)
        if folder not in self._locks and (taken := take(folder)) is not None:
            self._locks[folder] = taken
        for stale in folder.glob(".*.partial"):  # left by a process that was killed
            stale.unlink()
        self._describe(folder, key, {name: describe(value) for name, value in state.items()})
        target = round_file(folder, round)
        partial = _partial(target)
        os.close(open_private(str(partial), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        said = {**_identity(key, round), "digest": _digest(state), "written": _now()}
        save_file(dict(state), partial, metadata=said)
        _commit(partial, target)
        for other in rounds_in(folder):
            if other != round and other not in keep:
                round_file(folder, other).unlink()

    def close(self) -> None:
        """Let other processes write."""
        _free(self._locks)

    def _describe(self, folder: Path, key: StateKey, entries: dict[str, str]) -> None:
        """Write about.json when the entries are new; it is for people and for errors."""
        if self._described.get(folder) == entries:
            return
        about = {"schema": _SCHEMA, "study": key.study, "run": key.run, "site": key.site, "network": key.network}
        content = {**about, "entries": entries, "written": _now(), "versions": versions(_PACKAGES)}
        partial = _partial(folder / _ABOUT)
        with open(partial, "w", opener=open_private) as file:
            file.write(json.dumps(content, indent=1) + "\n")
        _commit(partial, folder / _ABOUT)
        self._described[folder] = entries


def read_about(folder: Path) -> dict[str, Any]:
    """Return what a run's about.json says: the names, the whole hash, and entry to dtype and shape.

    Raises:
        DataError: it is absent or damaged.
    """
    path = folder / _ABOUT
    try:
        content = json.loads(path.read_text())
        for key, kind in (("network", str), ("entries", dict), ("versions", dict)):
            if not isinstance(content[key], kind):
                raise TypeError(f"{key}={content[key]!r:.60}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it, the next round writes it anew") from error
    return dict(content)


def _free(locks: dict[Path, int]) -> None:
    while locks:
        os.close(locks.popitem()[1])


def _missing(root: Path, key: StateKey, round: int) -> str:
    """Say what there is instead of what was asked for."""
    what = f"site {key.site}: no private state of round {round} of study {key.study}, run {key.run}"
    again = f"or start anew (`fedskew site state drop {key.study} --run {key.run} --site '{key.site}'`)"
    folder = run_folder(root, key)
    if there := rounds_in(folder):
        return f"{what} in {root}; there is that of round {_listed(there)}: go on from one of these, {again}"
    for other in sorted(folder.parent.parent.glob(f"*/{key.run}")):
        if there := rounds_in(other):
            return (
                f"{what} of this network ({key.network[:12]}); that of round {_listed(there)} was written by another "
                f"({other.parent.name}), {_difference(folder, other)}: use that network again, {again}"
            )
    return f"{what} in {root}; nothing was written, or the site's file names another folder of state than before"


def _difference(folder: Path, other: Path) -> str:
    """Name entries of another network's state, beside this network's if it ever wrote here, in whatever run."""
    theirs, ours = _entries(other), next(map(_entries, sorted(folder.parent.glob("*"))), {})
    names = sorted(name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name))
    told = [
        f"{name} {theirs.get(name, 'absent')}" + (f", now {ours.get(name, 'absent')}" if ours else "")
        for name in names[:_NAMED]
    ]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return f"{'which differs in' if ours else 'with the entries'} {'; '.join([*told, *more]) or '(unknown)'}"


def _entries(folder: Path) -> dict[str, str]:
    try:
        entries: dict[str, str] = read_about(folder)["entries"]
    except DataError:  # only adds to an error that is raised anyway
        return {}
    return entries


def _identity(key: StateKey, round: int) -> dict[str, str]:
    """What each file says of itself."""
    return {"study": key.study, "run": key.run, "site": key.site, "network": key.network, "round": str(round)}


def _digest(state: State) -> str:
    value = 0
    for name in sorted(state):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(state[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return f"crc32:{value:08x}"


def _mend(path: Path) -> str:
    others = [round for round in rounds_in(path.parent) if round_file(path.parent, round) != path]
    there = f"there is round {_listed(others)}" if others else "there is none"
    return f"put back a copy of it, or delete it and go on from another round ({there})"


def _listed(rounds: Collection[int]) -> str:
    return ", ".join(map(str, rounds))


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _commit(partial: Path, target: Path) -> None:
    """Put a written file in its place for good: content, then name, each flushed."""
    partial.chmod(0o600)
    flush(partial)
    partial.replace(target)
    flush(target.parent)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
