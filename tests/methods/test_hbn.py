from contextlib import nullcontext

import pytest
import torch
from laws import difference
from torch import nn

from monai_fedskew.core import Broadcast, compose
from monai_fedskew.core.state import restore
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedalign, fedbn, fixbn, hbn, silobn
from monai_fedskew.methods.adapted import adapted_network
from monai_fedskew.networks.hybrid_norm import HybridNorm

LAST = {"choose": "last"}


@pytest.fixture
def view(view):
    """Sites of the shared kind with the replay that measuring needs."""

    class View(view):
        def replay(self, part):
            return nullcontext()

    return View


def scaled(weight: float) -> nn.Sequential:
    """A network of one weight and a batch norm."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    nn.init.constant_(net[0].weight, weight)
    return net


def measured(view, method, batches):
    """The layer after a round on these batches, of which the second meets a weight of 5 instead of 1."""
    part = method.parts[0]
    batches = [torch.tensor(batch).view(-1, 1) for batch in batches]
    site = view("A", batches, part.adapt(scaled(1.0), 0))
    bound = part.bind(site)
    bound.receive(Broadcast(1, {}))
    for batch in batches:
        site.batch("mix", batch)
        nn.init.constant_(site.model[0].weight, 5.0)  # a local step
    bound.end_round()
    return site.model[1]


def test_measures_with_the_network_received_by_hand(view) -> None:
    """Batches (0, 2) and (4, 6) at weight 1, though the second comes after a step: m = 3, v = (9 + 1 + 1 + 9) / 4 = 5.

    With the weight of 5 that the second batch trains with, m would be 13.
    """
    norm = measured(view, hbn(), [[0.0, 2.0], [4.0, 6.0]])

    assert norm.mean.item() == 3.0
    assert norm.variance().item() == pytest.approx(5.0)


def test_measures_every_example_once(view) -> None:
    """Batches of unequal size count by their examples; a second local epoch adds nothing."""
    part = hbn().parts[0]
    site = view("A", [torch.tensor([[0.0], [3.0], [3.0]]), torch.tensor([[6.0]])], part.adapt(scaled(1.0), 0))
    bound = part.bind(site)
    bound.receive(Broadcast(1, {}))
    for batch in [*site.batches, torch.tensor([[1000.0]])]:
        site.batch("mix", batch)
    bound.end_round()

    assert site.model[1].mean.item() == pytest.approx(3.0)
    assert site.model[1].variance().item() == pytest.approx(4.5)


def test_official_measures_mixed_statistics_of_one_batch_by_hand(view) -> None:
    """Batch (0, 2), m_B = 1, v_B = 1, known m = 3, v = 5: mixed at 1/2 they are 2 and 3; the batch (4, 6) is left."""
    part = hbn(variant="official").parts[0]
    site = view("A", [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])], part.adapt(scaled(1.0), 0))
    site.model[1].observe(torch.tensor([3.0]), torch.tensor([5.0]), 1.0)
    bound = part.bind(site)
    bound.receive(Broadcast(1, {}))
    for batch in site.batches:
        site.batch("mix", batch)
    bound.end_round()

    assert site.model[1].mean.item() == pytest.approx(2.0)
    assert site.model[1].variance().item() == pytest.approx(3.0)


def test_measuring_changes_nothing_that_trains(view) -> None:
    """The batch goes on as it was, weights have no gradient, and no hook is left."""
    part = hbn().parts[0]
    site = view("A", [torch.ones(4, 1)], part.adapt(scaled(1.0), 0))
    bound = part.bind(site)
    bound.receive(Broadcast(1, {}))

    assert torch.equal(site.batch("mix", site.batches[0]), site.batches[0])
    assert all(value.grad is None for value in site.model.parameters())
    assert not site.model[1]._forward_pre_hooks


def test_federation_knows_the_statistics_of_all_examples(sources) -> None:
    """After round 1 the first layer has mean and variance of all sites' training examples under the first weights."""
    outcome = simulate(hbn(), sources, Settings(rounds=1, **LAST))
    sites = [source.open(hbn().parts) for source in sources.values()]
    linear = sites[0].model[0]
    values = torch.cat([linear(batch) for site in sites for batch in site.examples()])

    net = sites[0].model
    restore(net, outcome.cast.tensors)

    torch.testing.assert_close(net[1].mean, values.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[1].variance(), values.var(0, correction=0), rtol=1e-4, atol=1e-5)
    within = sum(len(b) * linear(b).var(0, correction=0) for s in sites for b in s.examples()) / len(values)
    assert not torch.allclose(net[1].variance(), within, rtol=1e-2)  # there is something between the sites


