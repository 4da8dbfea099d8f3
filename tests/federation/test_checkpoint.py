"""A round on disk."""

import os
from pathlib import Path

import pytest
import torch

from monai_fedskew.core.messages import Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.errors import DataError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings


def _server(rounds: int) -> Server:
    server = Server(Method("fedavg"), Settings(rounds=9))
    server.open([Survey(site, {"w": torch.zeros(2)}, frozenset({"w"}), 1, 1) for site in "AB"])
    for round in range(1, rounds + 1):
        server.absorb([Update(site, round, {"w": torch.full((2,), float(round))}, 1, 1, 1) for site in "AB"])
    return server


def _commit(run: Path, round: int, *, changed: str = "AB", best: tuple[int, float] | None = None) -> None:
    private = {site: {"model/n": torch.tensor(round if site in changed else 0)} for site in "AB"}
    checkpoint.commit(
        run,
        _server(round),
        private,
        changed=set(changed),
        rows=7 * round,
        best=best,
        since={site: round if site in changed else 0 for site in "AB"},
        run_id="r1",
    )


def test_a_round_comes_back_as_it_was(tmp_path: Path) -> None:
    """Server, private states, rows of history and the best round."""
    _commit(tmp_path, 1, best=(0, 0.5))
    held = checkpoint.load(tmp_path, 1)
    assert (held.round, held.sites, held.parameters, held.history_rows) == (1, ("A", "B"), ("w",), 7)
    assert held.best == (0, 0.5)
    assert (held.since, held.run) == ({"A": 1, "B": 1}, "r1")
    assert held.server["tensors/w"].tolist() == [1.0, 1.0]
    assert held.private["B"]["model/n"].item() == 1


def test_the_last_two_rounds_and_the_best_are_kept(tmp_path: Path) -> None:
    """Round 2 is the best of six: 2, 5 and 6 stay."""
    for round in range(1, 7):
        _commit(tmp_path, round, best=(2, 0.9) if round >= 2 else None)
    assert sorted(path.name for path in (tmp_path / "rounds").iterdir()) == ["2", "5", "6"]
    assert checkpoint.latest(tmp_path) == 6


def test_no_folder_is_no_round(tmp_path: Path) -> None:
    """Before the first commit there is nothing to resume."""
    assert checkpoint.latest(tmp_path) is None
    (tmp_path / "rounds" / ".1.partial").mkdir(parents=True)
    assert checkpoint.latest(tmp_path) is None


def test_half_a_round_is_cleared_away_and_the_round_written_again(tmp_path: Path) -> None:
    """What a killed process left of round 2 neither counts nor stays."""
    _commit(tmp_path, 1)
    half = tmp_path / "rounds" / ".2.partial" / "sites"
    half.mkdir(parents=True)
    (half / "A.safetensors").write_bytes(b"half")
    assert checkpoint.latest(tmp_path) == 1
    _commit(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "rounds").iterdir()) == ["1", "2"]
    _commit(tmp_path, 2)
    assert checkpoint.load(tmp_path, 2).private["A"]["model/n"].item() == 2


def test_what_did_not_change_is_linked(tmp_path: Path) -> None:
    """Site B was not sampled in round 2: one file with two names, and the state of before."""
    _commit(tmp_path, 1)
    _commit(tmp_path, 2, changed="A")
    sites = tmp_path / "rounds" / "2" / "sites"
    assert os.stat(sites / "B.safetensors").st_nlink == 2
    assert os.stat(sites / "A.safetensors").st_nlink == 1
    assert checkpoint.load(tmp_path, 2).private["B"]["model/n"].item() == 1


@pytest.mark.parametrize("name", ["round.json", "server.safetensors", "sites/A.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "empty"])
def test_a_damaged_file_is_an_error_that_names_the_folder(name: str, damage: str, tmp_path: Path) -> None:
    """The text says what to delete to go back a round."""
    _commit(tmp_path, 1)
    path = tmp_path / "rounds" / "1" / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:9] if damage == "truncated" else b"")
    with pytest.raises(DataError, match=r"checkpoint .*rounds/1: cannot be read .*delete this folder"):
        checkpoint.load(tmp_path, 1)


def test_a_site_without_private_state_is_there_after_a_resume(tmp_path: Path) -> None:
    """Under FedAvg nothing is private; an empty state is a state."""
    checkpoint.commit(
        tmp_path,
        _server(1),
        {"A": {}, "B": {}},
        changed={"A", "B"},
        rows=0,
        best=None,
        since={"A": 1, "B": 1},
        run_id="r",
    )
    assert checkpoint.load(tmp_path, 1).private == {"A": {}, "B": {}}
