from contextlib import nullcontext

import pytest
import torch
from monai.networks.nets import UNet, VNet
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from monai_fedskew.core.method import compose
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.methods.fedwon import fedwon
from monai_fedskew.methods.gradaug import divergence, gradaug
from monai_fedskew.methods.hbn import hbn
from monai_fedskew.networks.narrow import Narrowed

SETTINGS = Settings(rounds=2)


def small(channels: int = 64) -> nn.Module:
    """A network that takes images of any size."""
    torch.manual_seed(0)
    body = [nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    body += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


def at(view, net, **parameters):
    """A site with gradaug bound."""
    site = view("A", model=net)
    site.replay = lambda part: nullcontext()
    gradaug(**parameters).parts[0].bind(site)
    return site


def step(site, image, pred=None):
    """The loss of one batch, of which the task's part is 0."""
    site.batch("mix", image)
    pred = site.model(image) if pred is None else pred
    return site.stages["add"]({"loss": torch.tensor(0.0), "image": image, "pred": pred})


def test_divergence_by_hand() -> None:
    """Teacher (ln 3, 0): p = (3/4, 1/4); student (0, 0): q = (1/2, 1/2): 3/4 log 3/2 + 1/4 log 1/2 = 0.1308."""
    teacher = torch.tensor([3.0, 1.0]).log()[None].requires_grad_()
    student = torch.zeros(1, 2, requires_grad=True)

    value = divergence(teacher, student)
    value.backward()

    assert value.item() == pytest.approx(0.75 * torch.tensor(1.5).log().item() - 0.25 * torch.tensor(2.0).log().item())
    assert student.grad[0].tolist() == pytest.approx([-0.25, 0.25])  # q - p
    assert teacher.grad is None


def test_batch_and_voxels_are_averaged() -> None:
    """Two images of 2 x 2 voxels, one voxel of eight wrong: an eighth of its divergence."""
    teacher = torch.zeros(2, 2, 2, 2)
    teacher[0, 0, 0, 0] = torch.tensor(3.0).log()

    value = divergence(teacher, torch.zeros_like(teacher))

    assert value.item() == pytest.approx(divergence(teacher[:1, :, 0, 0], torch.zeros(1, 2)).item() / 8)


def test_one_channel_is_the_logit_of_two_classes() -> None:
    """A sigmoid output has the divergence of (0, z), not 0."""
    z, other = torch.tensor([[1.0], [-2.0]]), torch.tensor([[0.5], [0.5]])
    two = [torch.cat([torch.zeros(2, 1), value], 1) for value in (z, other)]

    assert divergence(z, other).item() == pytest.approx(divergence(*two).item())
    assert divergence(z, other) > 0


def test_term_by_hand(view) -> None:
    """n = 1, resolution 1: mu KL(full || narrow), the narrow network on the image as it is."""
    net, image = small(), torch.randn(4, 1, 8, 8)
    site = at(view, net, mu=2.0, n=1, resolution=1.0)
    narrow = Narrowed(net, 0.8, (image,), narrow_inputs=False, keep_outputs=True)

    value = step(site, image)

    assert value.item() == pytest.approx(2 * divergence(net(image), narrow(image)).item(), rel=1e-5)
    assert value.item() > 0


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_first_width_is_the_smallest_and_others_are_drawn(view, n) -> None:
    """f_1 at 0.8 always, f_2 .. f_n between 0.8 and 1, each at one of the four resolutions."""
    site = at(view, small(), n=n)
    draws = []
    for _ in range(40):
        site.batch("mix", torch.randn(2, 1, 8, 8))
        draws.append(list(site.stages["add"].__self__._drawn))

    assert all(len(draw) == n and draw[0][0] == 0.8 for draw in draws)
    assert all(0.8 <= width <= 1 for draw in draws for width, _ in draw)
    assert {round(resolution * 32) for draw in draws for _, resolution in draw} == {20, 24, 28, 32}
    if n > 1:
        assert 3 < len({draw[1][0] for draw in draws}) <= 8  # steps of 1/32, so that few networks are built


def test_the_same_batch_gives_the_same_loss_again(view) -> None:
    """The loss may be computed twice in a step; the draw is made once."""
    site, image = at(view, small()), torch.randn(2, 1, 8, 8)

    first = step(site, image)
    pred = site.model(image)
    again = site.stages["add"]({"loss": torch.tensor(0.0), "image": image, "pred": pred})

    assert first.item() == pytest.approx(again.item(), rel=1e-5)


def test_gradient_reaches_leading_weights_only_and_statistics_stay(view) -> None:
    """64 channels at 0.8 are 48 (51.2 rounded to eights): filters 48 and on get no gradient from f_1."""
    net, image = small(), torch.randn(4, 1, 8, 8)
    site = at(view, net, n=1)
    with torch.no_grad():
        pred = net(image)
    before = net[1].running_mean.clone()

    step(site, image, pred).backward()

    moved = net[0].weight.grad.flatten(1).abs().sum(1) > 0
    assert moved[:48].all()
    assert not moved[48:].any()
    assert torch.equal(net[1].running_mean, before)


def test_flattened_maps_see_the_image_at_its_size(view) -> None:
    """A linear layer on 8 x 8 maps cannot take 5 x 5: the image is resized there and back."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 3))
    site, image = at(view, net, n=4), torch.randn(2, 1, 8, 8)

    for _ in range(8):
        value = step(site, image)

    assert value.isfinite()
    assert set(site.stages["add"].__self__._fits.values()) == {False}


@pytest.mark.parametrize("dims", [2, 3])
def test_segmentation_compares_voxels(view, dims) -> None:
    """A UNet of two halvings takes 12 of 16 voxels, and 14 and 10 only resized back."""
    torch.manual_seed(0)
    net = UNet(dims, 1, 2, (8, 16, 32), (2, 2), norm="batch")
    site, image = at(view, net, n=4), torch.randn(2, 1, *[16] * dims)

    for _ in range(8):
        value = step(site, image)
    value.backward()

    fits = {key[-1]: fits for key, fits in site.stages["add"].__self__._fits.items()}
    assert value.item() > 0
    assert fits == {14: False, 12: True, 10: False}


def test_about_twice_the_work_of_fedavg(view) -> None:
    """n = 2 at 0.8, mean over 20 batches of 32 x 32: between 1.6 and 2.3 of the whole network's forward pass."""
    net, image = small(), torch.randn(2, 1, 32, 32)
    site = at(view, net)
    for _ in range(16):  # build all sub-networks first: that is not a cost of each batch
        step(site, image)

    with FlopCounterMode(display=False) as whole:
        net(image)
    with FlopCounterMode(display=False) as total:
        for _ in range(20):
            step(site, image)

    assert 1.6 < total.get_total_flops() / 20 / whole.get_total_flops() < 2.3


def test_mu_zero_attaches_nothing(view) -> None:
    """FedAvg bit for bit, at no cost, on vectors too."""
    site = view("A")

    gradaug(mu=0).parts[0].bind(site)

    assert site.stages == {}


def test_vectors_are_refused(view) -> None:
    """Without convolutions there are no channels of maps and no resolution."""
    with pytest.raises(ConfigError, match="site A: gradaug needs a network with convolutions"):
        at(view, nn.Linear(3, 2))


def test_a_network_that_cannot_be_narrowed_is_named(view) -> None:
    """VNet repeats the image over all channels of its first layer; at 1/4 there are fewer."""
    site = at(view, VNet(2, 1, 2), n=1, width=0.25)

    with pytest.raises(ConfigError, match=r"site A: gradaug: VNet at width 0\.25 cannot be built at module in_tr"):
        step(site, torch.randn(2, 1, 16, 16))


def test_several_outputs_are_refused(view) -> None:
    """Deep supervision gives a list."""
    site, image = at(view, small()), torch.randn(2, 1, 8, 8)

    with pytest.raises(ConfigError, match="site A: gradaug compares one tensor of logits .* gives a list"):
        step(site, image, [torch.zeros(2, 3)])


@pytest.mark.parametrize("other", [fedwon, hbn])
def test_methods_without_plain_norm_are_refused(other) -> None:
    """Both orders, before anything is built."""
    for pair in ((gradaug(), other()), (other(), gradaug())):
        with pytest.raises(ConfigError, match="sub-networks of gradaug"):
            compose(*pair)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mu": -1.0}, r"method gradaug: mu=-1\.0 must be a finite number of at least 0"),
        ({"n": 0}, "method gradaug: n=0 must be a whole number, 1 or more"),
        ({"width": 0.0}, r"method gradaug: width=0\.0 must be a number above 0 and at most 1"),
        ({"width": 1.5}, r"method gradaug: width=1\.5 must be a number above 0 and at most 1"),
        ({"resolution": float("nan")}, "method gradaug: resolution=nan must be a number above 0 and at most 1"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message) -> None:
    """The value seen and what to do."""
    with pytest.raises(ConfigError, match=message):
        gradaug(**arguments)


def test_composes_with_fedbn_and_mixup(image_sources) -> None:
    """The mixed image is what the sub-networks see."""
    outcome = simulate(parse_method("gradaug:n=1+fedbn+mixup"), image_sources, SETTINGS)

    assert all(value.isfinite().all() for value in outcome.last.values())