def test_the_factor_stays_at_the_site(sources) -> None:
    """Each site mixes as suits it; evaluation does without."""
    outcome = simulate(hbn(), sources, Settings(rounds=2, **LAST))

    factors = [outcome.private[site]["model/1.mix"] for site in sources]
    assert not any(key.endswith("mix") for key in outcome.cast.tensors)
    assert not torch.equal(factors[0], factors[1])
    assert difference(outcome.last, simulate(hbn(0.5), sources, Settings(rounds=2, **LAST)).last) != ""


def test_images_are_told_apart_in_evaluation(image_sources) -> None:
    """A MONAI ResNet learns, and keeps much of it when it normalises by global statistics alone; chance is 1/2."""
    outcome = simulate(hbn(), image_sources, Settings(rounds=4, **LAST))

    accuracy = [s.metrics["accuracy"] for s in outcome.history.scores if (s.round, s.split) == (4, "validation")]
    assert sum(accuracy) / len(accuracy) > 0.6


@pytest.mark.parametrize("dims", [2, 3])
def test_networks_are_rebuilt_with_the_same_entries(dims) -> None:
    """An exported network adapts to the same keys; batch norms are found by type, instance norms stay."""
    from monai.networks.nets import UNet, resnet18

    for build in (
        lambda: resnet18(spatial_dims=dims, n_input_channels=1, num_classes=2),
        lambda: UNet(dims, 1, 2, (4, 8), (2,), norm="batch"),
    ):
        first, second = (adapted_network(build(), "hbn", 3) for _ in range(2))
        assert list(first.state_dict()) == list(second.state_dict())
        kinds = [type(module) for module in build().modules()]
        replaced = [nn.BatchNorm2d, nn.BatchNorm3d]
        assert [HybridNorm if kind in replaced else kind for kind in kinds] == [type(m) for m in first.modules()]
        assert first(torch.randn(2, 1, *[16] * dims)).shape[:2] == (2, 2)


def test_network_without_batch_norm_is_refused() -> None:
    """Instance norm has nothing to share."""
    with pytest.raises(ConfigError, match="method hbn replaces BatchNorm, and Sequential has none"):
        hbn().parts[0].adapt(nn.Sequential(nn.InstanceNorm2d(1)), 0)


@pytest.mark.parametrize("other", [fedbn, silobn, fixbn])
def test_methods_that_look_for_batch_norm_are_refused(other) -> None:
    """They would silently become FedAvg, in either order."""
    for pair in ((hbn(), other()), (other(), hbn())):
        with pytest.raises(ConfigError, match=f"hbn replaces batch norm .* {other().name} would find no batch norm"):
            compose(*pair)


def test_narrowed_stages_are_refused() -> None:
    """Before a run begins, not in its first step."""
    with pytest.raises(ConfigError, match="fedalign narrows a stage, and hbn's layers"):
        compose(fedalign(), hbn())


@pytest.mark.parametrize("momentum", [0, -1, 1.5, float("nan"), True])
def test_momentum_is_a_share(momentum) -> None:
    """Anything else is refused with the value."""
    with pytest.raises(ConfigError, match=f"method hbn: momentum={momentum!r} must be a number above 0 and at most 1"):
        hbn(momentum)


def test_variant_is_one_of_two() -> None:
    """Anything else is refused with the value."""
    with pytest.raises(ConfigError, match="method hbn: variant='other' must be one of paper, official"):
        hbn(variant="other")
