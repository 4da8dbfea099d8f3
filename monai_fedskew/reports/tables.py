"""The table of results: per site, mean over sites, worst site and how far sites differ."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monai_fedskew.reports.metrics import Metric
from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import Level, Results, Run, Score

__all__ = ["MEAN", "STD", "Cell", "Row", "Table", "best", "is_best", "summarise"]

MEAN = "mean"
STD = "std over sites"


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, in the metric's unit; None where there is nothing to show.

    ``seeds`` is 0 for a figure from elsewhere.
    """

    mean: float | None = None
    std: float | None = None
    seeds: int = 0

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        if self.std is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class Row:
    """One line of the table. ``cells`` follows the sites, then the mean over sites; ``source`` is empty for our own.

    ``fairness`` is the standard deviation over sites (ddof=0) of each seed, summarised over seeds: 0 where all sites
    fare alike.
    """

    method: str
    cells: tuple[Cell, ...]
    worst_site: str = ""
    worst: Cell = Cell()
    source: str = ""
    note: str = ""
    fairness: Cell = Cell()


@dataclass(frozen=True)
class Table:
    """Scores of all methods at one level.

    ``columns`` are the sites, then the mean over sites; ``word`` is what a sample is called; ``note`` says at which
    sites the metric has no value.
    """

    level: Level
    metric: Metric
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    word: str = "window"

    @property
    def has_fairness(self) -> bool:
        """Whether a row has more than one site to differ."""
        return any(row.fairness.mean is not None for row in self.rows)

    @property
    def has_worst(self) -> bool:
        """Whether a row has a worst site; clients that differ from seed to seed have none."""
        return any(row.worst.mean is not None for row in self.rows)


def summarise(results: Results, level: Level = "window", *, metric: str = "") -> Table:
    """Summarise all runs at one level.

    Per site: mean over seeds and standard deviation with ddof=1, shares in percent. The mean over sites is unweighted;
    it is taken within each seed and then summarised over seeds, using only seeds in which every site was scored; of a
    single run it is over the sites that were scored, and the row says over how many. So is the standard deviation over
    sites.
    A site whose test subjects lack a class, so that balanced accuracy or AUC has no value, is left out of the mean of
    that seed; the table's note counts such sites. The worst site is the one with the lowest mean over seeds, of a
    distance the highest.

    Args:
        results: what :func:`read_results` returned.
        level: ``window`` (each window counts) or ``subject`` (each subject counts once, by majority of its windows).
        metric: which score; by default the main one.

    Returns:
        Own rows in the study's order, then one row per published figure at the same level.
    """
    sites, shown = results.sites, results.metric(metric) if metric else results.main
    rows = [_row(results, method, level, shown) for method in results.methods]
    rows += _published_rows(results, level, shown)
    note = _undefined(results, level, shown)
    return Table(level, shown, (*sites, MEAN), tuple(rows), note, results.word(level))


def best(table: Table) -> tuple[float | None, ...]:
    """Give the best own mean of each column, then of the worst site and of the deviation over sites (lowest is best).

    The highest is best, of a distance the lowest; None for a column without values.

    Published rows take no part, as they come from other data, nor do rows over fewer seeds than others: their folds
    may be the easy ones.
    """
    own = [row for row in table.rows if not row.source]
    most = max((row.cells[-1].seeds for row in own), default=0)
    own = [row for row in own if row.cells[-1].seeds == most]
    columns = [[row.cells[k].mean for row in own] for k in range(len(table.columns))]
    columns.append([row.worst.mean for row in own])
    choose = min if table.metric.is_better_low else max
    tops = [choose((v for v in column if v is not None), default=None) for column in columns]
    return (*tops, min((row.fairness.mean for row in own if row.fairness.mean is not None), default=None))


def is_best(cell: Cell, top: float | None) -> bool:
    """Tell whether a cell reaches the best value of its column, as far as the printed digit shows."""
    return cell.mean is not None and top is not None and f"{cell.mean:.1f}" == f"{top:.1f}"


