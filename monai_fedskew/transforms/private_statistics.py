"""A site's statistics with clipping and Gaussian noise, and what they cost in differential privacy."""

import math
import random
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_number, require_whole
from monai_fedskew.errors import ConfigError
from monai_fedskew.transforms.statistics import SiteStatistics, StdMode

__all__ = ["GaussianRelease", "privacy_cost"]

# Orders of the Renyi accountant: fine where a usual epsilon has its best order, and far enough for a small one.
_ORDERS = [1 + k / 50 for k in range(1, 500)] + [float(order) for order in (*range(11, 256), 512, 1024, 4096, 16384)]
_LEAST = 1e-6
_DROWNED = 0.5  # noise of a number over the bound on its values, above which a table is worth little


@dataclass(frozen=True)
class GaussianRelease:
    r"""Release mean and std of a site once, with noise that hides any one subject.

    Subject i is one vector: the average over all its examples of each channel's mean m and mean square q (std "pooled",
    weighed with 1 / clip so that both have one unit) or mean and std of each image (std "image"),

        v_i = (m_i, q_i / clip)  or  (m_i, s_i)   in R^(2C),     v_i <- v_i min(1, clip / rms(v_i)),

    where rms is the root mean square over the 2C numbers, so that ||v_i|| <= clip sqrt(2C). What is released is

        mean_i v_i + N(0, (noise Delta)^2 I),     Delta = 2 clip sqrt(2C) / n.

    Delta is the L2 sensitivity when one of n subjects is replaced by any other with any number of examples: the sum
    changes by v - v', of norm at most ||v|| + ||v'|| <= 2 clip sqrt(2C). The number of subjects n and the noise are
    taken as known to everyone. Mean and std follow from the released numbers alone; a variance (a std) below the
    standard deviation of its own noise is set to that, for less cannot be told from 0.

    Paper: Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, appendix A.

    Args:
        clip: bound on a subject's root mean square over channels, in the inputs' own unit, above 0. Choose it from
            what is publicly known, never from the data: about 1.25 times the root mean square of usual inputs.
        noise: standard deviation of the noise over Delta, above 0.

    Raises:
        ConfigError: not a finite number above 0.

    >>> GaussianRelease(clip=1.0, noise=1.0).deviation(channels=2, subjects=100)
    0.04
    """

    clip: float
    noise: float

    def __post_init__(self) -> None:
        """Check ranges."""
        require_number("private statistics", "clip", self.clip, above=0)
        require_number("private statistics", "noise", self.noise, above=0)

    def deviation(self, channels: int, subjects: int) -> float:
        """Return the standard deviation of the noise on each mean; on each mean square it is ``clip`` times that."""
        return self.noise * 2 * self.clip * math.sqrt(2 * channels) / subjects

    def __call__(self, batches: Iterable[Tensor], subjects: Tensor, like: SiteStatistics) -> SiteStatistics:
        """Draw the numbers to be sent. Every call spends anew: keep what it returns.

        The noise comes from the operating system: a seed that the server knows, or can try out, would let it
        subtract the noise. Hence two calls never agree.

        Args:
            batches: as for ``measure``.
            subjects: (examples,) number of each example's subject, in the order of the batches.
            like: the exact statistics of the same examples; they fix std_mode and ddof, and stay at the site.
        """
        n_subjects, channels = len(torch.unique(subjects)), len(like.mean)
        vectors, values = _vectors(batches, subjects, like)
        if like.std_mode == "pooled":
            vectors[:, 1] /= self.clip
        size = vectors.square().mean((1, 2), keepdim=True).sqrt()
        vectors *= torch.where(size > self.clip, self.clip / size, 1.0)
        deviation = self.deviation(channels, n_subjects)
        mean, second = vectors.mean(0) + deviation * _system_normal(2, channels)
        if like.std_mode == "pooled":
            variance = (self.clip * second - mean.square()).clamp_min(self.clip * deviation)
            std = (variance * (values / (values - like.ddof))).sqrt()
        else:
            std = second.clamp_min(deviation)
        self._warn_drowned(like.site, deviation, channels, n_subjects)
        numbers = tuple(mean.tolist()), tuple(std.tolist())
        return SiteStatistics(like.site, *numbers, like.std_mode, like.ddof, like.samples)

    def _warn_drowned(self, site: str, deviation: float, channels: int, subjects: int) -> None:
        # Only what everyone knows may decide it: a log line that depends on the data would be a second release.
        if deviation > _DROWNED * self.clip:
            warnings.warn(
                f"site {site}: noise={self.noise} over {subjects} subjects and {channels} channels adds a standard "
                f"deviation of {deviation:.3g} to means that clip={self.clip} holds to about that size: the table "
                "says little. Use std=image (fewer numbers), more subjects, or less noise",
                stacklevel=4,
            )


