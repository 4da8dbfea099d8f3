import copy

import pytest
import torch
from monai.networks.nets import (
    AttentionUnet,
    BasicUNet,
    DenseNet,
    DynUNet,
    EfficientNet,
    SegResNet,
    SEResNet50,
    UNet,
)
from small_nets import NORMS, built, flops, image, resnet, whole
from torch import nn
from torch.nn.modules.conv import _ConvNd

from monai_fedskew.networks.channels import channels_kept


def efficientnet() -> nn.Module:
    """Depthwise convolutions, squeeze and excitation, swish."""
    blocks = ["r1_k3_s11_e1_i32_o16_se0.25", "r1_k3_s22_e4_i16_o24_se0.25"]
    return EfficientNet(blocks, 2, 1, 3, dropout_rate=0.0, drop_connect_rate=0.0)


# network, spatial dimensions, the layer that gives the output
NETS = {
    "ResNet": (resnet, 2, "fc"),
    "ResNet 3-D": (lambda: resnet(3), 3, "fc"),
    "ResNet of bottlenecks": (lambda: resnet(block="bottleneck"), 2, "fc"),
    "SEResNet": (lambda: SEResNet50([1] * 4, spatial_dims=2, in_channels=1, num_classes=3), 2, "last_linear"),
    "DenseNet": (
        lambda: DenseNet(2, 1, 3, init_features=16, growth_rate=16, block_config=(2, 2)),
        2,
        "class_layers.out",
    ),
    "EfficientNet": (efficientnet, 2, "_fc"),
    "UNet": (lambda: UNet(2, 1, 12, (16, 32, 64), (2, 2), norm="batch"), 2, "model.2.conv"),
    "UNet 3-D": (lambda: UNet(3, 1, 2, (16, 32), (2,), norm="instance"), 3, "model.2.conv"),
    "BasicUNet": (lambda: BasicUNet(2, 1, 2, (16, 16, 32, 32, 32, 16), norm="batch"), 2, "final_conv"),
    "AttentionUnet": (lambda: AttentionUnet(2, 1, 2, (16, 32), (2,)), 2, "model.2.conv"),
    "DynUNet": (
        lambda: DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64]),
        2,
        "output_block.conv.conv",
    ),
    "SegResNet": (lambda: SegResNet(2, init_filters=16, in_channels=1, out_channels=2), 2, "conv_final.2.conv"),
}


def masked(net: nn.Module, width: float, last: str) -> nn.Module:
    """Zero the channels beyond the leading part after every convolution, linear and norm layer but the last.

    A norm layer turns a dropped channel of zeros into its shift, so it is zeroed again.
    """

    def kept(layer, args, out):
        gate = torch.zeros_like(out)
        dim = out.ndim - 1 if isinstance(layer, nn.Linear) else 1
        gate.narrow(dim, 0, channels_kept(out.shape[dim], width)).fill_(1)
        return out * gate

    def alive(layer, args, out):
        others = [d for d in range(out.ndim) if d != 1]
        return out * (args[0] != 0).any(dim=others[0], keepdim=True).flatten(2).any(2).view(
            1, -1, *[1] * (out.ndim - 2)
        )

    net = copy.deepcopy(net)
    for name, module in net.named_modules():
        if isinstance(module, NORMS):
            module.register_forward_hook(alive)
        elif isinstance(module, _ConvNd | nn.Linear) and name != last:
            module.register_forward_hook(kept)
    return net


# a group norm keeps whole groups at 1/2; at another width its groups are not those of masking
CASES = [(name, width) for name in NETS for width in (0.5, 0.8) if (name, width) != ("SegResNet", 0.8)]


@pytest.mark.parametrize(("name", "width"), CASES)
def test_slicing_equals_masking(name, width) -> None:
    """Outputs and all gradients: same leading channels, zeros elsewhere; whatever joins channels in between."""
    make, dims, last = NETS[name]
    net, x = built(make), image(dims, {2: 16, 3: 8}[dims])
    reference = masked(net, width, last)

    found, expected = whole(net, width, x)(x), reference(x)
    found.square().sum().backward()
    expected.square().sum().backward()

    assert found.shape == net(x).shape
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8)
    for (key, ours), theirs in zip(net.named_parameters(), reference.parameters(), strict=True):
        if ours.grad is not None or bool(theirs.grad.any()):
            assert torch.allclose(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7), key


@pytest.mark.parametrize("name", NETS)
def test_work_goes_down(name) -> None:
    """At half width a layer between others has a quarter of the work; the first, last and small ones have more."""
    make, dims, _ = NETS[name]
    net, x = built(make), image(dims, {2: 16, 3: 8}[dims])

    assert flops(whole(net, 0.5, x), x) < 0.45 * flops(net, x)
