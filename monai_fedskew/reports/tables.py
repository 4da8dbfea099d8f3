"""The table of results: per site, mean over sites and worst site, as text, CSV or rows for a page."""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from monai_fedskew.reports.cost import COLUMNS, CostRow
from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import Level, Results, Run

__all__ = ["MEAN", "Cell", "Metric", "Row", "Table", "best", "is_best", "summarise", "to_csv", "to_text"]

MEAN = "mean"
_COSTS = tuple(key for key, *_ in COLUMNS)
Metric = Literal["accuracy", "balanced_accuracy", "auc"]


@dataclass(frozen=True)
class Cell:
    """Mean and standard deviation over seeds, in percent; None where there is nothing to show.

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
    """One line of the table. ``cells`` follows the sites, then the mean over sites; ``source`` is empty for our own."""

    method: str
    cells: tuple[Cell, ...]
    worst_site: str = ""
    worst: Cell = Cell()
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Scores of all methods at one level.

    ``columns`` are the sites, then the mean over sites; ``note`` says at which sites the metric has no value.
    """

    level: Level
    metric: Metric
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def has_worst(self) -> bool:
        """Whether a row has a worst site; clients that differ from seed to seed have none."""
        return any(row.worst.mean is not None for row in self.rows)


def summarise(results: Results, level: Level = "window", *, metric: Metric = "accuracy") -> Table:
    """Summarise all runs at one level.

    Per site: mean over seeds and standard deviation with ddof=1, in percent. The mean over sites is unweighted; it is
    taken within each seed and then summarised over seeds, using only seeds in which every site was scored; of a single
    run it is over the sites that were scored, and the row says over how many. A site whose
    test subjects lack a class, so that balanced accuracy or AUC has no value, is left out of the mean of that seed; the
    table's note counts such sites. The worst site is the one with the lowest mean over seeds.

    Args:
        results: what :func:`read_results` returned.
        level: ``window`` (each window counts) or ``subject`` (each subject counts once, by majority of its windows).
        metric: which score.

    Returns:
        Own rows in the study's order, then one row per published figure at the same level.
    """
    sites = results.sites
    rows = [_row(results, method, level, metric) for method in results.methods]
    if metric == "accuracy":
        rows += _published_rows(results, level)
    return Table(level, metric, (*sites, MEAN), tuple(rows), _undefined(results, level, metric))


def best(table: Table) -> tuple[float | None, ...]:
    """Give the highest own mean of each column, then of the worst site; None for a column without values.

    Published rows take no part, as they come from other data, nor do rows over fewer seeds than others: their folds
    may be the easy ones.
    """
    own = [row for row in table.rows if not row.source]
    most = max((row.cells[-1].seeds for row in own), default=0)
    own = [row for row in own if row.cells[-1].seeds == most]
    columns = [[row.cells[k].mean for row in own] for k in range(len(table.columns))]
    columns.append([row.worst.mean for row in own])
    return tuple(max((v for v in column if v is not None), default=None) for column in columns)


def is_best(cell: Cell, top: float | None) -> bool:
    """Tell whether a cell reaches the highest value of its column, as far as the printed digit shows."""
    return cell.mean is not None and top is not None and f"{cell.mean:.1f}" == f"{top:.1f}"


