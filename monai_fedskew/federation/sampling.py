"""Which sites take part in a round."""

import random
from collections.abc import Iterable

from monai_fedskew.core.seeding import derive

__all__ = ["sample_size", "sample_sites"]


def sample_sites(sites: Iterable[str], fraction: float, *, seed: int, round: int) -> tuple[str, ...]:
    """Draw ``fraction`` of the sites, at least one, without replacement; a function of seed and round alone.

    >>> sample_sites(["A", "B", "C"], 1.0, seed=0, round=1)
    ('A', 'B', 'C')
    """
    names = sorted(sites)
    count = sample_size(len(names), fraction)
    return tuple(sorted(random.Random(derive(seed, "", round, "sampling")).sample(names, count)))


def sample_size(sites: int, fraction: float) -> int:
    """Return how many of so many sites take part in a round.

    >>> sample_size(4, 0.1), sample_size(5, 0.5)
    (1, 3)
    """
    return max(1, round_half_up(fraction * sites))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves up (Python's own rounding takes 2.5 to 2)."""
    return int(value + 0.5)
