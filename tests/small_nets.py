"""Small MONAI networks for the tests of narrowed ones, and what is measured on them."""

from collections.abc import Callable
from typing import Any

import torch
from monai.networks.nets import ResNet
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.flop_counter import FlopCounterMode

from monai_fedskew.networks.narrow import Narrowed

NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm)


def resnet(dims: int = 2, block: str = "basic", shortcut: str = "B") -> nn.Module:
    """A small MONAI ResNet."""
    widths = [16, 16, 32, 32]
    return ResNet(block, [1, 1, 1, 1], widths, dims, 1, 3, num_classes=3, shortcut_type=shortcut, no_max_pool=True)


def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network without dropout whose every parameter matters: no bias or scale at its first value."""
    torch.manual_seed(seed)
    net = make()
    for module in net.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d | nn.Dropout3d):
            module.p = 0.0
        if isinstance(module, NORMS) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return net.double()


def image(dims: int = 2, size: int = 16) -> torch.Tensor:
    """Four images of one channel."""
    return torch.randn(4, 1, *[size] * dims, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def whole(net: nn.Module, width: float, x: torch.Tensor) -> Narrowed:
    """A network from image to logits."""
    return Narrowed(net, width, (x,), narrow_inputs=False, keep_outputs=True)


def flops(function: Callable[..., Any], *args: Any) -> int:
    """Multiply-adds of a call, twice."""
    with FlopCounterMode(display=False) as counter:
        function(*args)
    return counter.get_total_flops()
