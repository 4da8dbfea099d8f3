from typing import Any

import pytest
import torch
from monai.networks import nets
from torch import Tensor, nn
from variants import Piece

from monai_fedskew.core import Broadcast, Method, compose
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedalign, parse_method
from monai_fedskew.methods.fedalign import spectral_norm, transmitting_matrix


class Two(nn.Module):
    """A layer, and a last stage of one convolution without bias."""

    def __init__(self, channels: int = 32, dims: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        conv = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.layer1 = nn.Sequential(conv(1, channels, 3, padding=1), nn.ReLU())
        self.layer2 = nn.Sequential(conv(channels, channels, 3, stride=2, padding=1, bias=False), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Mean of each channel of the last map."""
        return self.layer2(self.layer1(x)).flatten(2).mean(2)


def images(*shape: int) -> Tensor:
    """The same numbers every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def total(view, net, x: Tensor, loss: Tensor | None = None, **arguments: Any) -> Tensor:
    """The loss of one step with the term, of a task loss of 0.7 unless another is given."""
    site = view("A", model=net)
    fedalign(**arguments).parts[0].bind(site)
    pred = net(x)
    task = 0.7 + 0 * pred.sum() if loss is None else loss
    return site.stages["add"]({"loss": task, "image": x, "pred": pred})


def test_spectral_norm_by_hand() -> None:
    """X = [[3, 0], [4, 5]]: X X^T = [[9, 12], [12, 41]], eigenvalues (50 +- sqrt(50^2 - 4 * 225)) / 2 = 45 and 5."""
    assert spectral_norm(torch.tensor([[[3.0, 0.0], [4.0, 5.0]]])).item() == pytest.approx(45**0.5, rel=1e-6)


def test_transmitting_matrix_by_hand() -> None:
    """In: (1, 2) and (2, 0), out: (2, 0) and (1, 3): [[2 + 0, 1 + 6], [4 + 0, 2 + 0]] / 2 = [[1, 3.5], [2, 1]]."""
    entering = torch.tensor([[[[1.0, 2.0]], [[2.0, 0.0]]]])
    leaving = torch.tensor([[[[2.0, 0.0]], [[1.0, 3.0]]]])

    assert transmitting_matrix([entering], leaving).tolist() == [[[1.0, 3.5], [2.0, 1.0]]]


@pytest.mark.parametrize("dims", [2, 3])
def test_the_larger_map_is_pooled_to_the_smaller(dims) -> None:
    """The mean over each cell of 2 x 2 (x 2); two inputs are put together; nothing is larger than 16."""
    large, small, output = images(2, 3, *[8] * dims), images(2, 2, *[4] * dims), images(2, 5, *[4] * dims)
    pool = {2: nn.functional.avg_pool2d, 3: nn.functional.avg_pool3d}[dims]

    found = transmitting_matrix([large, small], output)

    entering = torch.cat([pool(large, 2), small], 1).flatten(2)
    torch.testing.assert_close(found, torch.einsum("bip,bop->bio", entering, output.flatten(2)) / 4**dims)
    wide = images(1, 2, *[32] * dims)
    assert torch.allclose(transmitting_matrix([wide], wide), transmitting_matrix([pool(wide, 2)], pool(wide, 2)))


def test_ten_steps_come_near_the_largest_singular_value() -> None:
    """Maps behind a ReLU are not negative, so ones are a good start; the gradient is that of what is computed."""
    matrices = images(6, 12, 20).abs()

    torch.testing.assert_close(spectral_norm(matrices), torch.linalg.matrix_norm(matrices, ord=2), rtol=1e-5, atol=0)
    mixed = images(3, 4, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(spectral_norm, mixed)


def test_a_matrix_of_zeros_has_norm_and_gradient_zero() -> None:
    """Neither 0/0 in the iteration nor the infinite slope of the root, beside a matrix that is alive."""
    matrices = torch.stack([torch.zeros(2, 3), torch.ones(2, 3)]).requires_grad_()

    norms = spectral_norm(matrices)
    norms.sum().backward()

    assert norms[0].item() == 0
    assert matrices.grad[0].abs().max() == 0
    assert matrices.grad.isfinite().all()


@pytest.mark.parametrize("dims", [2, 3])
def test_the_term_is_that_of_the_stage_cut_by_hand(view, dims) -> None:
    """mu (k_S - k_F)^2 with the norms of numpy's kind; it trains the leading weights of the last stage only."""
    net, x = Two(32, dims), images(3, 1, *[8] * dims)

    loss = total(view, net, x, mu=0.3)
    loss.backward()

    entering = net.layer1(x).detach()
    conv = net.layer2[0]
    weight = conv.weight.detach()[:8, :8].clone().requires_grad_()
    run = {2: nn.functional.conv2d, 3: nn.functional.conv3d}[dims]
    narrow = run(entering[:, :8], weight, stride=2, padding=1).relu()
    pool = {2: nn.functional.adaptive_avg_pool2d, 3: nn.functional.adaptive_avg_pool3d}[dims](entering, 4).flatten(2)
    student = torch.linalg.matrix_norm(pool[:, :8] @ narrow.flatten(2).mT / 4**dims, ord=2)
    teacher = torch.linalg.matrix_norm(pool @ net.layer2(entering).detach().flatten(2).mT / 4**dims, ord=2)
    term = 0.3 * ((student - teacher) ** 2).mean()
    torch.testing.assert_close(loss, 0.7 + term, rtol=1e-4, atol=1e-6)
    term.backward()
    torch.testing.assert_close(conv.weight.grad[:8, :8], weight.grad, rtol=1e-3, atol=1e-6)
    assert conv.weight.grad[8:].abs().max() == 0
    assert conv.weight.grad[:, 8:].abs().max() == 0
    assert all(p.grad.abs().max() == 0 for p in net.layer1.parameters())


def test_official_makes_the_term_as_large_as_mu_times_the_loss(view) -> None:
    """The value is 0.7 + 0.45 * 0.7 = 1.015, whatever the features; the gradient is scaled by mu * 0.7 / term."""
    net, x = Two(), images(3, 1, 8, 8)
    paper = total(view, net, x, mu=1.0)
    term = paper.item() - 0.7
    (by_paper,) = torch.autograd.grad(paper, [net.layer2[0].weight])

    official = total(view, net, x, variant="official")
    (by_official,) = torch.autograd.grad(official, [net.layer2[0].weight])

    assert official.item() == pytest.approx(1.015)
    torch.testing.assert_close(by_official, 0.45 * 0.7 / term * by_paper, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("is_dead", [True, False])
def test_features_that_agree_add_nothing(view, variant, is_dead) -> None:
    """Case 13: student equals teacher, task loss 0.7: 0.7 it stays, and every gradient is finite."""
    net = Two()
    with torch.no_grad():
        net.layer1[0].weight[1:], net.layer1[0].bias[:] = 0, 0  # only the first channel is alive, in both
        net.layer1[0].weight[0] = 0
        net.layer1[0].weight[0, 0, 1, 1] = 1
        net.layer2[0].weight.zero_()
        net.layer2[0].weight[0, 0, 1, 1] = 0 if is_dead else 1

    loss = total(view, net, torch.full((2, 1, 8, 8), 2.0), variant=variant)
    loss.backward()

    assert loss.item() == pytest.approx(0.7, abs=1e-7)
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("arguments", [{"mu": 0.0}, {"width": 1.0}])
def test_neutral_settings_attach_nothing(view, arguments) -> None:
    """Nor are the gradients clipped."""
    site = view("A")

    fedalign(**arguments).parts[0].bind(site)

    assert site.stages == {}


def test_the_gradient_is_clipped_at_ten_unless_told_otherwise(view) -> None:
    """A gradient of norm 30 in one of 1024 entries each: 10 after it; none leaves it."""
    for clip, expected in ((10.0, 10.0), (4, 4.0), (None, 30.0)):
        net = Two()
        site = view("A", model=net)
        fedalign(clip=clip).parts[0].bind(site)
        weight = net.layer1[0].weight
        weight.grad = torch.full_like(weight, 30 / weight.numel() ** 0.5)
        site.stages.get("clip", lambda: None)()
        assert weight.grad.norm().item() == pytest.approx(expected, rel=1e-4)


def test_running_statistics_are_those_of_the_full_width(view) -> None:
    """One batch is counted once, and moves the statistics as it does without the term."""
    torch.manual_seed(0)
    net, plain = (nets.ResNet("basic", [1] * 4, [8, 8, 16, 16], 2, 1, num_classes=2) for _ in range(2))
    plain.load_state_dict(net.state_dict())
    x = images(4, 1, 16, 16)

    total(view, net, x).backward()
    plain(x)

    for (key, ours), theirs in zip(net.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs), key


NETWORKS = {
    "resnet": lambda: nets.ResNet("basic", [1] * 4, [8, 8, 16, 32], 3, 1, num_classes=2),
    "bottleneck": lambda: nets.ResNet("bottleneck", [1] * 4, [4, 4, 8, 8], 2, 1, num_classes=2),
    "basicunet": lambda: nets.BasicUNet(2, 1, 2, (32, 32, 32, 32, 32, 32)),
    "unet": lambda: nets.UNet(2, 1, 2, (32, 32, 64), (2, 2), num_res_units=1),
    "dynunet": lambda: nets.DynUNet(2, 1, 2, [3] * 4, [1, 2, 2, 2], [2] * 3, [32, 32, 32, 32]),
    "segresnet": lambda: nets.SegResNet(2, 32, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    "vnet": lambda: nets.VNet(2, 1, 2),
    "attentionunet": lambda: nets.AttentionUnet(2, 1, 2, (32, 32, 32), (2, 2)),
    "densenet": lambda: nets.DenseNet(2, 1, 2, init_features=16, growth_rate=16, block_config=(1, 1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_monai_take_the_term(view, name) -> None:
    """A term above 0, finite gradients, and some of them in the last stage."""
    net = NETWORKS[name]()
    x = images(2, 1, *[32 if name == "basicunet" else 16] * (3 if name == "resnet" else 2))

    loss = total(view, net, x)
    loss.backward()

    assert loss.item() > 0.7
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    assert all(grad.isfinite().all() for grad in grads)
    assert any(grad.abs().max() > 0 for grad in grads)


def test_a_stage_that_is_not_known_is_named(view) -> None:
    """A CIFAR ResNet ends at layer3 by itself; any other module is taken by its name."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    with pytest.raises(ConfigError, match="Sequential has no known last stage; name it: fedalign:stage=layer3"):
        total(view, net, images(2, 1, 8, 8))
    assert total(view, net, images(2, 1, 8, 8), stage="2").item() > 0.7
    assert parse_method("fedalign:stage=layer3").parts[0].stage == "layer3"


def test_what_cannot_be_aligned_is_refused(view) -> None:
    """Vectors, a stage of 8 channels, one that gives no map: with site and reason."""
    with pytest.raises(ConfigError, match="site A: fedalign needs a network with convolutions"):
        fedalign().parts[0].bind(view("A", model=nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match=r"site A: fedalign: stage layer2 has 8 channels at most and keeps all of"):
        total(view, Two(8), images(2, 1, 8, 8))
    vectors = nn.Sequential(nn.Sequential(nn.Conv2d(1, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    with pytest.raises(
        ConfigError, match=r"site A: fedalign: a stage takes and gives maps \(B, C, \.\.\.\); name another"
    ):
        total(view, vectors, images(2, 1, 8, 8), stage="0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mu": -1}, "method fedalign: mu=-1 must be a finite number of at least 0"),
        ({"width": 0}, "method fedalign: width=0 must be a number above 0 and at most 1"),
        ({"width": 1.5}, r"method fedalign: width=1\.5 must be a number above 0"),
        ({"clip": 0}, "method fedalign: clip=0 must be a finite number above 0"),
        ({"variant": "code"}, "method fedalign: variant='code' must be one of paper, official"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message) -> None:
    """The value seen and what to do."""
    with pytest.raises(ConfigError, match=message):
        fedalign(**arguments)


def test_other_passes_through_the_network_are_told_apart(view) -> None:
    """Passes before and after the batch's own, in training mode and with gradient, leave the term alone."""
    net, x, other = Two(), images(3, 1, 8, 8), 9 * images(3, 1, 8, 8)
    alone = total(view, net, x)
    site = view("A", model=net)
    fedalign().parts[0].bind(site)

    for _ in range(2):
        before, pred, after = net(other), net(x), net(other)
        assert torch.equal(site.stages["add"]({"loss": torch.tensor(0.7), "pred": pred}), alone)
        assert len({id(value) for value in (before, pred, after)}) == 3
    net.eval()(x)
    with pytest.raises(RoundError, match="site A: fedalign saw no pass through layer2 that gave these predictions"):
        site.stages["add"]({"loss": torch.tensor(0.7), "pred": pred})


def test_a_mixed_precision_pass_is_measured_in_full(view) -> None:
    """Maps of half the precision give the norms of single precision, near those of the exact pass."""
    net, x = Two(), images(3, 1, 8, 8)
    exact = total(view, net, x)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = total(view, net, x)

    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.05)


def test_the_loss_of_a_batch_can_be_asked_for_again(image_sources) -> None:
    """What perturbs weights computes the whole loss twice: with the same weights it is the same."""
    seen: list[float] = []

    def keep(output):
        seen.append(output["loss"].item())
        return output["loss"]

    def again():
        with client.site.replay(part):
            client.site.loss()

    part = Piece("zz", ("add", "perturb"), (("add", keep), ("perturb", again)))
    method = compose(fedalign(), Method("again", parts=(part,)))
    client = Client(method, image_sources["A"], Settings(rounds=1))
    client.fit(Broadcast(1, {key: value.clone() for key, value in client.site.model.state_dict().items()}, {}))

    assert len(seen) > 2
    assert seen[::2] == pytest.approx(seen[1::2], rel=1e-5)


@pytest.mark.parametrize("other", ["moon:dim=8", "stochdepth:keep=0.5", "mixup", "gradaug", "fedbn"])
def test_it_composes(image_sources, other) -> None:
    """One round with another method at work in the same passes."""
    outcome = simulate(parse_method(f"fedalign+{other}"), {"A": image_sources["A"]}, Settings(rounds=1, choose="last"))

    assert all(value.isfinite().all() for value in outcome.last.values())
    assert not [event for event in outcome.history.events if event.kind != "trained"]