def _row(results: Results, method: str, level: Level, metric: Metric) -> Row:
    runs = results.of(method)
    sites = results.sites
    per_site = [_cell(v for run in runs if (v := _value(run, level, site, metric)) is not None) for site in sites]
    at_sites = [values for run in runs if (values := _at_sites(run, level, results.averaged(run), metric))]
    mean, fairness = _cell(map(statistics.fmean, at_sites)), _cell(statistics.pstdev(v) for v in at_sites if len(v) > 1)
    worst_site, worst = _extreme(sites, per_site, metric)
    notes = filter(
        None, (_note(results, runs, method, len(at_sites)), _without(runs, level, metric, results.word(level)))
    )
    return Row(method, (*per_site, mean), worst_site, worst, note="; ".join(notes), fairness=fairness)


def _at_sites(run: Run, level: Level, sites: Sequence[str], metric: Metric) -> list[float]:
    """Give the values of a run; none if a site was not scored at all, or no site has the metric."""
    if not all(site in run.scores[level] and _is_scored(run.scores[level][site]) for site in sites):
        return []
    return [value for site in sites if (value := _value(run, level, site, metric)) is not None]


def _is_scored(score: Score) -> bool:
    return any(value is not None for value in score.values.values())


def _without(runs: Sequence[Run], level: Level, metric: Metric, word: str) -> str:
    """Say of how many images a segmentation has no score: it differs between methods, and so do the means."""
    scores = [score for run in runs for score in run.scores[level].values()]
    count = sum(score.counts.get(f"{metric.key}_undefined", 0) for score in scores)
    return f"{count} of {sum(score.samples for score in scores)} {word}s have no value" if count else ""


def _undefined(results: Results, level: Level, metric: Metric) -> str:
    """Say where scored sites lack a metric; the test subjects, and so the gaps, are the same for all methods."""
    lacking: dict[str, set[int]] = {}
    for run in results.runs.values():
        for site, score in run.scores[level].items():
            if _is_scored(score) and metric.key in score.values and score.of(metric.key) is None:
                lacking.setdefault(site, set()).add(run.seed)
    name = "area under the curve" if metric.key == "auc" else metric.short
    places = [
        f"{site} in {len(seeds)} of {len(results.seeds)} seeds ({as_ranges(seeds)})" for site, seeds in lacking.items()
    ]
    if not places:
        return ""
    return f"No {name} at {', '.join(places)}: {metric.lacks}. The mean of such a seed is over the other sites."


def _extreme(sites: Sequence[str], cells: Sequence[Cell], metric: Metric) -> tuple[str, Cell]:
    """Give the worst site: the lowest, of a distance the highest."""
    choose = max if metric.is_better_low else min
    scored = [(cell.mean, site, cell) for site, cell in zip(sites, cells, strict=True) if cell.mean is not None]
    if not scored:
        return "", Cell()
    _, site, cell = choose(scored, key=lambda one: one[0])
    return site, cell


def _note(results: Results, runs: tuple[Run, ...], method: str, complete: int) -> str:
    notes = []
    if len(runs) < len(results.seeds):
        seeds = ", ".join(str(m.seed) for m in results.missing if m.method == method)
        notes.append(f"{len(runs)} of {len(results.seeds)} seeds (missing: {seeds})" if runs else "no finished run")
    if complete < len(runs):
        notes.append(f"a site has no score in {len(runs) - complete} of {len(runs)} runs")
    elif runs and results.is_single and runs[0].unfinished:
        notes.append(f"mean and worst over {len(results.averaged(runs[0]))} of {len(results.sites)} sites")
    return "; ".join(notes)


def _published_rows(results: Results, level: Level, metric: Metric) -> list[Row]:
    rows = []
    blocks = [one for one in results.published if one.level == level and (one.metric or results.main.key) == metric.key]
    for block in blocks:
        for method, figures in block.values.items():
            shown = [Cell(*figures[site]) if site in figures else Cell() for site in results.sites]
            known = [cell.mean for cell in shown if cell.mean is not None]
            if not known and MEAN not in figures:
                continue
            complete = known and len(known) == len(shown)
            mean = Cell(*figures[MEAN]) if MEAN in figures else Cell(statistics.fmean(known)) if complete else Cell()
            site, worst = _extreme(results.sites, shown, metric) if complete else ("", Cell())
            rows.append(Row(method, (*shown, mean), site, worst, source=block.source))
    return rows


def _value(run: Run, level: Level, site: str, metric: Metric) -> float | None:
    score = run.scores[level].get(site)
    value = score.of(metric.key) if score is not None else None
    return None if value is None else metric.scale * value


def _cell(values: Iterable[float]) -> Cell:
    known = list(values)
    if not known:
        return Cell()
    return Cell(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))
