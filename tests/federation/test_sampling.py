"""Who takes part in a round."""

from collections import Counter

import pytest

from monai_fedskew.federation.sampling import round_half_up, sample_sites

SITES = ("A", "B", "C", "D", "E")


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.5, 3), (0.3, 2), (0.1, 1), (0.01, 1), (0.49, 2), (0.7, 4), (1.0, 5)]
)
def test_halves_go_up_and_one_is_the_least(fraction: float, expected: int) -> None:
    """0.5 of 5 sites is 2.5: 3 take part (Python's round would take 2); never none."""
    assert len(sample_sites(SITES, fraction, seed=0, round=1)) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.4, 2), (2.6, 3)])
def test_round_half_up(value: float, expected: int) -> None:
    """Not to the even neighbour."""
    assert round_half_up(value) == expected


def test_the_draw_is_a_function_of_seed_and_round() -> None:
    """The order of the names, and what was drawn before, do not matter; another seed or round draws anew."""
    first = sample_sites(SITES, 0.5, seed=0, round=1)
    assert first == sample_sites(reversed(SITES), 0.5, seed=0, round=1)
    assert list(first) == sorted(first)
    assert len({sample_sites(SITES, 0.5, seed=0, round=round) for round in range(1, 20)}) > 3
    assert len({sample_sites(SITES, 0.5, seed=seed, round=1) for seed in range(20)}) > 3


def test_every_site_has_the_same_chance() -> None:
    """2 of 5 in 2000 rounds: 800 times each, give or take 4 standard deviations (88)."""
    counts = Counter(site for round in range(2000) for site in sample_sites(SITES, 0.4, seed=0, round=round))
    assert set(counts) == set(SITES)
    assert all(abs(count - 800) < 88 for count in counts.values())


def test_all_take_part_by_default() -> None:
    """In order of their names."""
    assert sample_sites("CAB", 1.0, seed=5, round=3) == ("A", "B", "C")
