"""Sites that fail, models that diverge, processes that die."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import difference, method

from monai_fedskew.core.messages import Update
from monai_fedskew.core.state import snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, DataError, RoundError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make given sites raise in given rounds."""

    def install(plan: dict[str, tuple[int, ...]], change: Any = None) -> None:
        fit = Client.fit

        def broken(self: Client, cast: Any) -> Any:
            if cast.round in plan.get(self.site.name, ()):
                if change is not None:
                    fit(self, cast)
                    return change(self, cast)
                raise RuntimeError("scanner on fire")
            return fit(self, cast)

        monkeypatch.setattr(Client, "fit", broken)

    return install


def test_a_failing_site_is_missing_for_one_round_only(sources: dict[str, Any], failing: Any) -> None:
    """Case 33: the round goes on without it, history says who and why, the next round has it again."""
    failing({"C": (2,)})
    outcome = simulate(method("fedbn"), sources, Settings(rounds=3, choose="last"))
    failed = [event for event in outcome.history.events if event.kind == "failed"]
    assert [(e.round, e.site, e.reason) for e in failed] == [(2, "C", "RuntimeError: scanner on fire")]
    trained = {e.round: e.site for e in outcome.history.events if e.kind == "trained" and e.site == "C"}
    assert sorted(trained) == [1, 3]
    assert int(outcome.private["C"]["model/1.num_batches_tracked"]) == 8
    assert int(outcome.private["A"]["model/1.num_batches_tracked"]) == 12


def test_fewer_than_min_sites_stops_with_both_numbers(sources: dict[str, Any], failing: Any) -> None:
    """Case 33, min_sites: the text names option, numbers and the failed site."""
    failing({"C": (2,)})
    with pytest.raises(RoundError, match=r"3 usable updates, but min_sites is 4.*failed: C: RuntimeError: scanner"):
        simulate(method("fedavg"), sources, Settings(rounds=3, min_sites=4, choose="last"))


def test_all_sites_failing_stops_and_keeps_the_last_round(
    sources: dict[str, Any], failing: Any, tmp_path: Path
) -> None:
    """Case 33, all fail: an error, and round 1 is still there."""
    failing(dict.fromkeys(sources, (2,)))
    with pytest.raises(RoundError, match="round 2: every site failed"):
        simulate(method("fedavg"), sources, Settings(rounds=3, choose="last"), run=tmp_path)
    assert checkpoint.latest(tmp_path) == 1


def test_what_made_an_update_useless_does_not_live_on_at_the_site(sources: dict[str, Any], failing: Any) -> None:
    """A site whose update is non-finite starts its next round from the private state before it."""

    def diverge(client: Client, cast: Any) -> Update:
        with torch.no_grad():
            client.site.model[1].running_mean.fill_(float("nan"))
        shared = snapshot(client.site.model, client.shared)
        tensors = {key: torch.full_like(value, float("nan")) for key, value in shared.items()}
        return Update(client.site.name, cast.round, tensors, client.site.samples, 1, 1)

    failing({"B": (1,)}, diverge)
    outcome = simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"))
    assert [e.site for e in outcome.history.events if e.kind == "excluded"] == ["B"]
    assert torch.isfinite(outcome.private["B"]["model/1.running_mean"]).all()
    assert int(outcome.private["B"]["model/1.num_batches_tracked"]) == 4


def test_best_needs_validation_data(sources: dict[str, Any]) -> None:
    """Without validation data the choice of the best model is refused before training."""
    sites = {name: replace(source, overrides={"validation_fraction": 0.0}) for name, source in sources.items()}
    with pytest.raises(ConfigError, match="site A: choose=best needs validation data"):
        simulate(method("fedavg"), sites, Settings(rounds=1))
    assert simulate(method("fedavg"), sites, Settings(rounds=1, choose="last")).round == 1


