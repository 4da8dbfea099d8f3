"""Case 36: running statistics that are not finite end a round, with their name, and do not live on."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.state import snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import RoundError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.running_statistics import RunningStatistics, statistics_keys

LAST = Settings(rounds=2, choose="last")


@dataclass(frozen=True)
class _Spoiled(Part):
    """One value of site B's first batch is infinite; with ``is_skipped`` that step leaves the weights alone."""

    name = "spoiled"
    stages = ("mix", "clip")
    is_skipped: bool

    def bind(self, site: SiteView) -> Bound:
        return _Bound(self, site)


class _Bound(Bound):
    def __init__(self, part: _Spoiled, site: SiteView) -> None:
        self._site, self._round, self._is_bad = site, 0, False
        site.add(part, "mix", self._mix)
        if part.is_skipped:
            site.add(part, "clip", self._skip)

    def receive(self, cast: Broadcast) -> None:
        self._round = cast.round

    def _mix(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self._is_bad = self._site.name == "B" and self._round == 1
        if self._is_bad:
            self._round = 0
            inputs = inputs.clone()
            inputs[0, 1] = torch.inf
        return inputs, targets

    def _skip(self) -> None:
        if self._is_bad:
            for parameter in self._site.model.parameters():
                parameter.grad = None


def _spoiled(text: str, is_skipped: bool = True) -> Method:
    base = parse_method(text)
    return Method(base.name, share=base.share, scope=base.scope, parts=(*base.parts, _Spoiled(is_skipped)))


@pytest.mark.parametrize("text", ["fedavg", "fedbn"])
def test_statistics_that_are_not_finite_fail_the_round(text: str, sources: dict[str, Any]) -> None:
    """The weights are finite, as after a skipped step; no update is made, whether statistics are sent or not."""
    client = Client(_spoiled(text), sources["B"], LAST)
    cast = Broadcast(1, snapshot(client.site.model, client.shared), {})
    with pytest.raises(RoundError, match=r"site B: round 1: 1\.running_mean has \d non-finite values.*not used"):
        client.fit(cast)
    assert all(torch.isfinite(parameter).all() for parameter in client.site.model.parameters())


@pytest.mark.parametrize("text", ["fedbn", "local"])
@pytest.mark.parametrize("max_alive", [None, 1])
def test_private_entries_do_not_survive_as_nan(text: str, max_alive: int | None, sources: dict[str, Any]) -> None:
    """Round 1 fails at B alone, the event names the key, and in round 2 it goes on from the state before."""
    sites = {name: sources[name] for name in "AB"}
    outcome = simulate(_spoiled(text, is_skipped=text == "fedbn"), sites, LAST, max_alive=max_alive)
    kinds = [(event.round, event.site, event.kind) for event in outcome.history.events]
    assert sorted(kinds) == [(1, "A", "trained"), (1, "B", "failed"), (2, "A", "trained"), (2, "B", "trained")]
    reason = next(event.reason for event in outcome.history.events if event.kind == "failed")
    assert "non-finite" in reason
    assert "1.running_mean" in reason or text == "local"
    for state in outcome.private.values():
        assert all(torch.isfinite(value).all() for value in state.values())
    assert int(outcome.private["B"]["model/1.num_batches_tracked"]) == 4


def test_a_run_that_is_to_stop_at_non_finite_numbers_stops(sources: dict[str, Any]) -> None:
    """non_finite=error: what is shared reaches the server, which ends the run with the entry's name."""
    settings = Settings(rounds=2, choose="last", non_finite="error")
    with pytest.raises(RoundError, match="site B: .* non-finite"):
        simulate(_spoiled("fedavg"), {name: sources[name] for name in "AB"}, settings)


def test_only_norms_that_track_have_statistics() -> None:
    """Batch norm in any depth and instance norm that tracks; no other buffer."""
    norms = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.BatchNorm2d(2)),
        torch.nn.BatchNorm1d(2, track_running_stats=False),
        torch.nn.InstanceNorm2d(2),
        torch.nn.InstanceNorm2d(2, track_running_stats=True),
    )
    norms.register_buffer("mask", torch.tensor(-torch.inf))
    assert {key.rpartition(".")[0] for key in statistics_keys(norms)} == {"0.0", "3"}


def test_what_was_kept_comes_back_more_than_once() -> None:
    """The copies do not follow the network, and a later keep takes their place."""
    norm = torch.nn.BatchNorm1d(1)
    statistics = RunningStatistics(norm)
    counts = []
    for _ in range(2):
        norm(torch.ones(2, 1))
        statistics.keep()
        for _ in range(2):
            norm(torch.full((2, 1), torch.inf))
            statistics.bring_back()
        counts.append((int(norm.num_batches_tracked), bool(torch.isfinite(norm.running_mean).all())))
    assert counts == [(1, True), (2, True)]
