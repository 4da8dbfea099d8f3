"""Scores of many sites in few columns: the lowest, the median and the highest of each run."""

import statistics
from collections.abc import Callable, Sequence

from monai_fedskew.reports.metrics import Metric
from monai_fedskew.reports.results import Level, Results, Run
from monai_fedskew.reports.tables import MEAN, Cell, Row, Table, summarise

__all__ = ["MANY", "is_crowded", "overview", "spread", "tables"]

MANY = 12  # more columns of sites are no table any more
_COLUMNS: tuple[tuple[str, Callable[[Sequence[float]], float]], ...] = (
    ("lowest", min),
    ("median", statistics.median),
    ("highest", max),
)


def is_crowded(results: Results) -> bool:
    """Tell whether sites need another form than a column each: many, or clients that differ from seed to seed."""
    return len(results.sites) > MANY or results.differ_by_seed


def overview(results: Results, level: Level = "window", *, metric: str = "") -> Table:
    """Summarise all runs in the form that suits the number of sites."""
    form = spread if is_crowded(results) else summarise
    return form(results, level, metric=metric)


def tables(results: Results, level: Level, metric: str) -> tuple[Table, ...]:
    """Give all that can be told of a level, for a file: the sites, and their spread where they are crowded."""
    each = () if results.differ_by_seed else (summarise(results, level, metric=metric),)
    return (*each, spread(results, level, metric=metric)) if is_crowded(results) else each


def spread(results: Results, level: Level = "window", *, metric: str = "") -> Table:
    """Summarise the lowest, the median and the highest site of each run, then the mean over sites.

    Each is taken within a seed, over the sites that have the metric, and then summarised over seeds as in
    ``summarise``; so is the worst site, but where clients differ from seed to seed it has no name.

    Args:
        results: what :func:`read_results` returned.
        level: ``window`` or ``subject``.
        metric: which score; by default the main one.
    """
    whole = summarise(results, level, metric=metric)
    rows = [_row(results, row, level, whole.metric) for row in whole.rows if not row.source]
    count, name = len(results.sites), "clients" if results.is_dealt else "sites"
    notes = [f"Lowest, median and highest of the {count} {name} of each seed.", *filter(None, (_undefined(whole),))]
    columns = (*(column for column, _ in _COLUMNS), MEAN)
    return Table(level, whole.metric, columns, tuple(rows), " ".join(notes), whole.word)


def _row(results: Results, row: Row, level: Level, metric: Metric) -> Row:
    runs = results.of(row.method)
    known = [values for run in runs if (values := _values(run, level, metric))]
    cells = [_cell([of(values) for values in known]) for _, of in _COLUMNS]
    worst = ("", Cell()) if results.differ_by_seed else (row.worst_site, row.worst)
    return Row(row.method, (*cells, row.cells[-1]), *worst, note=row.note, fairness=row.fairness)


def _values(run: Run, level: Level, metric: Metric) -> list[float]:
    values = (score.of(metric.key) for score in run.scores[level].values())
    return [metric.scale * value for value in values if value is not None]


def _cell(values: Sequence[float]) -> Cell:
    if not values:
        return Cell()
    return Cell(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def _undefined(table: Table) -> str:
    """Say that some sites lack the metric, without their names."""
    lacks = table.metric.lacks.removeprefix("it has no value where ")
    return f"Sites have no value and are left out where {lacks}." if table.note else ""
