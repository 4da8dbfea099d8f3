"""FedRDN: every training image is normalised by the statistics of a site drawn at random."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Deployment, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_variant, require_whole
from monai_fedskew.core.state import State, nest, unnest
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.transforms.measure import measure
from monai_fedskew.transforms.normalise import SiteNormaliser
from monai_fedskew.transforms.private_statistics import GaussianRelease
from monai_fedskew.transforms.statistics import (
    SiteStatistics,
    StdMode,
    require_comparable,
    require_definition,
)

__all__ = ["RandomSiteNorm", "fedrdn"]

_SENT = "sent"  # group of the private state that holds the numbers drawn for the table
_TOLERANCE = 1e-2  # how near a mean to 0 and a std to 1 count as already normalised


def fedrdn(
    std: StdMode | None = None,
    ddof: int = 1,
    variant: Variant = "paper",
    *,
    min_subjects: int = 0,
    clip: float | None = None,
    noise: float | None = None,
) -> Method:
    """Normalise every training image by the mean and std of a site drawn at random, own included.

    (x - mean_j) / std_j, j uniform over all sites, drawn anew for every sample; evaluation uses the site's own pair
    and no randomness. The pairs are measured once on the clean training examples and shared: 2C numbers a site. Every
    value counts, background and padding too, as in the paper: crop to the foreground in the transforms before.

    Paper: Yan et al. 2025, A Simple Data Augmentation for Feature Distribution Skewed Federated Learning, CVPR,
    arXiv 2306.09363.

    Args:
        std: "image" averages each image's mean and std (the paper), "pooled" takes all values at once; None chooses
            "image" per channel for images and "pooled" per feature for vectors. All sites must use one.
        ddof: 0 or 1, taken from n in the divisor of the variance; 1 as in the public code.
        variant: "official" draws as the public code: once a batch, and mean and std from two sites drawn
            independently. (The public code also measures through its augmented loader; that is not repeated.)
        min_subjects: a site with fewer subjects (examples, where its data name none) refuses to be surveyed; 0 never.
        clip: with noise, bound on one subject's root mean square in the shared pairs, in the inputs' unit. See
            ``GaussianRelease``; the site's own normalisation stays exact.
        noise: with clip, Gaussian noise on the shared pairs over their sensitivity to one subject. ``fedskew
            privacy`` tells what it costs. The draw is no function of the seed: two runs are not bit-equal.

    Raises:
        ConfigError: an unknown value, or one of clip and noise without the other.

    >>> fedrdn().parts
    (RandomSiteNorm(std=None, ddof=1, variant='paper', min_subjects=0, release=None),)
    """
    require_definition("method fedrdn", std, ddof)
    require_variant("method fedrdn", variant)
    require_whole("method fedrdn", "min_subjects", min_subjects, 0)
    release = _release(clip, noise)
    return Method("fedrdn", parts=(RandomSiteNorm(std, ddof, variant, min_subjects, release),))


@dataclass(frozen=True)
class RandomSiteNorm(Part):
    """Normalise by the statistics of a random site in training, by the site's own in evaluation."""

    name: ClassVar[str] = "fedrdn"
    stages: ClassVar[tuple[str, ...]] = ("normalise", "normalise_eval")
    std: StdMode | None
    ddof: int
    variant: Variant
    min_subjects: int
    release: GaussianRelease | None

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return _Bound(self, site)

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Add the reported pairs to those known, after checking that all were measured alike.

        Raises:
            StateError: a site whose pair is missing, not whole, or told a second time.
            DataError: sites that were measured differently.
        """
        known = {name.split("/", 1)[0] for name in memory}
        if again := sorted(known & reports.keys()):
            raise StateError(f"site {again[0]}: fedrdn statistics a second time; they are told before the first round")
        if len(known | reports.keys()) < n_sites:
            told = ", ".join(sorted(known | reports.keys())) or "none"
            raise StateError(
                f"fedrdn has statistics of {told} only, of {n_sites} sites; use the same method and version everywhere"
            )
        if not reports:
            return memory
        merged = {**memory, **nest(reports)}
        found = sorted(unnest(merged).items())
        require_comparable([SiteStatistics.from_state(site, state) for site, state in found])
        return merged


class _Bound(Bound):
    def __init__(self, part: RandomSiteNorm, site: SiteView) -> None:
        self._part, self._site = part, site
        self._own: State = {}
        self._sent: State = {}  # what was drawn for the table, where it is not the exact statistics
        self._by_own: SiteNormaliser | None = None
        self._by_any: SiteNormaliser | None = None
        site.add(part, "normalise", self._draw)
        site.add(part, "normalise_eval", self._evaluate)

    def survey(self) -> State:
        part, site = self._part, self._site
        _require_subjects(site, part.min_subjects)
        if self._sent:  # surveyed again: a second draw would spend the privacy budget twice
            return self._sent
        own = measure(site.examples(), site=site.name, std_mode=part.std, ddof=part.ddof)
        if part.release is None:
            _warn_normalised(own)
            self.restore(own.to_state())
            return self._own
        sent = part.release(site.examples(), _subjects(site, own.samples), own)
        self.restore({**own.to_state(), **nest({_SENT: sent.to_state()})})
        return self._sent

    def receive(self, cast: Broadcast) -> None:
        pairs = unnest(cast.aux.get(self._part.name, {}))
        if self._site.name not in pairs:
            raise StateError(
                f"site {self._site.name}: fedrdn knows no statistics of it; known sites: "
                f"{', '.join(sorted(pairs)) or 'none'}. Survey the site before its first round"
            )
        mean, std = (torch.stack([pairs[site][entry] for site in sorted(pairs)]) for entry in ("mean", "std"))
        self._by_any = SiteNormaliser(mean, std)

    def private(self) -> State:
        return {**self._own, **nest({_SENT: self._sent})}

    def restore(self, state: State) -> None:
        if state:
            prefix = f"{_SENT}/"
            self._sent = {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}
            self._own = {key: value for key, value in state.items() if not key.startswith(prefix)}
            self._by_own = SiteNormaliser.of([SiteStatistics.from_state(self._site.name, state)])

    def deploy(self) -> Deployment:
        return Deployment("monai_fedskew.transforms.NormaliseBatch", {key: self._own[key] for key in ("mean", "std")})

    def _draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._by_any is None:
            raise StateError(f"site {self._site.name}: fedrdn has no broadcast to draw from; survey the site first")
        n_sites, n_samples = self._by_any.n_sites, len(inputs)
        if self._part.variant == "paper":
            return self._by_any(inputs, torch.randint(n_sites, (n_samples,), generator=generator)), targets
        mean_row, std_row = torch.randint(n_sites, (2, 1), generator=generator).expand(2, n_samples)
        return self._by_any(inputs, mean_row, std_row), targets

    def _evaluate(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._by_own is None:
            raise StateError(f"site {self._site.name}: fedrdn has no statistics; survey the site first")
        return self._by_own(inputs), targets


def _release(clip: float | None, noise: float | None) -> GaussianRelease | None:
    if clip is None and noise is None:
        return None
    if clip is None or noise is None:
        raise ConfigError(
            f"method fedrdn: clip={clip}, noise={noise}: give both or neither; clipping alone hides nobody, and noise "
            "without a bound on a subject promises nothing"
        )
    return GaussianRelease(clip, noise)


def _require_subjects(site: SiteView, least: int) -> None:
    if site.groups < least:
        # The count itself stays at the site: the server reads this text as the reason of the failure.
        raise RoundError(
            f"site {site.name}: fewer training subjects than min_subjects={least}; its statistics are not shared. "
            "Leave the site out, or agree on a smaller number"
        )


def _subjects(site: SiteView, examples: int) -> Tensor:
    subjects = site.example_groups()
    if subjects is None:
        warnings.warn(
            f"site {site.name}: the training data name no subjects (`groups`); the noise hides one example, not one "
            "subject",
            stacklevel=3,
        )
        return torch.arange(examples)
    return subjects


def _warn_normalised(own: SiteStatistics) -> None:
    pairs = zip(own.mean, own.std, strict=True)
    if all(abs(mean) <= _TOLERANCE and abs(std - 1) <= _TOLERANCE for mean, std in pairs):
        warnings.warn(
            f"site {own.site}: every channel has mean 0 and std 1 within {_TOLERANCE}; the inputs are already "
            "z-scored, so fedrdn can do nothing. Take NormalizeIntensityd or its like out of the transforms",
            stacklevel=3,
        )
