import copy

import pytest
import torch
from monai.networks.nets import BasicUNet, DenseNet, UNet, VNet
from small_nets import built, flops, image, resnet, whole
from torch import nn

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.channels import channels_kept
from monai_fedskew.networks.narrow import Narrowed


@pytest.mark.parametrize(
    ("channels", "width", "kept"),
    [
        (64, 0.25, 16),
        (16, 0.25, 8),
        (3, 0.25, 3),
        (64, 0.8, 48),
        (44, 0.25, 16),
        (512, 1, 512),
        (20, 0.9, 20),
        (7, 1, 7),
    ],
)
def test_channels_kept(channels, width, kept) -> None:
    """44 * 0.25 = 11 would round to 8, which loses 27 %: 8 more. 20 * 0.9 = 18, 16 loses 11 %: 24, but there are 20."""
    assert channels_kept(channels, width) == kept


def test_half_width_by_hand() -> None:
    """Every weight 1: x = 3 spreads to 16 channels of 3, which add up to 48; to 8 of 16 channels, 24."""
    net = nn.Sequential(nn.Linear(1, 16, bias=False), nn.Linear(16, 1, bias=False))
    for p in net.parameters():
        nn.init.ones_(p)
    x = torch.tensor([[3.0]])

    assert net(x).item() == 48
    assert whole(net, 0.5, x)(x).item() == 24


def test_full_width_is_the_network() -> None:
    """Width 1 in training mode, where the statistics are those of the batch."""
    net, x = built(resnet), image()

    assert torch.allclose(whole(net, 1.0, x)(x), net(x))


@pytest.mark.parametrize("dims", [2, 3])
def test_a_stage_takes_and_gives_leading_channels(dims) -> None:
    """layer4 of a ResNet at 1/4: 8 of 32 channels in, 8 of 32 out; gradients in the leading slices only."""
    net = built(lambda: resnet(dims))
    x = torch.randn(2, 32, *[8] * dims, dtype=torch.float64)
    stage = Narrowed(net.layer4, 0.25, (x,), narrow_inputs=True, keep_outputs=False)

    out = stage(x)
    out.sum().backward()

    assert torch.equal(out, stage(torch.cat([x[:, :8], torch.randn_like(x[:, 8:])], 1)))
    assert out.shape[:2] == (2, 8)
    grad = net.layer4[0].conv1.weight.grad
    assert grad[:8, :8].any()
    assert not grad[8:].any()
    assert not grad[:, 8:].any()


def test_each_input_of_a_decoder_is_cut_for_itself() -> None:
    """upcat_1 joins a skip map of 16 channels and an upsampled one: 8 of each, not the first half of both together."""
    net = built(lambda: BasicUNet(2, 1, 2, (16, 16, 32, 32, 32, 16), norm="batch"))
    low, skip = torch.randn(2, 16, 4, 4, dtype=torch.float64), torch.randn(2, 16, 8, 8, dtype=torch.float64)
    stage = Narrowed(net.upcat_1, 0.5, (low, skip), narrow_inputs=True, keep_outputs=False)

    stage(low, skip).sum().backward()

    used = net.upcat_1.convs.conv_0.conv.weight.grad.flatten(2).abs().sum((0, 2)) > 0
    assert used.nonzero().flatten().tolist() == [*range(8), *range(16, 24)]


def test_flattened_maps_reach_their_own_features() -> None:
    """8 of 16 channels of 2 x 2 are features 0 to 31 of 64."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Flatten(), nn.Linear(64, 2)).double()
    x = image(size=4)

    whole(net, 0.5, x)(x).sum().backward()

    assert (net[2].weight.grad[0] != 0).nonzero().flatten().tolist() == list(range(32))


def test_outputs_made_by_several_layers_stay_whole() -> None:
    """A residual unit of 12 classes at the end, and two layers whose outputs are added: no class is lost."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.a, self.b = nn.Conv2d(1, 16, 1), nn.Conv2d(16, 12, 1), nn.Conv2d(16, 12, 1)

        def forward(self, x):
            x = self.first(x)
            return self.a(x) + self.b(x)

    x = image().float()

    for net in (UNet(2, 1, 12, (16, 32), (2,), num_res_units=2), Sum()):
        out = whole(net, 0.5, x)(x)
        assert out.shape == net(x).shape
        assert flops(whole(net, 0.5, x), x) < 0.75 * flops(net, x)


def test_groups_that_are_left_in_part_are_dropped() -> None:
    """Four groups of 10 channels, 24 of 40 left: two whole groups, the four channels more are cut off."""
    net = nn.Sequential(nn.Conv2d(1, 40, 1), nn.ReLU(), nn.Conv2d(40, 8, 1, groups=4), nn.ReLU(), nn.Conv2d(8, 2, 1))
    net, x = net.double(), image()

    whole(net, 0.6, x)(x).sum().backward()

    filters = net[2].weight.grad.flatten(1).abs().sum(1) > 0
    assert filters[:4].any()
    assert not filters[4:].any()
    assert net[0].weight.grad[:20].any()
    assert not net[0].weight.grad[20:].any()


def test_group_norm_keeps_whole_groups() -> None:
    """Four groups of 8 channels: 24 channels left at 0.8 are three of them."""
    net = nn.Sequential(nn.Conv2d(1, 32, 1), nn.GroupNorm(4, 32), nn.Conv2d(32, 2, 1)).double()
    x = image()
    body = nn.functional.group_norm(net[0](x)[:, :24], 3)

    assert torch.allclose(whole(net, 0.8, x)(x), nn.functional.conv2d(body, net[2].weight[:, :24], net[2].bias))


