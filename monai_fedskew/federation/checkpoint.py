"""A round on disk: one folder, committed by one rename, so that a killed process leaves the last round whole.

RUN/rounds/<r>/server.safetensors  sites/<SITE>.safetensors  round.json
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from monai_fedskew.core.private import require_folder_name
from monai_fedskew.core.state import State
from monai_fedskew.core.whole_file import flush
from monai_fedskew.errors import DataError
from monai_fedskew.federation.server import Server

__all__ = ["Checkpoint", "commit", "latest", "load"]

_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on after a round.

    Args:
        round: rounds done.
        server: the server's tensors.
        private: each site's private state.
        sites: all sites of the federation.
        parameters: the shared keys that are trained.
        history_rows: rows of history.jsonl that belong to it.
        best: the best round so far and its score, None before the first score.
        since: by site, the round whose private state it continues from.
        run: id of the run.
    """

    round: int
    server: State
    private: Mapping[str, State]
    sites: tuple[str, ...]
    parameters: tuple[str, ...]
    history_rows: int
    best: tuple[int, float] | None
    since: Mapping[str, int]
    run: str


def commit(
    run: Path,
    server: Server,
    private: Mapping[str, State],
    *,
    changed: set[str],
    rows: int,
    best: tuple[int, float] | None,
    since: Mapping[str, int],
    run_id: str,
) -> None:
    """Write the state after a round; keep the last two rounds, and the best as each of these two knew it.

    Args:
        run: the RUN folder.
        server: the server after the round.
        private: private state by site; those of sites not in ``changed`` are linked, not written again. Empty where
            the sites keep their own.
        changed: sites whose private state is new since the last commit.
        rows: rows of history.jsonl so far.
        best: the best round so far and its score.
        since: by site, the round whose private state it continues from.
        run_id: id of the run.
    """
    rounds = run / "rounds"
    target, temporary = rounds / str(server.round), rounds / f".{server.round}.partial"
    for stale in rounds.glob(".*.partial"):
        shutil.rmtree(stale)
    (temporary / "sites").mkdir(parents=True)
    save_file(server.state(), temporary / "server.safetensors")
    _save_private(temporary / "sites", private, changed, rounds / str(server.round - 1) / "sites")
    about = {
        "round": server.round,
        "sites": list(server.sites),
        "private": sorted(private),
        "parameters": sorted(server.parameters),
        "history_rows": rows,
        "best": best,
        "since": dict(since),
        "run": run_id,
    }
    (temporary / "round.json").write_text(json.dumps(about, indent=1))
    for path in (*temporary.rglob("*"), temporary):
        flush(path)
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    flush(rounds)
    numbers = _numbers(rounds)
    keep = {_best(rounds / str(kept)) for kept in numbers[-_KEPT:]}  # who goes back a round needs that round's best
    for old in numbers[:-_KEPT]:
        if old not in keep:
            shutil.rmtree(rounds / str(old))


def latest(run: Path) -> int | None:
    """Return the last committed round, None if there is none."""
    found = _numbers(run / "rounds")
    return found[-1] if found else None


def load(run: Path, round: int) -> Checkpoint:
    """Read a committed round.

    Raises:
        DataError: a file of it is missing or damaged.
    """
    folder = run / "rounds" / str(round)
    if not folder.exists():
        raise DataError(f"checkpoint {folder}: is not there; put it back, or start anew in another folder")
    try:
        about = json.loads((folder / "round.json").read_text())
        server: dict[str, Tensor] = load_file(folder / "server.safetensors")
        private = {site: load_file(folder / "sites" / f"{site}.safetensors") for site in about["private"]}
        best = (int(about["best"][0]), float(about["best"][1])) if about["best"] else None
        rows, sites, parameters = int(about["history_rows"]), tuple(about["sites"]), tuple(about["parameters"])
        since, run_id = (
            {str(site): int(at) for site, at in about["since"].items()},
            require_folder_name("run", about["run"]),
        )
        if about["round"] != round or rows < 0 or not all("/" in key for key in server):
            raise ValueError(f"round {about['round']}, {rows} rows of history")
        if not sites or sites != tuple(sorted(since)):
            raise ValueError(f"sites {about['sites']}, but private state of {', '.join(sorted(since)) or 'none'}")
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, SafetensorError) as error:
        raise DataError(
            f"checkpoint {folder}: cannot be read ({error}); delete this folder to go back a round"
        ) from error
    return Checkpoint(about["round"], server, private, sites, parameters, rows, best, since, run_id)


def _save_private(folder: Path, private: Mapping[str, State], changed: set[str], before: Path) -> None:
    for site, state in private.items():
        name = f"{site}.safetensors"
        if site not in changed and (before / name).exists():
            os.link(before / name, folder / name)
        else:
            save_file(dict(state), folder / name)


def _best(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "round.json").read_text())["best"][0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):  # none yet, or damaged: told when it is loaded
        return None


def _numbers(rounds: Path) -> list[int]:
    return (
        sorted(int(path.name) for path in rounds.iterdir() if path.name.isascii() and path.name.isdigit())
        if rounds.is_dir()
        else []
    )
