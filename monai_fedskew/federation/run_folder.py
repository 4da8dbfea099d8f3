"""The RUN folder: what was run, so that it can be run again and a resume cannot mix two runs."""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monai_fedskew.core.whole_file import write_whole
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["is_finished", "locked", "open_run", "require_same_run", "write_json"]

_MAY_CHANGE = ("rounds",)  # a finished run may go on for more rounds


def open_run(run: Path, about: Mapping[str, Any], *, resume: bool, force: bool) -> None:
    """Create the folder with run.json, or check that an existing one is the same run.

    Args:
        run: the folder.
        about: content of run.json.
        resume: go on with an existing run.
        force: replace an existing run.

    Raises:
        ConfigError: the folder exists and neither is asked for, it holds another run, or another process writes to it.
    """
    record = run / "run.json"
    if run.exists() and not run.is_dir():
        raise ConfigError(f"--out {run} is a file; choose a folder")
    if resume and force:
        raise ConfigError("--resume goes on with a run and --force replaces it; give one of them")
    if resume and record.is_file():
        require_same_run(run, about)
        with locked(run):  # a call that is refused must not touch what another process writes
            (run / "summary.json").unlink(missing_ok=True)
            write_json(record, about)
        return
    if run.exists() and any(run.iterdir()):
        if not force:
            raise ConfigError(f"--out {run} exists; choose another folder, --resume it or replace it with --force")
        if not record.is_file():
            raise ConfigError(f"--force: {run} is no RUN folder (no run.json); it is left alone")
        with locked(run):
            shutil.rmtree(run)
    run.mkdir(parents=True, exist_ok=True)
    write_json(record, about)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold a RUN folder alone; freed when the process ends, however it ends.

    Raises:
        ConfigError: another process holds it.
    """
    run.mkdir(parents=True, exist_ok=True)
    with (run / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out {run}: another process is writing to it; wait for it or choose another") from None
        yield


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in one step, so that a reader never sees half of it."""
    write_whole(path, json.dumps(content, indent=1, default=str) + "\n")


def require_same_run(run: Path, about: Mapping[str, Any]) -> None:
    """Raise ConfigError if ``run`` holds another run than ``about`` describes, naming what differs and both values."""
    held, asked = _read(run), json.loads(json.dumps(about, default=str))
    had, wanted = held["settings"]["rounds"], asked["settings"]["rounds"]
    if wanted < had:
        raise ConfigError(f"--resume {run}: rounds was {had}, now it is {wanted}; ask for as many or more")
    before, now = _identity(held), _identity(asked)
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"--resume {run}: {key} was {before.get(key)!r}, now it is {now.get(key)!r}; resume with the same"
            )


def is_finished(run: Path, rounds: int) -> bool:
    """Whether ``run`` holds a summary of exactly so many rounds."""
    try:
        summary = json.loads((run / "summary.json").read_text())
    except (FileNotFoundError, ValueError, RecursionError):  # never written, or damaged: scoring again mends it
        return False
    return isinstance(summary, dict) and bool(_read(run)["settings"]["rounds"] == rounds)


def _read(run: Path) -> dict[str, Any]:
    path = run / "run.json"
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        _identity(about)
        if not isinstance(rounds := about["settings"]["rounds"], int):
            raise TypeError(f"settings.rounds={rounds!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); start anew in another folder or with --force") from error
    return about


def _identity(about: Mapping[str, Any]) -> dict[str, Any]:
    """What makes two runs the same run, wherever their files lie."""
    settings = {f"settings {key}": value for key, value in about["settings"].items() if key not in _MAY_CHANGE}
    sites = {  # an engine's sites keep theirs, and may join late
        f"manifest of site {name}": site["manifest_sha256"]
        for name, site in about["sites"].items()
        if site.keys() & {"manifest_sha256"}
    }
    plain = {key: about[key] for key in ("method", "overrides")}
    if (dealt := about.get("partition")) is not None:
        plain["partition"] = f"{dealt['how']} over {len(dealt['clients'])} clients"
    return {**plain, **settings, **sites, "bundle configuration": about["bundle"]["sha256"]}
