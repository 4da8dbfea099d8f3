"""The table of results as text for a terminal and as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from monai_fedskew.reports.cost import COLUMNS, CostRow
from monai_fedskew.reports.tables import MEAN, STD, Row, Table, best, is_best

__all__ = ["to_csv", "to_text"]

_COSTS = tuple(key for key, *_ in COLUMNS)


def to_csv(tables: Iterable[Table], costs: Sequence[CostRow] = ()) -> str:
    """Write tables as one CSV, a line per level, method and column (long form, full precision).

    Where all scores are shares they are in percent and the columns say so; else there is a column for the unit. The
    last columns hold what the line's method costs, empty where that was not measured.
    """
    out, tables = io.StringIO(), list(tables)
    writer = csv.writer(out, lineterminator="\n")
    is_percent = all(table.metric.unit == "percent" for table in tables)
    figures = ["mean_percent", "std_percent", "seeds"] if is_percent else ["mean", "std", "unit", "seeds"]
    writer.writerow(["level", "metric", "source", "method", "site", *figures, *_COSTS])
    cost = {row.method: ["" if cell.value is None else cell.value for cell in row.cells] for row in costs}
    for table in tables:
        for row in table.rows:
            columns = [*zip(table.columns, row.cells, strict=True), (f"worst ({row.worst_site})", row.worst)]
            columns.append((STD, row.fairness))
            of_method = ([] if row.source else cost.get(row.method, [])) or [""] * len(_COSTS)
            for column, cell in columns:
                if cell.mean is not None:
                    unit = [] if is_percent else [table.metric.unit]
                    spread = "" if cell.std is None else f"{cell.std:.4f}"
                    named = [table.level, table.metric.key, row.source or "ours", row.method, column]
                    writer.writerow([*named, f"{cell.mean:.4f}", spread, *unit, cell.seeds or "", *of_method])
    return out.getvalue()


def to_text(table: Table, *, width: int = 120) -> str:
    """Draw a table for a terminal of ``width`` characters; the best own value of each column has a star behind it.

    A table of many columns is wider, so that no text is lost; the deviation over sites is left out where it lacks room.
    """
    tops = best(table)
    several = sum(not row.source for row in table.rows) > 1
    unit = f", {table.metric.unit}" if table.metric.unit else ""
    title = f"{table.metric.name}, {table.word} level{unit} (mean ± std over seeds)"
    drawn = RichTable(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="")
    drawn.add_column("method", min_width=max(len(row.method) for row in table.rows), max_width=30)
    for column in table.columns:
        drawn.add_column("mean over sites" if column == MEAN else column, justify="right", min_width=11)
    if table.has_worst:
        drawn.add_column("worst site", justify="right")
    room = _room(table)
    has_room = table.has_fairness and room + len(STD) + 3 <= width
    if has_room:
        drawn.add_column(STD, justify="right")
    for k, row in enumerate(table.rows):
        texts = [*(str(cell) for cell in row.cells), _worst(row), str(row.fairness)]
        cells = (*row.cells, row.worst, row.fairness)
        marked = [several and not row.source and is_best(c, t) for c, t in zip(cells, tops, strict=True)]
        stars = [f"{text}*" if mark else text for text, mark in zip(texts, marked, strict=True)]
        following = table.rows[k + 1].source if k + 1 < len(table.rows) else row.source
        if row.source and (k == 0 or table.rows[k - 1].source != row.source):
            drawn.add_row(f"{row.source}:")
        last = [*([stars[-2]] if table.has_worst else []), *([stars[-1]] if has_room else [])]
        drawn.add_row(row.method, *stars[:-2], *last, end_section=following != row.source)
    lowest = f"; of the {STD} the lowest" if has_room and not table.metric.is_better_low else ""
    footnotes = [f"* {table.metric.best} of the methods run here{lowest}"] if several else []
    footnotes += [table.note] if table.note else []
    footnotes += [f"{row.method}: {row.note}" for row in table.rows if row.note]
    out = io.StringIO()
    Console(file=out, width=max(width, room), color_system=None, highlight=False, markup=False).print(drawn)
    return out.getvalue() + "".join(f"{note}\n" for note in footnotes)


def _worst(row: Row) -> str:
    return f"{row.worst} {row.worst_site}" if row.worst.mean is not None else "-"


def _room(table: Table) -> int:
    """Give the width of a table without the deviation over sites, where no text is broken."""
    methods = [row.method[:30] for row in table.rows]
    columns = [["0" * 11, *(f"{row.cells[k]}*" for row in table.rows)] for k in range(len(table.columns))]
    names = ["mean over sites" if column == MEAN else column for column in table.columns]
    worst = ["worst site", *(f"{_worst(row)}*" for row in table.rows)] if table.has_worst else [""]
    widths = [max(map(len, texts)) for texts in (methods, worst, *columns)]
    return sum(max(2, 3) + width for width in map(max, widths, [6, 0, *map(len, names)])) + 2
