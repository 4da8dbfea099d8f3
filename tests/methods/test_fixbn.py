import copy
import types

import pytest
import torch
from laws import assert_same, difference
from torch import nn

from monai_fedskew.core import Broadcast, compose
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedavg, fedbn, fixbn, local, silobn

LAST = {"choose": "last"}


def norm_of(mean: float, variance: float) -> nn.BatchNorm1d:
    """A batch norm of one channel with these running statistics."""
    norm = nn.BatchNorm1d(1, eps=1e-12)
    nn.init.constant_(norm.running_mean, mean)
    nn.init.constant_(norm.running_var, variance)
    return norm


def in_round(view, net, round, warmup=1):
    """The network in a round, in training mode."""
    fixbn(warmup).parts[0].bind(view("A", model=net)).receive(Broadcast(round, {}))
    return net.train()


def test_normalises_by_the_running_statistics_by_hand(view) -> None:
    """Running mean 2, variance 4: (2, 6) -> ((2-2)/2, (6-2)/2) = (0, 2); the batch's own, 4 and 4, give (-1, 1)."""
    batch = torch.tensor([[2.0], [6.0]])

    frozen, free = in_round(view, norm_of(2, 4), round=2), in_round(view, norm_of(2, 4), round=1)

    assert frozen(batch).flatten().tolist() == pytest.approx([0.0, 2.0])
    assert free(batch).flatten().tolist() == pytest.approx([-1.0, 1.0])


def test_statistics_stay_and_the_affine_pair_trains(view) -> None:
    """Each step calls train(), as MONAI's trainer does; mean, variance and counter stay, scale and shift move."""
    net = in_round(view, norm_of(2, 4), round=2)
    before = {key: value.clone() for key, value in net.state_dict().items()}

    for _ in range(2):
        net.train()
        net(torch.tensor([[2.0], [6.0], [7.0]])).square().sum().backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()

    after = net.state_dict()
    assert {key for key in after if not torch.equal(after[key], before[key])} == {"weight", "bias"}


def test_modes_are_those_of_the_network_between_passes(view) -> None:
    """What looks at a layer after a pass, even one that failed, finds it in training."""
    net = in_round(view, norm_of(2, 4), round=2)

    net(torch.zeros(2, 1))
    assert net.training
    with pytest.raises(RuntimeError):
        net(torch.zeros(2, 3))
    assert net.training


def test_holds_in_extra_passes(view) -> None:
    """A replay turns the tracking of statistics off; they are used all the same, and not the batch's."""
    net = in_round(view, norm_of(2, 4), round=2)
    net.track_running_stats = False

    assert net(torch.tensor([[2.0], [6.0]])).flatten().tolist() == pytest.approx([0.0, 2.0])


def test_warmup_attaches_nothing_and_a_late_site_freezes_at_once(view) -> None:
    """The round of the broadcast decides, so that a rebuilt site equals a kept one."""
    net = norm_of(2, 4)
    bound = fixbn(3).parts[0].bind(view("A", model=net))

    for round, hooks in ((3, 0), (4, 1), (4, 1), (3, 0), (9, 1)):
        bound.receive(Broadcast(round, {}))
        assert len(net._forward_pre_hooks) == len(net._forward_hooks) == hooks, round


def test_a_copy_of_the_network_takes_no_site_along(view) -> None:
    """Other parts copy the network with its hooks: plain functions, which are not copied deeply."""
    net = in_round(view, norm_of(2, 4), round=2)

    copied = copy.deepcopy(net)

    assert all(isinstance(hook, types.FunctionType) for hook in copied._forward_pre_hooks.values())
    assert copied(torch.tensor([[2.0], [6.0]])).flatten().tolist() == pytest.approx([0.0, 2.0])


def test_as_many_rounds_as_the_run_has_are_fedavg(sources) -> None:
    """The law: a warm-up that never ends changes no bit; one that ends a round earlier does."""
    settings = Settings(rounds=3, **LAST)
    reference = simulate(fedavg(), sources, settings)

    assert_same(simulate(fixbn(3), sources, settings), reference)
    assert difference(simulate(fixbn(2), sources, settings).last, reference.last) != ""


def test_statistics_of_a_federation_are_those_of_the_last_warmup_round(sources) -> None:
    """Two rounds on, all running statistics are bit for bit those after round 1, at the server and at the sites."""
    first, third = (simulate(fixbn(1), sources, Settings(rounds=r, **LAST)).last for r in (1, 3))
    statistics = [key for key in first if "running" in key or "tracked" in key]

    assert statistics
    assert all(torch.equal(first[key], third[key]) for key in statistics)
    assert not torch.equal(first["tensors/1.weight"], third["tensors/1.weight"])


def test_a_site_that_joins_late_trains_on_the_servers_statistics(sources) -> None:
    """Its first update, after the warm-up, carries the statistics it received."""
    settings = Settings(rounds=3, **LAST)
    built = fixbn(1)
    server, first = Server(built, settings), Client(built, sources["A"], settings)
    server.open([first.survey()])
    server.absorb([first.fit(server.cast())])
    late = Client(built, sources["B"], settings)
    server.open([late.survey()])

    cast = server.cast()
    update = late.fit(cast)

    assert torch.equal(update.tensors["1.running_mean"], cast.tensors["1.running_mean"])
    assert not torch.equal(update.tensors["1.weight"], cast.tensors["1.weight"])


def test_network_without_batch_norm_is_refused(view) -> None:
    """Nothing to freeze; a batch norm that keeps no statistics has none either."""
    for net in (nn.Linear(1, 1), nn.BatchNorm1d(1, track_running_stats=False), nn.InstanceNorm1d(1, affine=True)):
        with pytest.raises(ConfigError, match="site A: fixbn freezes running statistics of BatchNorm, and .* has none"):
            fixbn().parts[0].bind(view("A", model=net))


@pytest.mark.parametrize("other", [fedbn, silobn, local])
def test_methods_that_keep_statistics_at_the_site_are_refused(other) -> None:
    """Frozen statistics must be those of all sites; the order does not matter."""
    for pair in ((fixbn(), other()), (other(), fixbn())):
        with pytest.raises(ConfigError, match=f"fixbn freezes .* and {other().name} keeps them at the site"):
            compose(*pair)


@pytest.mark.parametrize("warmup", [-1, 1.5, True, "2"])
def test_warmup_is_a_whole_number(warmup) -> None:
    """Anything else is refused with the value."""
    with pytest.raises(ConfigError, match=f"method fixbn: warmup={warmup!r} must be a whole number, 0 or more"):
        fixbn(warmup)
