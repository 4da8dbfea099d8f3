"""FedWon: networks without normalisation layers, with standardised weights and clipped gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number
from monai_fedskew.networks.replace import output_layer, replace_modules
from monai_fedskew.networks.stages import require_convolutions
from monai_fedskew.networks.weight_standardised import standardised

__all__ = ["NormFree", "fedwon"]

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
_LEAST = 1e-3  # norm that weights are at least taken for, so that weights of 0 can leave it


def fedwon(clip: float | None = 1.28, gain: float = 1.7129) -> Method:
    """Remove every normalisation layer, standardise the weights of convolutions and clip gradients by their layer.

    Each convolution uses W' = g (W - mean) / (std sqrt(N)), mean and std over the N weights of an output channel, g a
    learnable gain a channel. Each gradient is held to its weights, unit by unit (an output channel, a row of a linear
    layer, a whole vector): G <- G min(1, clip max(||W||, 1e-3) / ||G||). Nothing depends on the batch, so that a batch
    of one can be trained on, and nothing stays at the site: all is averaged.

    Paper: Zhuang & Lyu 2024, FedWon: Triumphing Multi-domain Federated Learning Without Normalization, ICLR, arXiv
    2306.05879, after Brock et al. 2021, arXiv 2101.08692 (weights) and 2102.06171 (clipping).

    The last layer is neither standardised nor clipped (Brock et al.). The paper was at hand in abstract, reviews and
    notes on it (both equations, the range of lambda), not in full. Choices of ours: a convolution without bias gets
    one, 0 at first, in the place of the shift that goes with its norm; in a transposed convolution N counts the
    products an output value gets on average, stride included; a convolution with one weight a channel stays plain.
    Instance, group and layer norms are removed as well.

    Args:
        clip: lambda of the clipping, above 0; reported are 0.01 to 1.28, less for small batches. None leaves it out.
        gain: first value of g, above 0. sqrt(2 / (1 - 1/pi)) = 1.7129 keeps the variance through ReLU layers (Brock et
            al. 2021, arXiv 2101.08692); with 1, which some code takes, a network's outputs fade from layer to layer.
            U-shaped residual networks can need less.

    Raises:
        ConfigError: a value out of range; or, when it meets a network, no convolution.

    >>> fedwon(clip=0.64).parts
    (NormFree(clip=0.64, gain=1.7129),)
    """
    if clip is not None:
        require_number("method fedwon", "clip", clip, above=0)
    require_number("method fedwon", "gain", gain, above=0)
    return Method("fedwon", parts=(NormFree(None if clip is None else float(clip), float(gain)),), refuses=_REFUSES)


@dataclass(frozen=True)
class NormFree(Part):
    """Train a network without normalisation layers."""

    name: ClassVar[str] = "fedwon"
    stages: ClassVar[tuple[str, ...]] = ("clip",)
    clip: float | None
    gain: float

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        """Take the norms out and standardise the weights of all convolutions but the last layer.

        Raises:
            ConfigError: the network has no convolution, or one of a class that is not torch's.
        """
        require_convolutions("method fedwon", model)
        last = output_layer(model)

        def make(module: nn.Module) -> nn.Module:
            if isinstance(module, _NORMS):
                return nn.Identity()
            if isinstance(module, _ConvNd) and module is not last:
                return standardised(module, self.gain)
            return module

        return replace_modules(model, make)

    def bind(self, site: SiteView) -> Bound:
        """Clip after every backward pass; clip = None attaches nothing."""
        if self.clip is not None:
            site.add(self, "clip", _clipping(site.model, self.clip))
        return Bound()


def _clipping(model: nn.Module, clip: float) -> Callable[[], None]:
    last = output_layer(model)
    held = dict.fromkeys([] if last is None else last.parameters())
    pairs = []  # a parameter and the layer that owns it, each once
    for module in model.modules():
        for value in module.parameters(recurse=False):
            if value not in held:
                held[value] = None
                pairs.append((module, value))

    @torch.no_grad()
    def clip_gradients() -> None:
        for module, value in pairs:
            if value.grad is not None:
                most = clip * _unit_norms(module, value).clamp(min=_LEAST)
                norms = _unit_norms(module, value.grad)
                value.grad.mul_(torch.where(norms > most, most / norms, 1.0))

    return clip_gradients


def _unit_norms(module: nn.Module, value: Tensor) -> Tensor:
    """L2 norm of each output unit, shaped to be multiplied with ``value``."""
    if value.ndim < 2:
        norms: Tensor = torch.linalg.vector_norm(value)
        return norms
    if isinstance(module, _ConvTransposeNd):  # (inputs, outputs / groups, ...), one group after the other
        split = value.reshape(module.groups, -1, *value.shape[1:])
        inputs = [1, *range(3, split.ndim)]
    else:
        split = value.unsqueeze(1)
        inputs = list(range(1, split.ndim))
    norms = torch.linalg.vector_norm(split, dim=inputs, keepdim=True)
    return norms.expand(-1, split.shape[1], *norms.shape[2:]).flatten(0, 1)


_WHY = "fedwon removes every normalisation layer, so that {} would find none; choose one"
_REFUSES = {
    **{name: _WHY.format(name) for name in ("fedbn", "silobn", "fixbn", "hbn")},
    "fedalign": "fedalign narrows a stage, and weights that fedwon standardises over all channels are other weights "
    "with fewer of them; choose one",
}
