"""Convolutions with scaled weight standardisation, for networks without normalisation layers."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own name for it
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from monai_fedskew.errors import ConfigError

__all__ = ["by_output", "standardise", "standardised"]


def standardise(weight: Tensor, gain: Tensor, fan: float, least: float = 1e-4) -> Tensor:
    """Return gain (W - mean) / sqrt(max(fan var, least)), mean and variance over all inputs of an output channel.

    Which is gain (W - mean) / (std sqrt(fan)), Zhuang & Lyu 2024, arXiv 2306.05879, eq. for WSConv.

    Args:
        weight: (outputs, inputs, ...).
        gain: (outputs,).
        fan: how many products add up to one output value.
        least: what ``fan`` times the variance is at least taken for; as in Brock et al. 2021, arXiv 2101.08692.

    >>> standardise(torch.tensor([[1.0, 3.0]]), torch.ones(1), 2.0)
    tensor([[-0.7071,  0.7071]])
    """
    axes = list(range(1, weight.dim()))
    variance, mean = torch.var_mean(weight, dim=axes, correction=0, keepdim=True)
    scale = torch.rsqrt((variance * fan).clamp(min=least)) * gain.view([-1] + [1] * len(axes))
    return (weight - mean) * scale


def standardised(conv: _ConvNd, gain: float) -> nn.Module:
    """Return the convolution with standardised weights in the place of a plain one, which shares its parameters.

    It has a bias, 0 at first where the plain one has none, in the place of the shift of a norm that was removed.
    One with a single product an output value stays as it is: standardised, it would be 0 for ever.

    Args:
        conv: of torch's own classes.
        gain: first value of the learnable gain of each output channel.

    Raises:
        ConfigError: another class of convolution.
    """
    if isinstance(conv, tuple(_KINDS.values())):
        return conv
    kind = _KINDS.get(type(conv))
    if kind is None:
        raise ConfigError(
            f"fedwon cannot standardise the weights of a {type(conv).__name__}; use torch's own convolutions"
        )
    if conv.in_channels == conv.groups and math.prod(conv.kernel_size) == 1:
        return conv
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    names += ["output_padding"] if isinstance(conv, _ConvTransposeNd) else []
    options: dict[str, Any] = {name: getattr(conv, name) for name in names}
    new: nn.Module = kind(**options, device="meta")  # nothing is drawn or held for values that are replaced at once
    new.weight = conv.weight
    empty = torch.zeros(conv.out_channels, device=conv.weight.device, dtype=conv.weight.dtype)
    new.bias = nn.Parameter(empty) if conv.bias is None else conv.bias
    new.gain = nn.Parameter(torch.full_like(empty, gain))
    return new


def by_output(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution, (inputs, outputs / groups, ...), as (outputs, inputs, ...).

    >>> by_output(torch.arange(6.0).view(3, 2, 1), 1)[:, :, 0]
    tensor([[0., 2., 4.],
            [1., 3., 5.]])
    """
    split = weight.reshape([groups, weight.size(0) // groups] + list(weight.shape[1:]))
    return split.transpose(1, 2).flatten(0, 1)


def _transposed(weight: Tensor, gain: Tensor, groups: int, fan: float) -> Tensor:
    return by_output(standardise(by_output(weight, groups), gain, fan), groups)


def _fan(weight: Tensor, groups: int, stride: list[int]) -> float:
    """Products per output value of a transposed convolution, which a stride spreads over as many times more places."""
    fan = float(weight.size(0) // groups)
    for axis, step in enumerate(stride):
        fan *= max(float(weight.size(axis + 2)) / float(step), 1.0)
    return fan


class _Conv1d(nn.Conv1d):
    gain: Tensor

    def forward(self, x: Tensor) -> Tensor:
        weight = standardise(self.weight, self.gain, float(self.weight[0].numel()))
        out: Tensor = self._conv_forward(x, weight, self.bias)
        return out


class _Conv2d(nn.Conv2d):
    gain: Tensor

    def forward(self, x: Tensor) -> Tensor:
        weight = standardise(self.weight, self.gain, float(self.weight[0].numel()))
        out: Tensor = self._conv_forward(x, weight, self.bias)
        return out


class _Conv3d(nn.Conv3d):
    gain: Tensor

    def forward(self, x: Tensor) -> Tensor:
        weight = standardise(self.weight, self.gain, float(self.weight[0].numel()))
        out: Tensor = self._conv_forward(x, weight, self.bias)
        return out


class _ConvTranspose1d(nn.ConvTranspose1d):
    gain: Tensor
    padding: tuple[int]

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None:
            raise ValueError("a standardised transposed convolution takes no output_size")
        fan = _fan(self.weight, self.groups, [self.stride[0]])
        weight = _transposed(self.weight, self.gain, self.groups, fan)
        extra, groups, dilation = self.output_padding, self.groups, self.dilation
        return F.conv_transpose1d(x, weight, self.bias, self.stride, self.padding, extra, groups, dilation)


class _ConvTranspose2d(nn.ConvTranspose2d):
    gain: Tensor
    padding: tuple[int, int]

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None:
            raise ValueError("a standardised transposed convolution takes no output_size")
        fan = _fan(self.weight, self.groups, [self.stride[0], self.stride[1]])
        weight = _transposed(self.weight, self.gain, self.groups, fan)
        extra, groups, dilation = self.output_padding, self.groups, self.dilation
        return F.conv_transpose2d(x, weight, self.bias, self.stride, self.padding, extra, groups, dilation)


class _ConvTranspose3d(nn.ConvTranspose3d):
    gain: Tensor
    padding: tuple[int, int, int]

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None:
            raise ValueError("a standardised transposed convolution takes no output_size")
        fan = _fan(self.weight, self.groups, [self.stride[0], self.stride[1], self.stride[2]])
        weight = _transposed(self.weight, self.gain, self.groups, fan)
        extra, groups, dilation = self.output_padding, self.groups, self.dilation
        return F.conv_transpose3d(x, weight, self.bias, self.stride, self.padding, extra, groups, dilation)


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: _Conv1d,
    nn.Conv2d: _Conv2d,
    nn.Conv3d: _Conv3d,
    nn.ConvTranspose1d: _ConvTranspose1d,
    nn.ConvTranspose2d: _ConvTranspose2d,
    nn.ConvTranspose3d: _ConvTranspose3d,
}
