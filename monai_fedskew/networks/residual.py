"""A residual block taken apart: its shortcut, its residual branch, and what joins them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ResidualRule", "residual_rule"]

_Block = Any  # a block of MONAI, known by the name of its class; its layers are reached as attributes


@dataclass(frozen=True)
class ResidualRule:
    """How to run the parts of a block: its output is ``join(block, branch(block, shortcut, *inputs) + shortcut)``.

    Args:
        shortcut: ``(block, *inputs) -> Tensor``, identity or projection.
        branch: ``(block, shortcut, *inputs) -> Tensor``, the convolutions.
        join: ``(block, sum) -> Tensor``, what follows the sum; may change the sum in place.
    """

    shortcut: Callable[..., Tensor]
    branch: Callable[..., Tensor]
    join: Callable[[Any, Tensor], Tensor]


def residual_rule(block: nn.Module) -> ResidualRule | None:
    """Return how a residual block comes apart, None if the module is no residual block that is known.

    Known are the residual blocks of MONAI's ResNet, SENet, UNet (with residual units), SegResNet, VNet and DynUNet, and
    any module with methods ``shortcut(*inputs)``, ``branch(shortcut, *inputs)`` and ``join(sum)`` of its own.

    >>> residual_rule(nn.Linear(2, 2)) is None
    True
    """
    for kind in type(block).__mro__:
        host, _, file = kind.__module__.rpartition(".")
        if host.startswith("monai.") and (rule := _RULES.get(f"{file}.{kind.__name__}")):
            return rule
    own = all(callable(getattr(type(block), name, None)) for name in ("shortcut", "branch", "join"))
    return _OWN if own else None


def _identity(block: _Block, value: Tensor) -> Tensor:
    return value


def _activate(block: _Block, total: Tensor) -> Tensor:
    out: Tensor = block.act(total)
    return out


def _resnet_shortcut(block: _Block, x: Tensor) -> Tensor:
    return x if block.downsample is None else block.downsample(x)


def _resnet_branch(block: _Block, shortcut: Tensor, x: Tensor) -> Tensor:
    x = block.act(block.bn1(block.conv1(x)))
    x = block.bn2(block.conv2(x))
    return block.bn3(block.conv3(block.act(x))) if hasattr(block, "conv3") else x


def _se_branch(block: _Block, shortcut: Tensor, x: Tensor) -> Tensor:
    out: Tensor = block.se_layer(block.conv3(block.conv2(block.conv1(x))))
    return out


def _segresnet_branch(block: _Block, shortcut: Tensor, x: Tensor) -> Tensor:
    x = block.conv1(block.act(block.norm1(x)))
    out: Tensor = block.conv2(block.act(block.norm2(x)))
    return out


def _dynunet_shortcut(block: _Block, x: Tensor) -> Tensor:
    return block.norm3(block.conv3(x)) if hasattr(block, "conv3") else x


def _dynunet_branch(block: _Block, shortcut: Tensor, x: Tensor) -> Tensor:
    x = block.lrelu(block.norm1(block.conv1(x)))
    out: Tensor = block.norm2(block.conv2(x))
    return out


def _vnet_down_shortcut(block: _Block, x: Tensor) -> Tensor:
    out: Tensor = block.act_function1(block.bn1(block.down_conv(x)))
    return out


def _vnet_down_branch(block: _Block, shortcut: Tensor, x: Tensor) -> Tensor:
    out: Tensor = block.ops(shortcut if block.dropout is None else block.dropout(shortcut))
    return out


def _vnet_up_shortcut(block: _Block, x: Tensor, skip: Tensor) -> Tensor:
    x = x if block.dropout is None else block.dropout(x)
    skip = block.dropout2(skip)
    return torch.cat((block.act_function1(block.bn1(block.up_conv(x))), skip), 1)


def _vnet_join(block: _Block, total: Tensor) -> Tensor:
    out: Tensor = block.act_function2(total)
    return out


# by file and class: AHNet has another UpTransition
_RULES: Mapping[str, ResidualRule] = {
    "resnet.ResNetBlock": ResidualRule(_resnet_shortcut, _resnet_branch, _activate),
    "resnet.ResNetBottleneck": ResidualRule(_resnet_shortcut, _resnet_branch, _activate),
    "squeeze_and_excitation.SEBlock": ResidualRule(lambda block, x: block.project(x), _se_branch, _activate),
    "convolutions.ResidualUnit": ResidualRule(
        lambda block, x: block.residual(x), lambda block, shortcut, x: block.conv(x), _identity
    ),
    "segresnet_block.ResBlock": ResidualRule(_identity, _segresnet_branch, _identity),
    "dynunet_block.UnetResBlock": ResidualRule(
        _dynunet_shortcut, _dynunet_branch, lambda block, total: block.lrelu(total)
    ),
    "vnet.DownTransition": ResidualRule(_vnet_down_shortcut, _vnet_down_branch, _vnet_join),
    "vnet.UpTransition": ResidualRule(
        _vnet_up_shortcut, lambda block, shortcut, *inputs: block.ops(shortcut), _vnet_join
    ),
}
_OWN = ResidualRule(
    lambda block, *inputs: block.shortcut(*inputs),
    lambda block, shortcut, *inputs: block.branch(shortcut, *inputs),
    lambda block, total: block.join(total),
)
