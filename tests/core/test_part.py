"""Part and Bound: defaults that do nothing, and networks changed alike at all sites."""

import inspect
from dataclasses import dataclass

import torch
from torch import nn
from variants import Piece

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.part import EXCLUSIVE, STAGES, Bound, Part, SiteView, adapt_network
from monai_fedskew.sites.site import Site


@dataclass(frozen=True)
class _Head(Piece):
    """Adds a layer behind the network."""

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        return nn.Sequential(model, nn.Linear(2, 2))


def test_a_bare_part_does_nothing() -> None:
    """All of it is optional."""
    part, memory, net = Piece("p"), {"x": torch.ones(1)}, nn.Linear(2, 2)
    assert part.adapt(net, 0) is net
    assert part.merge(memory, {"A": {"x": torch.zeros(1)}}, 1) is memory
    assert part.tell(memory) is memory
    bound = Bound()
    bound.receive(Broadcast(1, {}))
    bound.restore({})
    assert (bound.survey(), bound.end_round(), bound.private(), bound.deploy()) == ({}, {}, {}, None)


def test_exclusive_stages_are_stages() -> None:
    """The two tables agree."""
    assert set(EXCLUSIVE) < set(STAGES)
    assert len(set(STAGES)) == len(STAGES)


def test_a_network_is_changed_alike_whatever_was_drawn_before() -> None:
    """First weights of an added layer depend on seed and part only, so all sites get the same."""
    layers = []
    for before in (1, 2):
        torch.manual_seed(before)
        layers.append(adapt_network(nn.Linear(2, 2), [_Head("head")], 0)[1].weight)
    assert torch.equal(*layers)
    other_seed = adapt_network(nn.Linear(2, 2), [_Head("head")], 1)[1].weight
    other_part = adapt_network(nn.Linear(2, 2), [_Head("neck")], 0)[1].weight
    assert not torch.equal(layers[0], other_seed)
    assert not torch.equal(layers[0], other_part)


def test_each_part_has_a_seed_of_its_own() -> None:
    """A part in front does not change what the next one draws."""
    alone = adapt_network(nn.Linear(2, 2), [_Head("b")], 0)
    both = adapt_network(nn.Linear(2, 2), [_Head("a"), _Head("b")], 0)
    assert torch.equal(alone[1].weight, both[1].weight)


def test_a_site_offers_what_a_part_may_see() -> None:
    """Every name of SiteView is one of Site."""
    methods = [name for name, value in vars(SiteView).items() if inspect.isfunction(value) and name[0] != "_"]
    assert {"add", "loss", "examples", "replay"} <= set(methods)
    for name in methods:
        theirs = inspect.signature(getattr(Site, name)).parameters
        assert list(theirs) == list(inspect.signature(getattr(SiteView, name)).parameters), name
    assert issubclass(_Head, Part)
