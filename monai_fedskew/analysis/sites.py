"""How far the curvature of sites differs: H_N and H_D over pairs of sites.

Mendieta et al. 2022 (FedAlign), arXiv 2111.14213, equations 3 and 4.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import torch

from monai_fedskew.analysis.hessian import Diagonal
from monai_fedskew.errors import ConfigError

__all__ = ["hessian_direction", "hessian_norm_difference"]


def hessian_norm_difference(
    diagonals: Sequence[Diagonal], *, include_self: bool = False, corrected: bool = False
) -> float | None:
    """Compute H_N: the mean over pairs of sites of (||Diag H_k|| - ||Diag H_j||)^2, equation 3.

    Args:
        diagonals: one a site, of the same network.
        include_self: count pairs of a site with itself, as the public code does; they add zeros.
        corrected: take out of each norm what the noise of its probes adds.

    Returns:
        H_N, 0 or more; None if a corrected norm has no value.

    Raises:
        ConfigError: fewer than two sites, or diagonals of different networks.

    Example:
        >>> one, two = (Diagonal(torch.tensor(v), 0.0, 10, True) for v in ([3.0, 4.0], [0.0, 2.0]))
        >>> hessian_norm_difference([one, two])  # (5 - 2)^2
        9.0
        >>> hessian_norm_difference([one, two], include_self=True)  # 2 of 4 ordered pairs are a site with itself
        4.5
    """
    norms = _norms(diagonals, corrected)
    if any(norm is None for norm in norms):
        return None
    known = [norm for norm in norms if norm is not None]
    return _mean_over_pairs(len(known), lambda k, j: (known[k] - known[j]) ** 2, itself=0.0 if include_self else None)


def hessian_direction(
    diagonals: Sequence[Diagonal], *, include_self: bool = False, corrected: bool = False
) -> float | None:
    """Compute H_D: the mean over pairs of sites of the cosine of their diagonals, equation 4.

    Args:
        diagonals: one a site, of the same network.
        include_self: count pairs of a site with itself, as the public code does; they add ones.
        corrected: take out of each norm what the noise of its probes adds. The inner product of two sites needs no
            correction if their probes are independent. Being an estimate, the result may then exceed 1.

    Returns:
        H_D; None if a norm is zero or has no value.

    Raises:
        ConfigError: fewer than two sites, or diagonals of different networks.

    Example:
        >>> one, two = (Diagonal(torch.tensor(v), 0.0, 10, True) for v in ([3.0, 4.0], [0.0, 2.0]))
        >>> hessian_direction([one, two])  # 8 / (5 * 2)
        0.8
    """
    norms = _norms(diagonals, corrected)
    if not all(norms):
        return None
    known = [norm for norm in norms if norm]
    values = [diagonal.values.double() for diagonal in diagonals]

    def cosine(k: int, j: int) -> float:
        return float(torch.dot(values[k], values[j])) / (known[k] * known[j])

    return _mean_over_pairs(len(known), cosine, itself=1.0 if include_self else None)


def _norms(diagonals: Sequence[Diagonal], corrected: bool) -> list[float | None]:
    if len(diagonals) < 2:
        raise ConfigError(f"H_N and H_D compare sites, and there is {len(diagonals)}; give at least two")
    shapes = {tuple(diagonal.values.shape) for diagonal in diagonals}
    if len(shapes) > 1:
        raise ConfigError(f"H_N and H_D: diagonals of sizes {sorted(shapes)}; all sites must use the same network")
    return [diagonal.corrected_norm if corrected else diagonal.norm for diagonal in diagonals]


def _mean_over_pairs(n: int, value: Callable[[int, int], float], *, itself: float | None) -> float:
    """Mean over unordered pairs, or over all n^2 ordered ones if a site with itself counts, at the value ``itself``."""
    pairs = [value(k, j) for k, j in combinations(range(n), 2)]
    if itself is None:
        return sum(pairs) / len(pairs)
    return (2 * sum(pairs) + n * itself) / n**2
