"""What a method costs a site, by hand on the tiny bundle, and that measuring leaves no trace."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from laws import EVERY, assert_same, difference, make_labs, method, sites_for, without_parts
from torch.utils._python_dispatch import _get_current_dispatch_mode
from variants import NumberSite, Piece

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import RoundError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.cost import Cost, _Step, measure_cost, message_bytes
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

LAST = Settings(rounds=1, choose="last")


@pytest.fixture
def labs(sources: dict[str, Any], image_sources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The small studies; see `laws.sites_for`."""
    return make_labs(sources, image_sources)


def test_fedavg_by_hand(sources: dict[str, Any]) -> None:
    """Linear(15, 6), BatchNorm(6), ReLU, Linear(6, 2), a batch of 10.

    A sample's forward pass is 2 * 15 * 6 + 2 * 6 * 2 = 204 operations, the gradients of the weights are 204 again, that
    of the second layer's input is 24, and the first layer's input needs none: 432. Values: 15 * 6 + 6 and 6 * 2 + 2 of
    the linear layers, 4 * 6 + 1 of batch norm: 135, of which the counter has 8 bytes and the others 4: 544 bytes.
    """
    cost = measure_cost(method("fedavg"), sources["A"], LAST)
    assert (cost.site, cost.flops_per_sample, cost.stored_values) == ("A", 432.0, 135)
    assert (cost.received_bytes, cost.sent_bytes, cost.survey_bytes) == (544, 544, 544)


@pytest.mark.parametrize(
    ("text", "flops", "stored", "received", "survey"),
    [
        ("fedprox:mu=0.2", 432, 135 + 122, 544, 544),  # the anchors of 96 + 12 + 14 parameters
        ("fedprox:mu=0", 432, 135, 544, 544),
        ("fedbn", 432, 135, 544 - 104, 544 - 104),  # 24 floats and the counter stay
        ("local", 432, 135, 0, 0),
        ("sitenorm", 432, 135 + 6 * 15 + 3, 544, 544),  # mean and std of 15 features, thrice; 3 counts
    ],
)
def test_methods_by_hand(
    text: str, flops: float, stored: int, received: int, survey: int, sources: dict[str, Any]
) -> None:
    """What each holds and sends beside the network; see above."""
    cost = measure_cost(method(text), sources["A"], LAST)
    assert (cost.flops_per_sample, cost.received_bytes, cost.survey_bytes) == (flops, received, survey)
    assert cost.sent_bytes == received
    assert cost.stored_values == stored


@pytest.mark.parametrize("text", EVERY)
def test_a_measured_step_is_a_step(text: str, labs: dict[str, dict[str, Any]]) -> None:
    """Law: counting changes no bit of what a method trains, custom gradients and kernels with `out=` included."""
    source = next(iter(sites_for(text, labs).values()))
    sent = []
    for is_measured in (False, True):
        client = Client(method(text), source, LAST)
        step, server = _Step(client, is_measured), Server(method(text), LAST)
        server.open([client.survey()])
        sent.append(client.fit(server.cast()))
        assert step.flops > 0 or not is_measured
    assert difference(sent[0].tensors, sent[1].tensors) == ""
    assert sent[0].steps == sent[1].steps == 1


_LEAST: dict[Any, Cost] = {}  # of FedAvg on a network that parts have adapted


def _least(built: Method, source: Any) -> Cost:
    key = (str(source), tuple(part for part in built.parts if type(part).adapt is not Part.adapt))
    if key not in _LEAST:
        _LEAST[key] = measure_cost(without_parts(built), source, LAST)
    return _LEAST[key]


@pytest.mark.parametrize("text", EVERY)
def test_every_method_has_a_cost(text: str, labs: dict[str, dict[str, Any]]) -> None:
    """Law: at least FedAvg's on the same adapted network, but for operations where layers are left out."""
    source = next(iter(sites_for(text, labs).values()))
    cost, least = measure_cost(method(text), source, LAST), _least(method(text), source)
    assert cost.stored_values >= least.stored_values
    assert cost.flops_per_sample >= least.flops_per_sample or "stochdepth" in text
    assert cost.sent_bytes > 0 or "local" in text


def test_measuring_leaves_no_trace(sources: dict[str, Any]) -> None:
    """A run after it is the run without it, and the counter is gone."""
    settings = Settings(rounds=2)
    before = simulate(method("fedrdn+fedbn"), sources, settings)
    measure_cost(method("fedrdn+fedbn"), sources["A"], settings)
    assert _get_current_dispatch_mode() is None
    assert_same(before, simulate(method("fedrdn+fedbn"), sources, settings))


@dataclass(frozen=True)
class _Holder(Part):
    name: ClassVar[str] = "holder"

    def bind(self, site: SiteView) -> Bound:
        return _Held(site)


class _Held(Bound):
    def __init__(self, site: SiteView) -> None:
        secret = torch.zeros(3)
        self._site, self._live = site, dict(site.model.named_parameters())
        self._whole, self._twice = [torch.zeros(100)], {"a": (torch.ones(7),)}
        self._view = self._whole[0][:10]
        self._network = torch.nn.Linear(2, 2)
        self._hidden = lambda: secret


def test_what_a_part_holds_is_found_once(sources: dict[str, Any]) -> None:
    """100 in a list, 7 in a dict, 6 of a module, 3 in a closure; live parameters and a view are no memory."""
    cost = measure_cost(Method("holder", parts=(_Holder(),)), sources["A"], LAST)
    assert cost.stored_values == 135 + 100 + 7 + 6 + 3


def test_the_bytes_of_a_message_are_those_of_its_tensors(sources: dict[str, Any]) -> None:
    """Tensors and what parts tell: 15 sums of a survey are 60 bytes more."""
    surveying = Method("sums", parts=(Piece("sums", surveys=True),))
    assert measure_cost(surveying, sources["A"], LAST).survey_bytes == 544 + 60
    outcome = simulate(method("fedrdn"), sources, LAST)
    assert message_bytes(outcome.cast) > measure_cost(method("fedrdn"), sources["A"], LAST).received_bytes


@pytest.mark.parametrize("fails_in", [(1,), (2,)])
def test_a_failure_is_an_error_and_no_blank(fails_in: tuple[int, ...]) -> None:
    """Whatever the site's code raises is told with the method and the site; no counter stays behind."""
    with pytest.raises(
        RoundError, match="site A: two steps of fedavg to measure its cost: RuntimeError: scanner on fire"
    ):
        measure_cost(method("fedavg"), NumberSite("A", 4, 1.0, fails_in=fails_in), LAST)
    assert _get_current_dispatch_mode() is None


def test_a_step_that_fails_takes_its_counter_along(sources: dict[str, Any]) -> None:
    """An error inside the measured step leaves no mode behind either."""
    calls: list[int] = []

    def burn() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("no gradient")

    failing = Method("burning", parts=(Piece("burn", ("correct",), (("correct", burn),)),))
    with pytest.raises(RoundError, match="site A: two steps of burning to measure its cost: ValueError: no gradient"):
        measure_cost(failing, sources["A"], LAST)
    assert _get_current_dispatch_mode() is None


def test_a_step_that_diverges_is_told() -> None:
    """The run would leave the site out; its cost is not that of training."""
    with pytest.raises(RoundError, match="^site A: "):
        measure_cost(method("fedavg"), NumberSite("A", 4, math.inf), LAST)
