import pytest
import torch

from monai_fedskew.analysis.hessian import Diagonal
from monai_fedskew.analysis.sites import hessian_direction, hessian_norm_difference
from monai_fedskew.errors import ConfigError


def _diagonals(*values: list[float], noise: float = 0.0) -> list[Diagonal]:
    return [Diagonal(torch.tensor(one), noise, 10, True) for one in values]


def test_three_sites_by_hand() -> None:
    """Norms 5, 2 and 1: H_N = ((5-2)^2 + (5-1)^2 + (2-1)^2) / 3 = 26/3.

    Cosines of (3, 4), (0, 2), (1, 0): 8/10, 3/5 and 0, so H_D = 1.4/3. With each site and itself: six of nine ordered
    pairs are of two sites, so H_N = 2 * 26 / 9 and H_D = (2 * 1.4 + 3) / 9.
    """
    sites = _diagonals([3.0, 4.0], [0.0, 2.0], [1.0, 0.0])
    assert hessian_norm_difference(sites) == pytest.approx(26 / 3)
    assert hessian_direction(sites) == pytest.approx(1.4 / 3)
    assert hessian_norm_difference(sites, include_self=True) == pytest.approx(52 / 9)
    assert hessian_direction(sites, include_self=True) == pytest.approx(5.8 / 9)


def test_equal_sites_do_not_differ() -> None:
    """H_N = 0 and H_D = 1, whether or not a site counts with itself."""
    sites = _diagonals([1.0, 2.0], [1.0, 2.0])
    for itself in (False, True):
        assert hessian_norm_difference(sites, include_self=itself) == 0.0
        assert hessian_direction(sites, include_self=itself) == pytest.approx(1.0)


def test_correction_takes_the_noise_out_of_each_norm() -> None:
    """Noise 3 on norms 5 and 5: corrected norms are 4, so the cosine grows from 24/25 to 24/16; noise 5 leaves none."""
    sites = _diagonals([3.0, 4.0], [4.0, 3.0], noise=3.0)
    assert hessian_direction(sites) == pytest.approx(24 / 25)
    assert hessian_direction(sites, corrected=True) == pytest.approx(24 / 16)
    drowned = _diagonals([3.0, 4.0], [4.0, 3.0], noise=5.0)
    assert hessian_direction(drowned, corrected=True) is None
    assert hessian_norm_difference(drowned, corrected=True) is None


def test_one_site_or_two_networks_are_refused() -> None:
    """There is nothing to compare."""
    with pytest.raises(ConfigError, match="there is 1; give at least two"):
        hessian_direction(_diagonals([1.0]))
    with pytest.raises(ConfigError, match="all sites must use the same network"):
        hessian_norm_difference(_diagonals([1.0], [1.0, 2.0]))
