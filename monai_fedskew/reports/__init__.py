"""What came out: tables, certainty, figures and one self-contained page, from RUN and COMPARE folders."""

from pathlib import Path
from typing import get_args

from monai_fedskew.errors import DataError
from monai_fedskew.reports.results import Results, read_results

__all__ = ["read_results", "render_certainty", "render_table", "write_csv", "write_report"]


def render_table(results: Path | Results, *, width: int = 120) -> str:
    """Draw the tables of accuracy at window and subject level for a terminal, and say which runs are missing and why.

    Args:
        results: a RUN or COMPARE folder, or what was read from one.
        width: of the terminal, in characters.

    Raises:
        ConfigError: the folder is neither.
    """
    from monai_fedskew.reports.tables import summarise, to_text

    read = read_results(results) if isinstance(results, Path) else results
    texts = [to_text(summarise(read, level), width=width) for level in read.levels] or ["No run has finished.\n"]
    missing = [f"{m.method}, seed {m.seed}: {m.reason}" for m in read.missing]
    return "\n".join([*texts, *(["Runs without a result:", *missing, ""] if missing else [])])


def render_certainty(results: Path | Results, *, width: int = 120) -> str:
    """Draw, for a terminal, how sure one can be that methods differ from the first of a study.

    Args:
        results: a COMPARE folder, or what was read from one.
        width: of the terminal, in characters.

    Raises:
        ConfigError: the folder is neither a RUN nor a COMPARE folder.
    """
    from monai_fedskew.reports.verdict import to_text

    read = read_results(results) if isinstance(results, Path) else results
    return "\n".join(filter(None, (to_text(read, "window", width=width), to_text(read, "subject", width=width))))


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a RUN or COMPARE folder.

    Args:
        folder: the folder.
        out: the page; default ``folder/report.html``. An existing page is replaced.

    Returns:
        Where the page is.

    Raises:
        ConfigError: the folder is neither.
        DataError: a file in it cannot be read, or no run in it has finished.
    """
    from monai_fedskew.reports.html import write_page

    results, target = read_results(folder), out or folder / "report.html"
    _require_finished(results)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_page(results, target)
    return target


def write_csv(folder: Path, out: Path | None = None) -> Path:
    """Write all scores of a RUN or COMPARE folder as one CSV, by default ``folder/table.csv``.

    Raises:
        ConfigError: the folder is neither.
        DataError: no run in it has finished.
    """
    from monai_fedskew.reports.tables import Metric, summarise, to_csv

    read = read_results(folder)
    _require_finished(read)
    text = to_csv(summarise(read, level, metric=metric) for level in read.levels for metric in get_args(Metric))
    target = out or folder / "table.csv"
    target.write_text(text, encoding="utf-8")
    return target


def _require_finished(results: Results) -> None:
    if results.runs:
        return
    first = next((f"; the first, {m.method}, seed {m.seed}: {m.reason}" for m in results.missing), "")
    raise DataError(f"{results.folder}: no run has finished ({len(results.missing)} missing{first}); run compare again")
