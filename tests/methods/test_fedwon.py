from dataclasses import replace

import pytest
import torch
from torch import nn

from monai_fedskew.core import all_keys, compose
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedalign, fedbn, fedwon, fixbn, hbn, silobn
from monai_fedskew.methods.adapted import adapted_network

LAST = {"choose": "last"}
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)


def adapted(*layers: nn.Module, clip: float | None = 1.28, gain: float = 1.0) -> nn.Sequential:
    """A network as fedwon changes it."""
    return fedwon(clip, gain).parts[0].adapt(nn.Sequential(*layers), 0)


def clipped(view, net, clip):
    """Clip the gradients that the network holds."""
    site = view("A", model=net)
    fedwon(clip).parts[0].bind(site)
    site.stages["clip"]()


def test_standardised_weight_by_hand() -> None:
    """W = (1, 3), N = 2, gain 3: mean 2, std 1, so 3 (W - 2) / (1 sqrt(2)) = 3 (-1, 1) / 1.414 = (-2.121, 2.121)."""
    net = adapted(nn.Conv1d(1, 1, 2, bias=False), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(1, 1), gain=3.0)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[[1.0, 3.0]]]))

    out = net[0](torch.eye(2).unsqueeze(1))  # inputs (1, 0) and (0, 1) read the two weights

    assert out.flatten().tolist() == pytest.approx([-2.1213, 2.1213], abs=1e-4)


def test_clipping_by_hand(view) -> None:
    """Row (3, 4), norm 5, clip 1/2: a gradient (6, 8) of norm 10 is held to 2.5: (1.5, 2); one of norm 1 stays.

    A bias of 0 counts as 0.001: its gradient of 1 is held to 0.0005.
    """
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.fill_(0).add_(torch.tensor([[3.0, 4.0], [3.0, 4.0]]))
        net[0].bias.zero_()
    net[0].weight.grad = torch.tensor([[6.0, 8.0], [0.6, 0.8]])
    net[0].bias.grad = torch.tensor([1.0, 0.0])
    net[1].weight.grad = torch.tensor([[1e6, 0.0]])

    clipped(view, net, 0.5)

    torch.testing.assert_close(net[0].weight.grad, torch.tensor([[1.5, 2.0], [0.6, 0.8]]))
    torch.testing.assert_close(net[0].bias.grad, torch.tensor([0.0005, 0.0]))
    assert net[1].weight.grad[0, 0] == 1e6  # the last layer is left alone


@pytest.mark.parametrize("groups", [1, 2])
def test_units_of_a_transposed_convolution_are_its_outputs(view, groups) -> None:
    """Its weight is (inputs, outputs / groups, ...): after clipping, each output's gradient has its weights' norm."""
    conv = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    net = nn.Sequential(conv, nn.Conv2d(6, 1, 1))
    conv.weight.grad = 100 * torch.randn_like(conv.weight)

    clipped(view, net, 1.0)

    for group in range(groups):
        rows = slice(group * 4 // groups, (group + 1) * 4 // groups)
        for output in range(6 // groups):
            norms = [value[rows, output].norm() for value in (conv.weight.grad, conv.weight.detach())]
            torch.testing.assert_close(*norms)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d, nn.Conv1d])
def test_variance_is_kept(kind, groups) -> None:
    """Noise of variance 1 comes out with variance 1, away from the borders, whatever the first weights; mean is 0."""
    conv = kind(8, 6, 4, stride=2, groups=groups)
    nn.init.uniform_(conv.weight, 5, 9)
    dims = conv.weight.ndim - 2
    net = adapted(conv, nn.Conv2d(6, 1, 1))

    out = net[0](torch.randn(16, 8, *[12] * dims))
    inner = out[(..., *[slice(4, -4) if out.shape[-1] > 8 else slice(None)] * dims)]

    assert inner.var().item() == pytest.approx(1, abs=0.2)
    torch.jit.script(net[0])


def test_norms_go_and_biases_come() -> None:
    """Every kind of norm; a convolution without bias gets one of 0; the last layer and single weights stay plain."""
    norms = [nn.BatchNorm2d(4), nn.SyncBatchNorm(4), nn.InstanceNorm2d(4, affine=True), nn.GroupNorm(2, 4)]
    net = adapted(
        nn.Conv2d(1, 4, 3, bias=False), *norms, nn.Conv2d(4, 4, 1, groups=4, bias=False), nn.Conv2d(4, 2, 1, bias=False)
    )

    assert [type(module) for module in net[1:5]] == [nn.Identity] * 4
    assert list(net.state_dict()) == ["0.weight", "0.bias", "0.gain", "5.weight", "6.weight"]
    assert not net[0].bias.any()
    assert net[0].gain.tolist() == [1.0] * 4


