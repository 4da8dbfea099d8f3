"""Mixup: a site trains on blends of two of its own examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number

__all__ = ["Blend", "draw_ratio", "mixup"]


def mixup(gamma: float = 0.1) -> Method:
    """Blend each training example with another one of its batch.

    x = l x_i + (1 - l) x_j, loss = l L(f(x), y_i) + (1 - l) L(f(x), y_j), with one l ~ Beta(gamma, gamma) a batch and j
    a permutation of the batch. Labels stay as they are, so that any loss of the bundle works, segmentation's too; for
    cross-entropy this equals blending one-hot labels. Evaluation sees plain examples. ``gamma=0`` is FedAvg, bit for
    bit.

    Paper: Zhang et al. 2018, mixup: Beyond Empirical Risk Minimization, ICLR, arXiv 1710.09412, eq. 2. In a federation
    with gamma 0.1: Mendieta et al. 2022, Local Learning Matters, CVPR, arXiv 2111.14213 (the default of its public code
    is 0, that is off).

    Args:
        gamma: parameter of the Beta distribution, 0 or more; near 0 most batches are left nearly as they are, 1 is
            uniform.

    Raises:
        ConfigError: gamma is negative or not finite.

    >>> mixup(gamma=0.2).parts
    (Blend(gamma=0.2),)
    """
    require_number("method mixup", "gamma", gamma, least=0)
    return Method("mixup", parts=(Blend(float(gamma)),))


@dataclass(frozen=True)
class Blend(Part):
    """Blend inputs, and the losses of both labels."""

    name: ClassVar[str] = "blend"
    stages: ClassVar[tuple[str, ...]] = ("mix", "replace")
    gamma: float

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; gamma = 0 attaches nothing."""
        return _Bound(self, site) if self.gamma else Bound()


def draw_ratio(gamma: float, generator: torch.Generator) -> float:
    """Draw from Beta(gamma, gamma), right also for a tiny gamma.

    Beta is G1 / (G1 + G2) of two Gamma(gamma) variates, which for a tiny gamma both underflow to 0. With
    G(gamma) = G(gamma + 1) U^(1/gamma) it is the logistic function of a difference of logarithms, which cannot.

    Args:
        gamma: above 0.
        generator: where randomness comes from.

    >>> draw_ratio(1e-9, torch.Generator().manual_seed(0)) in (0.0, 1.0)
    True
    """
    shape = torch.full((2,), gamma + 1, dtype=torch.float64)
    first, second = torch._standard_gamma(shape, generator=generator).log()
    uniform = torch.rand(2, generator=generator, dtype=torch.float64).clamp_min(torch.finfo(torch.float64).tiny).log()
    return float(torch.sigmoid(first - second + (uniform[0] - uniform[1]) / gamma))


class _Bound(Bound):
    def __init__(self, part: Blend, site: SiteView) -> None:
        self._gamma, self._loss_function = part.gamma, site.loss_function
        self._ratio = 1.0
        self._others: Tensor | None = None  # labels of the partners in this batch; the loss may be asked for again
        site.add(part, "mix", self._mix)
        site.add(part, "replace", self._replace)

    def _mix(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self._ratio = draw_ratio(self._gamma, generator)
        order = torch.randperm(len(inputs), generator=generator)
        self._others = targets.index_select(0, order.to(targets.device))
        partners = inputs.index_select(0, order.to(inputs.device))
        return self._ratio * inputs + (1 - self._ratio) * partners, targets

    def _replace(self, output: Mapping[str, Tensor]) -> Tensor:
        second = self._loss_function(output["pred"], self._others).mean()
        return self._ratio * output["loss"] + (1 - self._ratio) * second
