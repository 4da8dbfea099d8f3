"""How sure one can be, for the terminal."""

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from monai_fedskew.reports.certainty import Difference, compare_to_first, rank_test_sentence
from monai_fedskew.reports.results import Level, Results

__all__ = ["to_text"]


def to_text(results: Results, level: Level, *, width: int = 120) -> str:
    """Draw the differences against the first method of a study; empty where there is nothing to compare.

    Args:
        results: what was read from a COMPARE folder.
        level: ``window`` or ``subject``.
        width: of the terminal, in characters.
    """
    differences = compare_to_first(results, level)
    if not differences:
        return ""
    metric, word = results.main, results.word(level)
    title = f"{metric.name} minus that of {results.methods[0]}, {word} level, mean over sites, {metric.points}"
    drawn = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="")
    for name in ("method", "over seeds", "95 % t interval", "d_z", "over subjects", "95 % bootstrap interval"):
        drawn.add_column(name, justify="left" if name == "method" else "right")
    for difference in differences:
        drawn.add_row(difference.method, *_cells(difference))
    notes = [f"{difference.method}: {difference.note}" for difference in differences if difference.note]
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False, markup=False)
    console.print(drawn)
    for line in (*notes, rank_test_sentence(len(results.seeds))):
        console.print(line)
    return out.getvalue()


def _cells(difference: Difference) -> tuple[str, ...]:
    effect = "-" if difference.d_z is None else f"{difference.d_z:+.2f}"
    intervals = [
        "-" if pair is None else f"{_signed(pair[0])} to {_signed(pair[1])}"
        for pair in (difference.seeds_interval, difference.subjects_interval)
    ]
    means = ["-" if mean is None else _signed(mean) for mean in (difference.mean, difference.subjects)]
    return means[0], intervals[0], effect, means[1], intervals[1]


def _signed(value: float) -> str:
    is_tiny = value != 0 and abs(value) < 0.05  # "-0.0" would hide on which side of zero it lies
    return f"{value:+.2f}" if is_tiny else f"{value:+.1f}"