def networks(dims: int):
    """MONAI's networks with batch norm, small."""
    from monai.networks.nets import DenseNet, ResNet, UNet

    return (
        lambda: ResNet("basic", [1, 1, 1, 1], [4, 4, 8, 8], spatial_dims=dims, n_input_channels=1, num_classes=2),
        lambda: UNet(dims, 1, 2, (4, 8), (2,), norm="batch", num_res_units=1),
        lambda: DenseNet(dims, 1, 2, init_features=4, growth_rate=4, block_config=(2, 2), bn_size=2),
    )


@pytest.mark.parametrize("dims", [2, 3])
def test_networks_train_on_a_batch_of_one(dims) -> None:
    """Norm after or before the convolution, 2-D and 3-D; every parameter has a gradient, none of them of 0."""
    for build in networks(dims):
        net = fedwon().parts[0].adapt(build(), 0).train()

        net(torch.randn(1, 1, *[32] * dims)).square().mean().backward()

        assert not any(isinstance(module, NORMS) for module in net.modules())
        assert all(value.grad is not None and value.grad.isfinite().all() for value in net.parameters())
        assert all(value.grad.any() for name, value in net.named_parameters() if name.endswith("gain"))


@pytest.mark.parametrize("dims", [2, 3])
def test_networks_are_rebuilt_with_the_same_entries(dims) -> None:
    """An exported network adapts to the same keys and gives the same output from the same weights."""
    for build in networks(dims):
        first, second = (adapted_network(build(), "fedwon", 3).eval() for _ in range(2))
        second.load_state_dict(first.state_dict())
        image = torch.randn(1, 1, *[32] * dims)
        assert torch.equal(first(image), second(image))


def test_output_does_not_depend_on_the_batch() -> None:
    """In training, an image gives the same output alone and among others; with batch norm it does not."""
    net = fedwon().parts[0].adapt(networks(2)[0](), 0).train()
    images = torch.randn(4, 1, 32, 32)

    torch.testing.assert_close(net(images)[:1], net(images[:1]))


def test_sites_with_batches_of_one_train(image_sources) -> None:
    """A federation at batch size 1 trains: every entry is finite and the weights move."""
    sites = {name: replace(image_sources[name], overrides={"batch_size": 1}) for name in ("A", "B")}

    outcome = simulate(fedwon(), sites, Settings(rounds=1, **LAST))

    first = sites["A"].open(fedwon().parts).model.state_dict()
    assert all(torch.isfinite(value).all() for value in outcome.cast.tensors.values())
    assert not any(torch.equal(value, first[key]) for key, value in outcome.cast.tensors.items())


def test_no_clipping_attaches_nothing(view) -> None:
    """FedAvg on the network without norms."""
    site = view("A", model=adapted(nn.Conv2d(1, 1, 3)))

    fedwon(clip=None).parts[0].bind(site)

    assert site.stages == {}
    assert fedwon().share == all_keys()


def test_vectors_are_refused() -> None:
    """Without convolutions there is no weight to standardise."""
    with pytest.raises(ConfigError, match="method fedwon needs a network with convolutions"):
        adapted(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_a_convolution_of_another_class_is_refused() -> None:
    """It may use its weight in a way of its own."""

    class Odd(nn.Conv2d):
        pass

    with pytest.raises(ConfigError, match="fedwon cannot standardise the weights of a Odd"):
        adapted(Odd(1, 2, 3), nn.Linear(2, 2))


@pytest.mark.parametrize("other", [fedbn, silobn, fixbn, hbn])
def test_methods_about_norms_are_refused(other) -> None:
    """There is no norm left, in either order."""
    for pair in ((fedwon(), other()), (other(), fedwon())):
        with pytest.raises(ConfigError, match=f"fedwon removes every normalisation layer.*{other().name} would find"):
            compose(*pair)


def test_narrowed_stages_are_refused() -> None:
    """Before a run begins, not in its first step."""
    with pytest.raises(ConfigError, match="fedalign narrows a stage, and weights that fedwon"):
        compose(fedalign(), fedwon())


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True])
@pytest.mark.parametrize("name", ["clip", "gain"])
def test_parameters_are_positive(name, value) -> None:
    """Anything else is refused with the value."""
    with pytest.raises(ConfigError, match=f"method fedwon: {name}={value!r} must be a finite number above 0"):
        fedwon(**{name: value})