def privacy_cost(noise: float, delta: float, releases: int = 1) -> float:
    """Return epsilon of (epsilon, delta) differential privacy, for one subject replaced by another.

    The bound is that of opacus' Renyi accountant for the Gaussian mechanism without sampling. Its exact value is up
    to a tenth lower.

    Args:
        noise: standard deviation of the noise over the sensitivity, as in ``GaussianRelease``.
        delta: probability with which the bound may fail, in (0, 1); well below 1 / subjects.
        releases: how often tables of the same subjects were drawn, for instance in five runs.

    Raises:
        ConfigError: a value out of range, or opacus is missing.

    >>> round(privacy_cost(noise=1.0, delta=1e-5), 2)
    4.73
    """
    require_number("privacy cost", "noise", noise, above=0)
    if not _LEAST <= noise <= 1 / _LEAST:  # beyond it the accountant divides by zero or overflows
        raise ConfigError(f"privacy cost: noise={noise!r} must lie between {_LEAST:g} and {1 / _LEAST:g}")
    require_number("privacy cost", "delta", delta, above=0, below=1)
    require_whole("privacy cost", "releases", releases, 1)
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise ConfigError(
            "the privacy cost needs opacus, which is not installed: pip install 'monai-fedskew[privacy]'"
        ) from error
    accountant = RDPAccountant()
    accountant.history = [(noise, 1.0, releases)]
    return max(0.0, float(accountant.get_epsilon(delta, alphas=_ORDERS)))


def _vectors(batches: Iterable[Tensor], subjects: Tensor, like: SiteStatistics) -> tuple[Tensor, int]:
    """Return first and second moments of each subject, (subjects, 2, C), and the number of values a channel."""
    names, index = torch.unique(subjects, return_inverse=True)
    channels = len(like.mean)
    sums = torch.zeros(len(names), 2, channels, dtype=torch.float64)
    start = values = 0
    for batch in batches:
        found = _moments(batch.detach().as_subclass(Tensor).to("cpu", torch.float64), like.std_mode, like.ddof)
        sums.index_add_(0, index[start : start + len(batch)], found)
        start += len(batch)
        values += batch[:, 0].numel()
    return sums / index.bincount(minlength=len(names))[:, None, None], values


def _moments(values: Tensor, mode: StdMode, ddof: int) -> Tensor:
    """Return each example's pair, (B, 2, C)."""
    if mode == "image":
        per_image = values.reshape(*values.shape[:2], -1) if values.ndim > 2 else values[:, None]
        return torch.stack([per_image.mean(2), per_image.std(2, correction=ddof)], 1)
    flat = values.reshape(*values.shape[:2], -1)
    return torch.stack([flat.mean(2), flat.square().mean(2)], 1)


def _system_normal(*shape: int) -> Tensor:
    """Draw standard normal numbers from the operating system's randomness.

    torch's own generator starts from 32 bits on the CPU, few enough to try all. A sum of four draws, halved, leaves
    no trace of floating-point arithmetic (Holohan and Braghin 2021, arXiv 2107.10138), as in opacus' secure mode.
    """
    source = random.SystemRandom()
    draws = [sum(source.gauss(0.0, 1.0) for _ in range(4)) / 2 for _ in range(math.prod(shape))]
    return torch.tensor(draws, dtype=torch.float64).reshape(shape)
