from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.reports.certainty import compare_to_first, over_seeds, over_subjects, rank_test_sentence
from monai_fedskew.reports.predictions import Tally
from monai_fedskew.reports.results import read_results


def make_tally(right: list[float], windows: list[float]) -> Tally:
    """A site of as many subjects as numbers, each tested once."""
    share = np.array(right) / np.array(windows)
    ids = tuple(f"{k:07d}" for k in range(len(right)))
    return Tally(ids, np.array(windows), np.array(right), np.ones(len(right)), (share > 0.5).astype(float))


def test_t_interval_and_effect_size_of_three_seeds_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, std 1, t(0.975, 2) = 4.3027, half width 4.3027/sqrt(3) = 2.4841; d_z = 2/1.

    Hedges' correction for 2 degrees of freedom is gamma(1) / (sqrt(1) gamma(1/2)) = 1/sqrt(pi) = 0.5642.
    """
    mean, interval, d_z, g_z = over_seeds([1.0, 2.0, 3.0])

    assert mean == 2
    assert interval == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert d_z == 2
    assert g_z == pytest.approx(2 * 0.56419, abs=1e-4)


def test_one_seed_gives_a_difference_and_nothing_more() -> None:
    """With one seed there is neither an interval nor an effect size."""
    assert over_seeds([1.5]) == (1.5, None, None, None)


def test_equal_differences_have_no_effect_size() -> None:
    """When every seed differs by the same, a point would look like certainty: neither interval nor d_z is given."""
    assert over_seeds([2.0, 2.0, 2.0]) == (2.0, None, None, None)


def test_two_seeds_have_no_interval() -> None:
    """With one degree of freedom an interval says nothing."""
    assert over_seeds([1.0, 2.0]) == (1.5, None, None, None)


def test_no_shared_seed_is_refused() -> None:
    """Nothing to pair is an error that says what to do."""
    with pytest.raises(DataError, match="no seed is shared.*run the missing seeds"):
        over_seeds([])


def test_bootstrap_recovers_a_constant_difference_exactly() -> None:
    """If every subject gains 2 of 10 windows at A and 1 of 10 at B, each draw gives (20 + 10) / 2 = 15 points."""
    first = {"A": make_tally([3, 4, 5], [10, 10, 10]), "B": make_tally([2, 8], [10, 10])}
    other = {"A": make_tally([5, 6, 7], [10, 10, 10]), "B": make_tally([3, 9], [10, 10])}

    difference, interval = over_subjects(first, other, "window", draws=200)

    assert difference == pytest.approx(15)
    assert interval == pytest.approx((15, 15))


def test_bootstrap_matches_the_error_of_a_mean() -> None:
    """At one site with 400 subjects of one window, the interval is close to the normal one of a paired mean."""
    rng = np.random.default_rng(0)
    a, b = (rng.random(400) < 0.5).astype(float), (rng.random(400) < 0.6).astype(float)
    ones = np.ones(400).tolist()

    difference, (low, high) = over_subjects(
        {"A": make_tally(a.tolist(), ones)}, {"A": make_tally(b.tolist(), ones)}, "window"
    )

    error = 100 * (b - a).std() / 20
    assert difference == pytest.approx(100 * (b - a).mean())
    assert (low, high) == pytest.approx((difference - 1.96 * error, difference + 1.96 * error), abs=0.15 * error)


def test_bootstrap_is_seeded() -> None:
    """The same seed gives the same interval."""
    first, other = {"A": make_tally([1, 9, 4], [10, 20, 10])}, {"A": make_tally([2, 5, 9], [10, 20, 10])}

    assert over_subjects(first, other, "window", seed=3) == over_subjects(first, other, "window", seed=3)


def test_bootstrap_refuses_other_subjects_and_single_ones() -> None:
    """Pairing needs the same subjects, and redrawing needs two."""
    two, three, one = make_tally([1, 2], [4, 4]), make_tally([1, 2, 3], [4, 4, 4]), make_tally([1], [4])

    with pytest.raises(DataError, match="site A: the methods were not tested on the same subjects"):
        over_subjects({"A": two}, {"A": three}, "window")
    with pytest.raises(DataError, match="site A: 1 tested subject; redrawing subjects needs two"):
        over_subjects({"A": one}, {"A": one}, "window")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "With one seed there is no spread"),
        (3, "can give is 0.25, so no rank test can be significant"),
        (
            5,
            "With 5 seeds the smallest p a two-sided Wilcoxon signed-rank test can give is 0.0625, so no rank test can",
        ),
        (6, "can give is 0.0312; the intervals say more"),
    ],
)
def test_rank_test_is_put_into_words(seeds: int, words: str) -> None:
    """The smallest p of n seeds is 2 / 2^n; at 0.05 or above the sentence says that no rank test can be significant."""
    assert words in rank_test_sentence(seeds)


def test_comparison_pairs_by_seed(comparison: Path) -> None:
    """Each further method is compared with the first, seed by seed, and its pooled subjects give an interval."""
    results = read_results(comparison)

    fedavg, fedprox = compare_to_first(results, "window", draws=300)

    local = [results.runs["local", seed].scores["window"] for seed in (0, 1, 2)]
    other = [results.runs["fedprox:mu=0.2", seed].scores["window"] for seed in (0, 1, 2)]
    by_hand = [
        50 * sum(b[site].values["accuracy"] - a[site].values["accuracy"] for site in ("NORTH", "SOUTH"))
        for a, b in zip(local, other, strict=True)
    ]
    assert (fedavg.method, fedprox.method) == ("fedavg", "fedprox:mu=0.2")
    assert fedprox.per_seed == pytest.approx(by_hand)
    assert fedprox.subjects is not None
    assert fedprox.subjects_interval is not None
    assert fedprox.subjects_interval[0] <= fedprox.subjects <= fedprox.subjects_interval[1]