def test_group_norm_with_a_group_cut_in_two_has_smaller_groups() -> None:
    """Two groups of 32, 48 of 64 channels left: two groups of 24."""
    net = nn.Sequential(nn.Conv2d(1, 64, 1), nn.GroupNorm(2, 64), nn.Conv2d(64, 2, 1)).double()
    x = image()
    body = nn.functional.group_norm(net[0](x)[:, :48], 2)

    assert torch.allclose(whole(net, 0.75, x)(x), nn.functional.conv2d(body, net[2].weight[:, :48], net[2].bias))


def test_statistics_are_the_batchs_and_none_are_kept() -> None:
    """Even in training mode, and in evaluation mode too; hooks of the network do not run."""
    net, x = built(resnet), image()
    seen = []
    net.bn1.register_forward_hook(lambda *_: seen.append(1))
    before = copy.deepcopy(net.state_dict())
    narrow = whole(net, 0.5, x)

    training = narrow(x)
    net.eval()
    evaluation = narrow(x)

    assert torch.equal(training, evaluation)
    assert seen == []
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_follows_the_parameters() -> None:
    """After an optimizer step, after weights are loaded in place, and in another precision and mode."""
    net, x = built(resnet), image()
    narrow = whole(net, 0.5, x)
    first = narrow(x)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    first.sum().backward()

    optimizer.step()
    assert not torch.allclose(narrow(x), first)
    other = built(resnet, seed=7)
    net.load_state_dict(other.state_dict())
    assert torch.allclose(narrow(x), whole(other, 0.5, x)(x))
    net.float()
    assert narrow(x.float()).dtype == torch.float32


def test_dropout_follows_the_mode() -> None:
    """Drawn in training mode, absent in evaluation mode."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16 * 14 * 14, 2)).double()
    x = image()
    narrow = whole(net, 0.5, x)

    assert not torch.equal(narrow(x), narrow(x))
    net.eval()
    assert torch.equal(narrow(x), narrow(x))


def test_building_leaves_no_trace() -> None:
    """No random number is taken, no mode, gradient or statistic changes; what hooks refer to is not copied."""
    net, x = built(lambda: DenseNet(2, 1, 3, 16, 16, (2, 2))), image()
    generator = (value for value in ())  # cannot be copied
    net.features.conv0.register_forward_hook(lambda *_: generator)
    net.features.conv0.register_forward_pre_hook(_Keeper(generator).call)
    state, before = torch.get_rng_state(), copy.deepcopy(net.state_dict())
    modes = [module.training for module in net.modules()]

    whole(net, 0.5, x)

    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


class _Keeper:
    """What a bound hook of a part looks like: it leads to things that are not for copying."""

    def __init__(self, held) -> None:
        self.held = held

    def call(self, *_) -> None:
        """Do nothing."""


def test_a_layer_used_twice_is_narrowed_once() -> None:
    """Alike both times; the same layer on other channels is refused."""
    net = nn.Sequential(nn.Conv2d(1, 16, 1), *[nn.Conv2d(16, 16, 1)] * 2, nn.Conv2d(16, 2, 1)).double()

    assert whole(net, 0.5, image())(image()).shape == (4, 2, 16, 16)
    shared, x = nn.Conv2d(16, 16, 1), torch.randn(2, 16, 4, 4)
    with pytest.raises(ConfigError, match=r"module 0 \(Conv2d\): it is used twice, with other channels"):
        Narrowed(nn.Sequential(shared, shared), 0.5, (x,), narrow_inputs=False, keep_outputs=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: VNet(2, 1, 2), r"VNet at width 0\.25 cannot be built at module in_tr"),
        (lambda: resnet(shortcut="A"), r"ResNet at width 0\.25 cannot be built at module layer2\.0"),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 64, 1), nn.GroupNorm(64, 64), nn.LayerNorm([64, 16, 16])),
            r"module 2 \(LayerNorm\): layers of this type cannot be narrowed",
        ),
        (
            lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 16, 1)), nn.Conv2d(16, 2, 1)),
            r"Sequential at width 0\.25 cannot be built at module 0",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 36, 1), nn.GroupNorm(3, 36), nn.Conv2d(36, 2, 1)),
            r"module 1 \(GroupNorm\): 16 channels are left, which 3 groups do not divide",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 32, 1), nn.Softmax(1), nn.Conv2d(32, 2, 1)),
            r"module 2 \(Conv2d\): no channel of its input is left, or all were mixed before it",
        ),
        (lambda: _Listing(), "the whole of it: it returns a list, not one tensor"),
    ],
)
def test_what_cannot_be_narrowed_is_named(make, message) -> None:
    """Never a wrong sub-network: the layer and the reason."""
    with pytest.raises(ConfigError, match=message):
        whole(make(), 0.25, image().float())


class _Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 1)

    def forward(self, x):
        return [self.conv(x)]


def test_channels_that_meet_in_number_but_not_in_place_are_refused() -> None:
    """(a, b) joined, 8 of 16 each, added to 16 of 32 of c: shapes agree, channels do not."""

    class Crossed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(1, 16, 1), nn.Conv2d(1, 16, 1), nn.Conv2d(1, 32, 1)
            self.out = nn.Conv2d(32, 2, 1)

        def forward(self, x):
            return self.out(torch.cat([self.a(x), self.b(x)], 1) + self.c(x))

    with pytest.raises(ConfigError, match=r"Crossed at width 0\.5 cannot be built at module out .* do not meet"):
        whole(Crossed(), 0.5, image().float())


@pytest.mark.parametrize("width", [0.0, -1.0, 1.5, float("nan")])
def test_wrong_width_is_refused(width) -> None:
    """The value seen."""
    with pytest.raises(ConfigError, match="the width must be above 0 and at most 1"):
        whole(nn.Linear(1, 1), width, torch.zeros(1, 1))
