"""What came out: tables, certainty, figures and one self-contained page, from RUN and COMPARE folders."""

from itertools import chain
from pathlib import Path

from monai_fedskew.errors import DataError
from monai_fedskew.reports.results import Results, read_results

__all__ = ["read_results", "render_certainty", "render_cost", "render_table", "write_csv", "write_report"]


def render_table(results: Path | Results, *, width: int = 120) -> str:
    """Draw the tables of the main score at every level for a terminal, and say which runs are missing and why.

    Of runs on an engine also: which sites have no test scores, who came late and who was absent.

    Args:
        results: a RUN or COMPARE folder, or what was read from one.
        width: of the terminal, in characters.

    Raises:
        ConfigError: the folder is neither.
    """
    from monai_fedskew.reports.distributed import in_words
    from monai_fedskew.reports.spread import overview
    from monai_fedskew.reports.written import to_text

    read = read_results(results) if isinstance(results, Path) else results
    shown = [name for name in read.metrics if name == read.main.key or read.metric(name).is_better_low]
    forms = [overview(read, level, metric=name) for name in shown for level in read.levels]
    texts = [to_text(table, width=width) for table in forms] or ["No run has finished.\n"]
    missing = [f"{m.method}, seed {m.seed}: {m.reason}" for m in read.missing]
    without = ["Runs without a result:", *missing, ""] if missing else []
    gaps = ["Runs without their whole history:", *read.gaps, ""] if read.gaps else []
    return "\n".join([*texts, *without, *gaps, *in_words(read)])


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
    levels = read.levels or ("window", "subject")
    return "\n".join(filter(None, (to_text(read, level, width=width) for level in levels)))


def render_cost(results: Path | Results, *, width: int = 120) -> str:
    """Draw, for a terminal, what each method costs a site; empty where no run recorded it.

    Args:
        results: a RUN or COMPARE folder, or what was read from one.
        width: of the terminal, in characters.

    Raises:
        ConfigError: the folder is neither.
    """
    from monai_fedskew.reports.cost import to_text

    return to_text(read_results(results) if isinstance(results, Path) else results, width=width)


def write_report(folder: Path, out: Path | None = None, *, force: bool = False) -> Path:
    """Write the page of a RUN or COMPARE folder, and all its scores as CSV beside it.

    Args:
        folder: the folder.
        out: the page, ``*.html``. By default it is ``folder/report.html`` and the scores are ``folder/table.csv``;
            both are made anew at every call. The scores of another page go to a CSV file of the page's name.
        force: replace existing files at ``out``.

    Returns:
        Where the page is.

    Raises:
        ConfigError: the folder is neither, or a target exists and may not be replaced.
        DataError: a file in the folder cannot be read, or no run in it has finished.
    """
    from monai_fedskew.reports import target
    from monai_fedskew.reports.html import render_page

    page = out or target.default_page(folder)
    table = target.table_beside(folder, page)
    for place in (page, table):
        target.may_write(place, is_derived=target.is_default(folder, page), force=force)
    target.require_page(page)
    results = read_results(folder)
    _require_finished(results)
    html, scores = render_page(results), _csv(results)
    target.write_whole(page, html)
    target.write_whole(table, scores)
    return page


def write_csv(folder: Path) -> Path:
    """Write all scores of a RUN or COMPARE folder as one CSV, ``folder/table.csv``.

    Raises:
        ConfigError: the folder is neither, or the target is no regular file.
        DataError: a file in the folder cannot be read, or no run in it has finished.
    """
    from monai_fedskew.reports.target import may_write, write_whole

    target = folder / "table.csv"
    may_write(target, is_derived=True)
    results = read_results(folder)
    _require_finished(results)
    write_whole(target, _csv(results))
    return target


def _require_finished(results: Results) -> None:
    if results.runs:
        return
    first = next((f"; the first, {m.method}, seed {m.seed}: {m.reason}" for m in results.missing), "")
    raise DataError(f"{results.folder}: no run has finished ({len(results.missing)} missing{first}); run compare again")


def _csv(results: Results) -> str:
    from monai_fedskew.reports.cost import costs
    from monai_fedskew.reports.spread import tables
    from monai_fedskew.reports.written import to_csv

    found = (tables(results, level, metric) for level in results.levels for metric in results.metrics)
    return to_csv(chain.from_iterable(found), costs(results))
