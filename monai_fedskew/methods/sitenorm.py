"""Conventional per-site normalisation: each site by its own statistics."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Deployment, Part, SiteView
from monai_fedskew.core.state import State
from monai_fedskew.errors import StateError
from monai_fedskew.transforms.measure import measure
from monai_fedskew.transforms.normalise import SiteNormaliser
from monai_fedskew.transforms.statistics import SiteStatistics, StdMode, require_definition

__all__ = ["SiteNorm", "sitenorm"]


def sitenorm(std: StdMode | None = None, ddof: int = 1) -> Method:
    """Normalise each site's inputs by the site's own statistics; nothing of them leaves the site.

    (x - mean_k) / std_k in training and evaluation, measured once on the training examples of site k. Every value
    counts, background and padding too: crop to the foreground in the transforms before.

    Paper: Yan et al. 2025, FedRDN, arXiv 2306.09363 (conventional normalisation).

    Args:
        std: "image" averages each image's mean and std, "pooled" takes all values at once; None chooses "image" per
            channel for images and "pooled" per feature for vectors.
        ddof: 0 or 1, taken from n in the divisor of the variance.

    Raises:
        ConfigError: an unknown value.

    >>> sitenorm().parts
    (SiteNorm(std=None, ddof=1),)
    """
    require_definition("method sitenorm", std, ddof)
    return Method("sitenorm", parts=(SiteNorm(std, ddof),))


@dataclass(frozen=True)
class SiteNorm(Part):
    """Normalise by the site's own statistics."""

    name: ClassVar[str] = "sitenorm"
    stages: ClassVar[tuple[str, ...]] = ("normalise", "normalise_eval")
    std: StdMode | None
    ddof: int

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return _Bound(self, site)


class _Bound(Bound):
    def __init__(self, part: SiteNorm, site: SiteView) -> None:
        self._part, self._site = part, site
        self._own: State = {}
        self._normalise: SiteNormaliser | None = None
        for stage in part.stages:
            site.add(part, stage, self._apply)

    def survey(self) -> State:
        part, site = self._part, self._site
        own = measure(site.examples(), site=site.name, std_mode=part.std, ddof=part.ddof)
        self.restore(own.to_state())
        return {}

    def private(self) -> State:
        return self._own

    def restore(self, state: State) -> None:
        if state:
            own = SiteStatistics.from_state(self._site.name, state)
            self._own, self._normalise = state, SiteNormaliser.of([own])

    def deploy(self) -> Deployment:
        return Deployment("monai_fedskew.transforms.NormaliseBatch", {key: self._own[key] for key in ("mean", "std")})

    def _apply(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._normalise is None:
            raise StateError(f"site {self._site.name}: sitenorm has no statistics; survey the site first")
        return self._normalise(inputs), targets
