"""HarmoFL's second half: the gradient at a perturbed model."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from monai_fedskew.core import Broadcast
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.methods.harmofl import harmofl

LAST = {"choose": "last"}


def with_loss(site, loss):
    """A site that can compute its loss again."""

    @contextmanager
    def replay(part):
        yield

    site.loss, site.replay = loss, replay
    return site


def test_gradient_at_the_perturbed_weight_by_hand(view) -> None:
    """Loss w^2 / 2 at w = 3: g = 3, delta = 0.5 g / |g| = 0.5, gradient at 3.5: 3.5; the weight is 3 again."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 3.0)
    site = with_loss(view("A", model=net), lambda: 0.5 * net.weight.square().sum())
    harmofl(0.5, "off").parts[0].bind(site)
    site.loss().backward()

    site.stages["perturb"]()

    assert net.weight.item() == 3.0
    assert net.weight.grad.item() == 3.5


def test_perturbation_has_the_length_alpha_over_all_weights_together(view) -> None:
    """Loss a . w of gradient a = (3, 4) in two tensors: delta = 0.1 (3, 4) / 5, seen by the second pass."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    seen = []

    def loss():
        weights = torch.cat([p.flatten() for p in net.parameters()])
        seen.append(weights.detach().clone())
        return (weights * torch.tensor([3.0, 4.0], dtype=torch.float64)).sum()

    site = with_loss(view("A", model=net), loss)
    harmofl(0.1, "off").parts[0].bind(site)
    site.loss().backward()
    site.stages["perturb"]()

    assert (seen[1] - seen[0]).tolist() == pytest.approx([0.06, 0.08])


def test_a_gradient_of_zero_perturbs_nothing(view) -> None:
    """No direction, no 0/0."""
    net = nn.Linear(1, 1, bias=False)
    site = with_loss(view("A", model=net), lambda: 0.0 * net.weight.sum())
    harmofl(0.5, "off").parts[0].bind(site)
    site.loss().backward()

    site.stages["perturb"]()

    assert net.weight.grad.item() == 0.0
    assert net.weight.isfinite().all()


def test_weights_and_statistics_come_back_bit_for_bit(image_sources) -> None:
    """With learning rate 0 and a large perturbation a round leaves every parameter as it was.

    Batch norm counts one batch a step, not two.
    """
    source = replace(image_sources["A"], overrides={"lr": 0.0})
    client = Client(parse_method("harmofl:alpha=3,amplitude=off"), source, Settings(rounds=1, **LAST))
    start = client.survey().tensors

    update = client.fit(Broadcast(1, start))

    parameters = client.survey().parameters
    assert all(torch.equal(update.tensors[key], start[key]) for key in parameters)
    counters = {int(v) for k, v in update.tensors.items() if k.endswith("num_batches_tracked")}
    assert counters == {update.steps}


def test_a_network_that_fails_in_the_second_pass_has_its_weights_back(view) -> None:
    """The error comes through, and nothing of the perturbation is left."""
    net = nn.Linear(1, 1, bias=False)
    before = net.weight.item()

    def fail():
        raise RuntimeError("out of memory")

    site = with_loss(view("A", model=net), fail)
    harmofl(0.5, "off").parts[0].bind(site)
    net.weight.square().sum().backward()

    with pytest.raises(RuntimeError, match="out of memory"):
        site.stages["perturb"]()
    assert net.weight.item() == before


def test_perturbation_alone_trains_vectors_and_is_not_fedavg(sources) -> None:
    """ABIDE's kind of data."""
    settings = Settings(rounds=2, **LAST)
    plain, sharp = (
        simulate(parse_method(text), sources, settings).last for text in ("fedavg", "harmofl:alpha=0.5,amplitude=off")
    )

    assert all(value.isfinite().all() for value in sharp.values() if value.is_floating_point())
    assert not all(torch.equal(plain[key], sharp[key]) for key in plain)