def test_best_is_the_round_with_the_highest_mean_score(sources: dict[str, Any], tmp_path: Path) -> None:
    """The chosen model and its private state are those of the best validation round, also after a resume."""
    settings = Settings(rounds=6, choose="best")
    outcome = simulate(method("fedbn"), sources, settings, run=tmp_path)
    means: dict[int, float] = {}
    for round in range(1, 7):
        scores = [s.metrics["accuracy"] for s in outcome.history.scores if (s.round, s.split) == (round, "validation")]
        means[round] = sum(scores) / len(scores)
    assert outcome.round == max(means, key=lambda round: (means[round], -round))
    again = simulate(method("fedbn"), sources, settings, run=tmp_path, resume=True)
    assert again.round == outcome.round
    assert difference(again.cast.tensors, outcome.cast.tensors) == ""
    for site in sources:
        assert difference(again.private[site], outcome.private[site]) == ""


def test_checkpoints_keep_two_rounds_and_the_best(sources: dict[str, Any], tmp_path: Path) -> None:
    """Disk use does not grow with rounds; the round before the last still has its own best, to go back to."""
    outcome = simulate(method("fedavg"), sources, Settings(rounds=7, choose="best"), run=tmp_path)
    kept = {int(path.name) for path in (tmp_path / "rounds").iterdir()}
    assert {6, 7} <= kept
    before = checkpoint.load(tmp_path, 6).best
    assert before is not None
    assert kept == {6, 7, outcome.round, before[0]}


def test_an_unsampled_sites_state_is_a_hard_link(sources: dict[str, Any], tmp_path: Path) -> None:
    """What did not change is not written again."""
    simulate(method("fedbn"), sources, Settings(rounds=2, fraction=0.5, choose="last"), run=tmp_path)
    links = [os.stat(path).st_nlink for path in sorted((tmp_path / "rounds" / "2" / "sites").iterdir())]
    assert sorted(links) == [1, 1, 2, 2]


def test_a_damaged_checkpoint_is_named(sources: dict[str, Any], tmp_path: Path) -> None:
    """A truncated file says which folder to delete."""
    simulate(method("fedavg"), sources, Settings(rounds=2, choose="last"), run=tmp_path)
    path = tmp_path / "rounds" / "2" / "server.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match=r"rounds/2: cannot be read"):
        simulate(method("fedavg"), sources, Settings(rounds=2, choose="last"), run=tmp_path, resume=True)


@dataclass(frozen=True)
class _Killed:
    run: Path
    data: Path
    bundle: Path

    def command(self, *more: str) -> list[str]:
        call = ["simulate", str(self.bundle), "--data", str(self.data), "--method", "fedrdn+fedbn", "--rounds", "6"]
        return [sys.executable, "-m", "monai_fedskew.cli.main", *call, "--out", str(self.run), *more]


@pytest.mark.parametrize("moment", ["between rounds", "in a checkpoint"])
def test_a_killed_process_resumes_bit_for_bit(
    moment: str, study: Path, tiny_bundle: Path, sources: dict[str, Any], tmp_path: Path
) -> None:
    """SIGKILL at round 3 of 6, also in the middle of writing a checkpoint: resumed equals six straight rounds."""
    killed = _Killed(tmp_path / "run", study, tiny_bundle)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "FEDSKEW_KILL": moment}
    script = Path(__file__).parent / "killed.py"
    first = subprocess.run([sys.executable, str(script), *killed.command()[3:]], env=environment, capture_output=True)
    assert first.returncode == -signal.SIGKILL, first.stderr.decode()[-2000:]
    assert checkpoint.latest(killed.run) == (3 if moment == "between rounds" else 2)
    subprocess.run(killed.command("--resume"), check=True, capture_output=True)
    straight = _Killed(tmp_path / "straight", study, tiny_bundle)
    subprocess.run(straight.command(), check=True, capture_output=True)
    one, two = checkpoint.load(killed.run, 6), checkpoint.load(straight.run, 6)
    assert difference(one.server, two.server) == ""
    for site in sources:
        assert difference(one.private[site], two.private[site]) == ""
    assert (killed.run / "history.jsonl").read_text() == (straight.run / "history.jsonl").read_text()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (killed.run, straight.run)]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]