def to_csv(tables: Iterable[Table], costs: Sequence[CostRow] = ()) -> str:
    """Write tables as one CSV, a line per level, method and column (long form, percent, full precision).

    The last columns hold what the line's method costs, empty where that was not measured.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["level", "metric", "source", "method", "site", "mean_percent", "std_percent", "seeds", *_COSTS])
    cost = {row.method: ["" if cell.value is None else cell.value for cell in row.cells] for row in costs}
    for table in tables:
        for row in table.rows:
            columns = [*zip(table.columns, row.cells, strict=True), (f"worst ({row.worst_site})", row.worst)]
            of_method = ([] if row.source else cost.get(row.method, [])) or [""] * len(_COSTS)
            for column, cell in columns:
                if cell.mean is not None:
                    figures = [f"{cell.mean:.4f}", "" if cell.std is None else f"{cell.std:.4f}", cell.seeds or ""]
                    named = [table.level, table.metric, row.source or "ours", row.method, column]
                    writer.writerow([*named, *figures, *of_method])
    return out.getvalue()


def to_text(table: Table, *, width: int = 120) -> str:
    """Draw a table for a terminal of ``width`` characters; the best own value of each column has a star behind it."""
    tops = best(table)
    several = sum(not row.source for row in table.rows) > 1
    title = f"{table.metric.replace('_', ' ')}, {table.level} level, percent (mean ± std over seeds)"
    drawn = RichTable(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="")
    drawn.add_column("method", min_width=max(len(row.method) for row in table.rows), max_width=30)
    for column in table.columns:
        drawn.add_column("mean over sites" if column == MEAN else column, justify="right", min_width=11)
    if table.has_worst:
        drawn.add_column("worst site", justify="right")
    for k, row in enumerate(table.rows):
        worst = f"{row.worst} {row.worst_site}" if row.worst.mean is not None else "-"
        texts = [*(str(cell) for cell in row.cells), worst]
        marked = [
            several and not row.source and is_best(c, t) for c, t in zip((*row.cells, row.worst), tops, strict=True)
        ]
        stars = [f"{text}*" if mark else text for text, mark in zip(texts, marked, strict=True)]
        following = table.rows[k + 1].source if k + 1 < len(table.rows) else row.source
        if row.source and (k == 0 or table.rows[k - 1].source != row.source):
            drawn.add_row(f"{row.source}:")
        shown = stars if table.has_worst else stars[:-1]
        drawn.add_row(row.method, *shown, end_section=following != row.source)
    footnotes = ["* highest of the methods run here"] if several else []
    footnotes += [table.note] if table.note else []
    footnotes += [f"{row.method}: {row.note}" for row in table.rows if row.note]
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False).print(drawn)
    return out.getvalue() + "".join(f"{note}\n" for note in footnotes)


def _row(results: Results, method: str, level: Level, metric: Metric) -> Row:
    runs = results.of(method)
    sites = results.sites
    per_site = [_cell(v for run in runs if (v := _value(run, level, site, metric)) is not None) for site in sites]
    means = [mean for run in runs if (mean := _mean(run, level, results.averaged(run), metric)) is not None]
    worst_site, worst = _lowest(sites, per_site)
    return Row(method, (*per_site, _cell(means)), worst_site, worst, note=_note(results, runs, method, len(means)))


def _mean(run: Run, level: Level, sites: Sequence[str], metric: Metric) -> float | None:
    """Mean over sites of a run; None if a site was not scored at all, or no site has the metric."""
    if any(_value(run, level, site, "accuracy") is None for site in sites):
        return None
    known = [value for site in sites if (value := _value(run, level, site, metric)) is not None]
    return statistics.fmean(known) if known else None


def _undefined(results: Results, level: Level, metric: Metric) -> str:
    """Say where scored sites lack a metric; the test subjects, and so the gaps, are the same for all methods."""
    lacking: dict[str, set[int]] = {}
    for run in results.runs.values():
        for site, score in run.scores[level].items():
            if score.accuracy is not None and getattr(score, metric) is None and metric not in score.unmeasured:
                lacking.setdefault(site, set()).add(run.seed)
    name = {"auc": "area under the curve", "balanced_accuracy": "balanced accuracy"}.get(metric, metric)
    places = [
        f"{site} in {len(seeds)} of {len(results.seeds)} seeds ({as_ranges(seeds)})" for site, seeds in lacking.items()
    ]
    if not places:
        return ""
    return (
        f"No {name} at {', '.join(places)}: it has no value where the test subjects lack a class. The mean of such a "
        "seed is over the other sites."
    )


def _lowest(sites: Sequence[str], cells: Sequence[Cell]) -> tuple[str, Cell]:
    scored = [(cell.mean, site, cell) for site, cell in zip(sites, cells, strict=True) if cell.mean is not None]
    if not scored:
        return "", Cell()
    _, site, cell = min(scored, key=lambda one: one[0])
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


def _published_rows(results: Results, level: Level) -> list[Row]:
    rows = []
    for block in results.published:
        for method, figures in block.values.items() if block.level == level else ():
            shown = [Cell(*figures[site]) if site in figures else Cell() for site in results.sites]
            known = [cell.mean for cell in shown if cell.mean is not None]
            if not known and MEAN not in figures:
                continue
            complete = known and len(known) == len(shown)
            mean = Cell(*figures[MEAN]) if MEAN in figures else Cell(statistics.fmean(known)) if complete else Cell()
            site, worst = _lowest(results.sites, shown) if complete else ("", Cell())
            rows.append(Row(method, (*shown, mean), site, worst, source=block.source))
    return rows


def _value(run: Run, level: Level, site: str, metric: Metric) -> float | None:
    score = run.scores[level].get(site)
    value: float | None = getattr(score, metric) if score is not None else None
    return value


def _cell(values: Iterable[float]) -> Cell:
    percent = [100 * value for value in values]
    if not percent:
        return Cell()
    return Cell(statistics.fmean(percent), statistics.stdev(percent) if len(percent) > 1 else None, len(percent))
