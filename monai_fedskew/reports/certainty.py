"""How sure one can be that a method differs from the first one of the study."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from monai_fedskew.errors import DataError
from monai_fedskew.reports.metrics import Metric
from monai_fedskew.reports.predictions import Tally, has_outcomes, outcome_file, tally
from monai_fedskew.reports.results import Level, Results, Run

__all__ = ["DRAWS", "Difference", "compare_to_first", "over_seeds", "over_subjects", "rank_test_sentence"]

DRAWS = 2000
CONFIDENCE = 0.95
_FEWEST_SEEDS = 3  # the t interval of two differences is 12.7 standard errors wide, or a point


@dataclass(frozen=True)
class Difference:
    """Mean-over-sites main score of a method minus that of the first method; of shares in percentage points.

    ``per_seed`` are the paired differences; ``seeds_interval`` the 95 % t interval of their mean; ``d_z`` Cohen's d of
    paired samples (mean / standard deviation of the differences) and ``g_z`` the same with Hedges' correction for few
    seeds. ``subjects`` and ``subjects_interval`` come from the bootstrap over subjects. None where it cannot be had;
    ``note`` says why.
    """

    method: str
    level: Level
    per_seed: tuple[float, ...] = ()
    mean: float | None = None
    seeds_interval: tuple[float, float] | None = None
    d_z: float | None = None
    g_z: float | None = None
    subjects: float | None = None
    subjects_interval: tuple[float, float] | None = None
    note: str = ""


def compare_to_first(
    results: Results, level: Level = "window", *, draws: int = DRAWS, seed: int = 0
) -> tuple[Difference, ...]:
    """Compare every other method of a study with its first one.

    Seeds: differences of the mean over sites, paired by seed. Subjects: a bootstrap that redraws subjects with
    replacement within each site, the same subjects for both methods; all seeds are pooled, as each subject is tested
    in one fold. The clients of a partition are redrawn as one site.

    Args:
        results: what :func:`read_results` returned.
        level: ``window`` or ``subject``.
        draws: bootstrap draws.
        seed: of the bootstrap.
    """
    if not results.is_comparison:
        return ()
    first, *others = results.methods
    return tuple(_difference(results, (first, other), level, draws=draws, seed=seed) for other in others)


def over_seeds(differences: Sequence[float]) -> tuple[float, tuple[float, float] | None, float | None, float | None]:
    """Give mean, 95 % t interval, Cohen's d_z and Hedges' g_z of differences paired by seed.

    Interval and effect sizes are None with fewer than three seeds, of which they would say nothing, and when all
    differences are equal.

    Raises:
        DataError: no difference is given.

    Example:
        >>> mean, (low, high), d_z, g_z = over_seeds([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3), d_z, round(g_z, 3)
        (-0.484, 4.484, 2.0, 1.128)
    """
    if not differences:
        raise DataError("no seed is shared by both methods, so nothing can be paired; run the missing seeds")
    mean, n = statistics.fmean(differences), len(differences)
    if n < _FEWEST_SEEDS:
        return mean, None, None, None
    spread = statistics.stdev(differences)
    if spread < 1e-9:  # equal but for rounding
        return mean, None, None, None
    low, high = stats.t.interval(CONFIDENCE, n - 1, loc=mean, scale=spread / math.sqrt(n))
    d_z = mean / spread
    return mean, (float(low), float(high)), d_z, d_z * _hedges(n - 1)


def over_subjects(
    first: Mapping[str, Tally], other: Mapping[str, Tally], level: Level, *, draws: int = DRAWS, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Bootstrap the difference of mean-over-sites accuracy over subjects, stratified by site and paired.

    Args:
        first, other: per site, the outcome of the same subjects under the first and the other method.
        level: ``window`` or ``subject``.
        draws: how often subjects are redrawn.
        seed: of the draws.

    Returns:
        The difference in percentage points and its 95 % percentile interval.

    Raises:
        DataError: the methods were not tested on the same subjects, or a site has fewer than two.
    """
    for site, one in first.items():
        if site not in other or one.subjects != other[site].subjects:
            raise DataError(f"site {site}: the methods were not tested on the same subjects; run the missing seeds")
        if len(one.subjects) < 2:
            raise DataError(f"site {site}: {len(one.subjects)} tested subject; redrawing subjects needs two")
    counts = [(_counts(first[site], level), _counts(other[site], level)) for site in first]

    def difference(*drawn: npt.NDArray[np.intp], axis: int = -1) -> Any:
        """Draws have shape (..., subjects of the site): positions of redrawn subjects, one array a site."""
        per_site = [
            _share(right_b[d].sum(axis), all_b[d].sum(axis)) - _share(right_a[d].sum(axis), all_a[d].sum(axis))
            for d, ((right_a, all_a), (right_b, all_b)) in zip(drawn, counts, strict=True)
        ]
        return 100 * np.mean(per_site, axis=0)

    positions = tuple(np.arange(len(one.subjects)) for one in first.values())
    drawn = stats.bootstrap(
        positions,
        difference,
        n_resamples=draws,
        batch=250,  # bounds memory at sites with thousands of subjects
        vectorized=True,
        paired=False,  # sites are drawn independently; methods are paired by sharing the positions
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = drawn.confidence_interval
    return float(difference(*positions)), (float(interval.low), float(interval.high))


def rank_test_sentence(seeds: int) -> str:
    """Say what a rank test over seeds can and cannot show.

    Example:
        >>> rank_test_sentence(5)[:80]
        'With 5 seeds the smallest p a two-sided Wilcoxon signed-rank test can give is 0.'
    """
    if seeds < 2:
        return "With one seed there is no spread between seeds, so only the bootstrap over subjects says anything."
    smallest = 2.0 ** (1 - seeds)
    shown = f"{smallest:.4f}".rstrip("0") if smallest >= 0.001 else f"{smallest:.1e}"
    start = f"With {seeds} seeds the smallest p a two-sided Wilcoxon signed-rank test can give is {shown}"
    if smallest > 1 - CONFIDENCE:
        return f"{start}, so no rank test can be significant at 0.05. Read the intervals instead."
    return f"{start}; the intervals say more than such a p, and no correction is made for comparing many methods."


def _difference(results: Results, pair: tuple[str, str], level: Level, *, draws: int, seed: int) -> Difference:
    first, other = pair
    shared = [s for s in results.seeds if (first, s) in results.runs and (other, s) in results.runs]
    both = [(results.runs[first, s], results.runs[other, s]) for s in shared]
    notes = [] if len(shared) == len(results.seeds) else [f"{len(shared)} of {len(results.seeds)} seeds can be paired"]
    complete = [(a, b) for a, b in both if _is_complete(results, a, level) and _is_complete(results, b, level)]
    if not complete:
        return Difference(other, level, note="no seed has a score of both methods at every site")
    means = [[_mean_over_sites(run, level, results.main) for run in pair] for pair in complete]
    per_seed = tuple(b - a for a, b in means)
    mean, interval, d_z, g_z = over_seeds(per_seed)
    subjects, subjects_interval = None, None
    sides = list(zip(*complete, strict=True))
    metric = results.main.key
    absent = [site for site in results.sites if not all(has_outcomes(runs, site, metric) for runs in sides)]
    if not outcome_file(metric):
        notes.append(f"no bootstrap: the {results.main.name} of single subjects is not known")
    elif absent:
        notes.append(f"no bootstrap: a run of either method has no {outcome_file(metric)} of site {absent[0]}")
    else:
        # few subjects are tested at a client, other ones in each seed: all are redrawn together
        strata = {"all clients": results.sites} if results.is_dealt else {site: (site,) for site in results.sites}
        one, two = ({name: tally(runs, *at, metric=metric) for name, at in strata.items()} for runs in sides)
        try:
            subjects, subjects_interval = over_subjects(one, two, level, draws=draws, seed=seed)
        except DataError as error:  # the two methods cannot be paired
            notes.append(f"no bootstrap: {error}")
    return Difference(other, level, per_seed, mean, interval, d_z, g_z, subjects, subjects_interval, "; ".join(notes))


def _is_complete(results: Results, run: Run, level: Level) -> bool:
    scores = run.scores[level]
    return all(site in scores and scores[site].of(results.main.key) is not None for site in results.sites)


def _mean_over_sites(run: Run, level: Level, metric: Metric) -> float:
    values = (score.of(metric.key) for score in run.scores[level].values())
    return metric.scale * statistics.fmean(value for value in values if value is not None)


def _share(right: npt.NDArray[np.float64], of: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Divide; 0 where no redrawn image has a score."""
    shares: npt.NDArray[np.float64] = right / np.where(of > 0, of, 1)
    return shares


def _hedges(df: int) -> float:
    """Give Hedges' exact correction for `df` > 1 degrees of freedom: gamma(df/2) / (sqrt(df/2) gamma((df-1)/2))."""
    return math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)


def _counts(outcome: Tally, level: Level) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return (outcome.windows_right, outcome.windows) if level == "window" else (outcome.votes_right, outcome.votes)
