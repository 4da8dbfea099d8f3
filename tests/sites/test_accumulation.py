"""Gradients accumulated over several batches: one step, of the size that one large batch would give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from torch import nn
from torch.utils.data import DataLoader
from variants import Piece, bundle_with

from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.cost import measure_cost
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site

ROUND = Settings(rounds=1, choose="last")


@pytest.fixture
def accumulating(study: Path, tiny_bundle: Path, tmp_path: Path) -> Any:
    """Site A on the tiny bundle with steps of several batches; 36 examples, no dropout, no momentum."""

    def change(config: dict[str, Any]) -> None:
        config.update(accumulation_steps=1, has_norm=True)
        config["norm"] = "$torch.nn.BatchNorm1d(6) if @has_norm else torch.nn.Identity()"
        config["train"]["trainer"]["accumulation_steps"] = "@accumulation_steps"

    bundle = bundle_with(tiny_bundle, tmp_path / "bundle", change)
    source = BundleSite(bundle, "A", study / "A", {"dropout": 0.0, "momentum": 0.0})

    def build(batch_size: int, steps: int, **more: Any) -> BundleSite:
        overrides = {**source.overrides, "batch_size": batch_size, "accumulation_steps": steps, **more}
        return replace(source, overrides=overrides)

    return build


class _OneWeight:
    """A trainer of w on the examples' own values: half the squared error, learning rate 1, one example a batch."""

    def __init__(self, values: list[float], accumulation_steps: int) -> None:
        self.network = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.network.weight)
        data = [{"image": torch.ones(1), "label": torch.tensor([value])} for value in values]
        shared: dict[str, Any] = {"device": torch.device("cpu"), "network": self.network, "decollate": False}
        self.trainer = SupervisedTrainer(
            max_epochs=1,
            train_data_loader=DataLoader(data, batch_size=1),  # type: ignore[arg-type]  # a list will do
            optimizer=torch.optim.SGD(self.network.parameters(), lr=1.0),
            loss_function=lambda pred, label: 0.5 * (pred - label) ** 2,
            accumulation_steps=accumulation_steps,
            **shared,
        )
        evaluator = SupervisedEvaluator(val_data_loader=DataLoader(data), **shared)  # type: ignore[arg-type]
        self.site = Site("A", self.trainer, evaluator)


def test_a_step_is_the_mean_over_its_batches_also_at_the_end_of_an_epoch() -> None:
    """Values 1, 3, 8 by twos: (1 + 3) / 2 = 2, then 8 alone, a whole step from 2 to 8. MONAI alone makes half: 5."""
    one = _OneWeight([1.0, 3.0, 8.0], accumulation_steps=2)
    steps, loss = one.site.train(1, 1, keep_optimizer=False)
    assert one.network.weight.item() == 8.0
    assert steps == 2
    assert loss == pytest.approx((0.5 + 4.5 + 18.0) / 3)


def test_part_of_a_batch_makes_no_step() -> None:
    """MONAI takes 1.5 and counts with it: steps would come after one batch, or two, or not at all."""
    with pytest.raises(ConfigError, match=r"site A: accumulation_steps=1\.5 must be a whole number"):
        _OneWeight([1.0, 3.0], accumulation_steps=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch_size", "steps"), [(6, 2), (9, 3), (9, 2)])
def test_accumulated_batches_equal_one_large_batch(batch_size: int, steps: int, accumulating: Any) -> None:
    """Without batch norm; 36 examples are three twelves by twos of six, and 27 and a rest of 9 by threes of nine."""
    states = []
    for dealt in ((batch_size, steps), (batch_size * steps, 1)):
        site = accumulating(*dealt, has_norm=False).open()
        site.seed(0, 1)
        made, _ = site.train(1, 2, keep_optimizer=False)
        states.append((site.model.state_dict(), made))
    assert states[0][1] == states[1][1]
    for key, value in states[0][0].items():
        torch.testing.assert_close(value, states[1][0][key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("text", ["fednova:mu=0.1", "scaffold", "fedprox:mu=0.2"])
def test_methods_that_reckon_with_steps_count_those_of_the_optimizer(text: str, accumulating: Any) -> None:
    """An update of six by twos is that of twelve: weights, count, and what fednova and scaffold report of the way."""
    updates = []
    for dealt in ((6, 2), (12, 1)):
        built = parse_method(text)
        client = Client(built, accumulating(*dealt, has_norm=False), ROUND)
        server = Server(built, ROUND)
        server.open([client.survey()])
        updates.append(client.fit(server.cast()))
    first, second = updates
    assert first.steps == second.steps == 3
    assert first.aux.keys() == second.aux.keys()
    for one, other in ((first.tensors, second.tensors), *((first.aux[name], second.aux[name]) for name in first.aux)):
        assert one.keys() == other.keys()
        for key, value in one.items():
            torch.testing.assert_close(value, other[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize("stage", ["correct", "clip"])
def test_a_part_sees_a_gradient_once_a_step_and_whole(stage: str, accumulating: Any) -> None:
    """Nine batches of four by fours: three steps, the last of one batch; what the part leaves is what is stepped by."""
    site, seen = accumulating(4, 4).open(), []

    def look() -> None:
        seen.append(site.model[0].weight.grad.clone())
        for parameter in site.model.parameters():
            parameter.grad.zero_()

    before = site.model[0].weight.detach().clone()
    site.add(Piece("p", (stage,)), stage, look)
    assert site.train(1, 1, keep_optimizer=False)[0] == len(seen) == 3
    assert all(gradient.any() for gradient in seen)
    assert torch.equal(site.model[0].weight, before)


def test_a_second_gradient_of_one_batch_is_refused(accumulating: Any) -> None:
    """HarmoFL's step needs the gradient of all its batches again; site, part and option are named."""
    with pytest.raises(ConfigError, match=r"site A: sharpness takes the gradient.*accumulation_steps 2.*set it to 1"):
        Client(parse_method("harmofl:amplitude=off"), accumulating(6, 2), ROUND)


def test_the_cost_of_a_step_is_that_of_all_its_batches(accumulating: Any) -> None:
    """Operations a sample are the same however the samples are dealt to batches; fednova's step is one that is made."""
    costs = [measure_cost(parse_method("fednova"), accumulating(*dealt), ROUND) for dealt in ((6, 2), (12, 1))]
    assert costs[0] == costs[1]


def test_a_rest_below_a_step_is_one_when_the_cost_is_measured(accumulating: Any) -> None:
    """Two batches an epoch, four a step: the step comes at the end of the epoch."""
    assert measure_cost(parse_method("scaffold"), accumulating(18, 4), ROUND).flops_per_sample == 432.0
