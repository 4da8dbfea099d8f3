import pytest
import torch
from torch import nn

from monai_fedskew.core import Broadcast, all_keys, except_modules, snapshot
from monai_fedskew.methods import fedprox


def scalar(value: float) -> nn.Linear:
    """A network of one weight."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


def started(view, net, mu, *, variant="paper", round=2, keys=None):
    """A site at the start of a round, the network as received."""
    site = view("A", model=net)
    bound = fedprox(mu, variant).parts[0].bind(site)
    bound.receive(Broadcast(round, snapshot(net, net.state_dict() if keys is None else keys)))
    return site


def test_term_and_gradient_by_hand(view) -> None:
    """Case 10: w_g = 1, w = 3, mu = 0.5: term 0.5/2 * (3-1)^2 = 1, gradient 0.5 * 2 = 1, one step of 0.1: 2.9."""
    net = scalar(1.0)
    site = started(view, net, 0.5)
    nn.init.constant_(net.weight, 3.0)  # local steps; the anchor must not follow

    loss = site.stages["add"]({"loss": torch.tensor(0.0)})
    loss.backward()
    site.optimizer.step()

    assert loss.item() == 1.0
    assert net.weight.item() == pytest.approx(2.9)


def test_official_takes_the_norm_without_the_square(view) -> None:
    """w_g = 1, w = 3, mu = 0.5: term 0.5/2 * |3-1| = 0.5, gradient 0.5/2 * sign = 0.25."""
    net = scalar(1.0)
    site = started(view, net, 0.5, variant="official")
    nn.init.constant_(net.weight, 3.0)

    loss = site.stages["add"]({"loss": torch.tensor(0.0)})
    loss.backward()

    assert loss.item() == 0.5
    assert net.weight.grad.item() == 0.25


def test_official_is_finite_at_the_anchor(view) -> None:
    """At w = w_g the norm has no gradient; 0 is taken, not NaN."""
    net = scalar(1.0)
    site = started(view, net, 0.5, variant="official")

    site.stages["add"]({"loss": torch.tensor(0.0)}).backward()

    assert net.weight.grad.item() == 0.0


def test_official_adds_nothing_in_the_first_round(view) -> None:
    """FedBN's Office script starts with the second round."""
    net = scalar(1.0)
    site = started(view, net, 0.5, variant="official", round=1)
    nn.init.constant_(net.weight, 3.0)
    loss = torch.tensor(0.25)

    assert site.stages["add"]({"loss": loss}) is loss


def test_mu_zero_attaches_nothing(view) -> None:
    """FedAvg bit for bit, at no cost."""
    site = view("A")

    fedprox(0.0).parts[0].bind(site)

    assert site.stages == {}


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_gradient_agrees_with_autograd(view, variant) -> None:
    """The fused backward pass is the derivative of the written formula, on a network of several tensors."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    anchors = [p.detach().clone() for p in net.parameters()]
    site = started(view, net, 0.3, variant=variant)
    for p in net.parameters():
        nn.init.normal_(p)

    (site.stages["add"]({"loss": torch.zeros((), dtype=torch.float64)}) * 3).backward()

    squares = sum((p - a).square().sum() for p, a in zip(net.parameters(), anchors, strict=True))
    expected = torch.autograd.grad(3 * 0.15 * (squares if variant == "paper" else squares.sqrt()), net.parameters())
    assert all(torch.allclose(p.grad, g) for p, g in zip(net.parameters(), expected, strict=True))


def test_term_covers_shared_and_trained_parameters_only(view) -> None:
    """Under FedBN the norm layers have no shared value to be held to; a frozen parameter is not trained."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[0].bias.requires_grad_(False)
    site = started(view, net, 1.0, keys=except_modules()(net))
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)

    loss = site.stages["add"]({"loss": torch.tensor(0.0)})
    loss.backward()

    assert loss.item() == pytest.approx(0.5 * 4)  # the four weights moved by 1: 1/2 * 4
    assert [name for name, p in net.named_parameters() if p.grad is not None] == ["0.weight"]


def test_all_entries_are_shared() -> None:
    """FedProx changes training, not what leaves the site."""
    assert fedprox().share == all_keys()
