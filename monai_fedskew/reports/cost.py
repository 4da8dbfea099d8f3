"""What methods cost a site, as a table: each value, and how many times that of FedAvg it is."""

import io
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from monai_fedskew.reports.results import Results

__all__ = ["COLUMNS", "REFERENCE", "CostCell", "CostRow", "costs", "measured_at", "to_text"]

REFERENCE = "fedavg"
# key of summary.json, heading, unit, what it is
COLUMNS = (
    (
        "flops_per_sample",
        "operations a sample",
        "FLOP",
        "floating point operations of one training step, forward and backward, divided by the samples of its batch. "
        "Matrix products, convolutions and attention are counted, a multiplication and its addition as two; operations "
        "element by element are not. Papers often count forward passes only, a multiplication and its addition as one",
    ),
    (
        "stored_values",
        "values held",
        "",
        "numbers that lie at the site while it trains: those of the network (running statistics included) and those "
        "that the method keeps beside it, such as the received model or another network. Gradients, activations and "
        "what the optimizer keeps are not counted",
    ),
    ("received_bytes", "received a round", "B", "one broadcast to one site: the shared entries and what parts tell"),
    ("sent_bytes", "sent a round", "B", "one update of one site: the shared entries and what parts report"),
    ("survey_bytes", "survey, once", "B", "the site's report before its first round"),
    (
        "seconds_per_round",
        "seconds a round",
        "s",
        "time of a round of all sites one after the other in this process, scoring included; runs side by side on few "
        "cores slow each other down",
    ),
)


@dataclass(frozen=True)
class CostCell:
    """A value, None where it was not measured, and how many times that of FedAvg it is, None where there is none."""

    value: float | None
    unit: str = ""
    times: float | None = None

    def __str__(self) -> str:
        """Write three digits and a prefix."""
        return "-" if self.value is None else f"{_short(self.value)}{self.unit}"

    @property
    def ratio(self) -> str:
        """Write how many times it is; empty where there is nothing to compare with."""
        return "" if self.times is None else f"{self.times:.2f} x"


@dataclass(frozen=True)
class CostRow:
    """The cost of a method; ``cells`` follows COLUMNS."""

    method: str
    cells: tuple[CostCell, ...]


def costs(results: Results) -> tuple[CostRow, ...]:
    """List the cost of each method whose runs recorded one, in the study's order: means over seeds.

    Args:
        results: what :func:`read_results` returned; runs from before costs were measured have none.
    """
    values = {
        method: [_mean(run.cost.get(key) for run in measured) for key, *_ in COLUMNS]
        for method in results.methods
        if (measured := [run for run in results.of(method) if run.cost])
    }
    reference = values.get(REFERENCE) if len(values) > 1 else None
    return tuple(
        CostRow(method, tuple(_cell(k, value, reference) for k, value in enumerate(row)))
        for method, row in values.items()
    )


def measured_at(results: Results) -> str:
    """Name the site or sites that the costs were measured at."""
    return ", ".join(dict.fromkeys(run.cost_site for run in results.runs.values() if run.cost_site))


def to_text(results: Results, *, width: int = 120) -> str:
    """Draw the costs for a terminal; empty where no run recorded any.

    Args:
        results: what was read from a RUN or COMPARE folder.
        width: of the terminal, in characters.
    """
    rows = costs(results)
    if not rows:
        return ""
    title = f"cost at a site, measured at {measured_at(results)}"
    drawn = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="")
    drawn.add_column("method", min_width=max(len(row.method) for row in rows), max_width=30)
    for _, heading, *_ in COLUMNS:
        drawn.add_column(heading, justify="right")
    for row in rows:
        drawn.add_row(row.method, *(f"{cell}\n{cell.ratio}".strip() for cell in row.cells))
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False)
    console.print(drawn)
    compared = any(cell.times is not None for row in rows for cell in row.cells)
    return out.getvalue() + (f"x: times {REFERENCE}\n" if compared else "")


def _cell(column: int, value: float | None, reference: list[float | None] | None) -> CostCell:
    base = reference[column] if reference else None
    return CostCell(value, COLUMNS[column][2], value / base if value is not None and base else None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _short(value: float) -> str:
    """Write three digits with a prefix: 385408 is "385 k"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:#.3g}".rstrip(".") + f" {prefix}"
    return f"{value:.3g} "
