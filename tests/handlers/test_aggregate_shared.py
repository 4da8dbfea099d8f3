import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ignite.engine import Engine
from torch import nn

from monai_fedskew.core import weighted_mean
from monai_fedskew.errors import ConfigError
from monai_fedskew.handlers.aggregate_shared import AggregateShared

RANKS = Path(__file__).parent / "ranks.py"
NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}


def torchrun(out: Path, *scenarios: str, ranks: int = 2) -> None:
    """Play scenarios (all by default) on the loopback interface, on a free port."""
    launch = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    done = subprocess.run(
        [sys.executable, *launch, *rendezvous, str(RANKS), str(out), *scenarios],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def read(out: Path, scenario: str, ranks: int = 2) -> list[dict]:
    """What the ranks wrote."""
    return [json.loads((out / f"{scenario}.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    """All scenarios, played by the same two ranks."""
    out = tmp_path_factory.mktemp("ranks")
    torchrun(out)
    return out


def local_mean(logs: list[list[list[float]]], epoch: int, weights: list[float]) -> list[float]:
    """The mean of the first layer's biases before averaging."""
    states = [{"b": torch.tensor(log[2 * epoch])} for log in logs]
    return weighted_mean(states, weights)["b"].tolist()


@pytest.mark.parametrize(
    ("scenario", "weights"),
    [("samples", [4 / 16, 12 / 16]), ("equal", [0.5, 0.5]), ("number", [1 / 3, 2 / 3]), ("all", [4 / 16, 12 / 16])],
)
def test_shared_entries_are_the_weighted_mean(scenario, weights, played) -> None:
    """4 and 12 examples weigh 1/4 and 3/4; numbers 1 and 2 a third and two; norms stay apart unless shared."""
    first, second = read(played, scenario)

    expected = local_mean([first["log"], second["log"]], 0, weights)
    assert first["state"]["0.bias"] == second["state"]["0.bias"] == expected
    assert first["log"][0] != second["log"][0]
    private = {key for key in first["state"] if first["state"][key] != second["state"][key]}
    assert private == (set() if scenario == "all" else NORM - {"1.num_batches_tracked"})


def test_averages_every_two_epochs(played) -> None:
    """Four epochs, every=2: apart after epochs 1 and 3, together after 2 and 4."""
    logs = [result["log"] for result in read(played, "rounds")]

    after = [[log[2 * epoch + 1] for log in logs] for epoch in range(4)]
    assert [a == b for a, b in after] == [False, True, False, True]
    assert after[3][0] == local_mean(logs, 3, [4 / 16, 12 / 16])


def test_one_rank_is_its_own_mean(tmp_path) -> None:
    """A world of one changes nothing."""
    torchrun(tmp_path, "samples", ranks=1)

    (only,) = read(tmp_path, "samples", 1)
    assert only["log"][0] == only["log"][1]


def test_private_entries_may_differ(played) -> None:
    """One rank's batch norm has no affine pair."""
    first, second = read(played, "private")

    assert first["state"]["3.weight"] == second["state"]["3.weight"]
    assert "1.weight" not in second["state"]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("shapes", "StateError: AggregateShared: rank 1, S1: network: 0.bias is float32 (4,), but at rank 0, S0"),
        ("keys", "StateError: AggregateShared: rank 1, S1: network has 2 unknown keys (4.bias, 4.weight)"),
        ("every", "ConfigError: AggregateShared: rank 1, S1: every=2, but 1 on rank 0, S0; give all ranks the same"),
        ("epochs", "ConfigError: AggregateShared: rank 1, S1: max_epochs=2, but 1 on rank 0, S0"),
        ("multiple", "ConfigError: AggregateShared: rank 0, S0: max_epochs=3 is no multiple of every=2"),
        ("no_norm", "ConfigError: AggregateShared: rank 1, S1: no BatchNorm entries in Sequential"),
        ("twice", "ConfigError: AggregateShared: the ranks are S, S; each needs a site of its own"),
        ("nan", "RoundError: round 1, S1: 0.bias has 3 non-finite values"),
    ],
)
def test_ranks_that_do_not_fit_end_with_one_error_on_each(scenario, message, played) -> None:
    """Nobody waits for a rank that has given up."""
    errors = [result["error"] for result in read(played, scenario)]

    assert errors[0] == errors[1]
    assert errors[0].startswith(message)


def test_without_other_ranks_is_an_error(monkeypatch) -> None:
    """Not silently one site alone; what to do is said."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    engine = Engine(lambda engine, batch: None)
    engine.network = nn.BatchNorm1d(1)
    AggregateShared().attach(engine)

    with pytest.raises(ConfigError, match="no other rank to average with. Start one process a site"):
        engine.run([0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every=0 must be 1 or more local epochs"),
        ({"weights": "groups"}, "weights='groups' must be samples, equal or a number above 0"),
        ({"weights": 0.0}, "weights=0.0 must be samples, equal or a number above 0"),
        ({"optimizer_state": "drop"}, "optimizer_state='drop' must be reset or keep"),
    ],
)
def test_wrong_values_are_refused(arguments, message) -> None:
    """When the handler is made."""
    with pytest.raises(ConfigError, match=f"AggregateShared: {message}"):
        AggregateShared(**arguments)


def test_an_engine_without_network_is_refused() -> None:
    """It belongs on a MONAI trainer."""
    engine = Engine(lambda engine, batch: None)
    AggregateShared().attach(engine)

    with pytest.raises(ConfigError, match="AggregateShared: Engine has no network"):
        engine.run([0])
