"""`fedskew report`: one self-contained page from a RUN or COMPARE folder."""

from pathlib import Path

import click

from monai_fedskew.cli import options

__all__ = ["report"]


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The page.  [default: DIR/report.html]")
@options.force
def report(folder: Path, out: Path | None, force: bool) -> None:
    """Write one self-contained HTML page with tables and figures.

    DIR is what `fedskew simulate` or `compare` wrote with --out, or a RUN folder of the server of an engine.
    DIR/report.html is made anew at every call, and so are the figures of its tables in DIR/table.csv. With --out
    FILE.html they are written as FILE.csv beside it.
    """
    from monai_fedskew.reports import render_certainty, render_cost, render_table, write_report
    from monai_fedskew.reports.results import read_results
    from monai_fedskew.reports.target import table_beside

    page = write_report(folder, out, force=force)
    results = read_results(folder)
    click.echo(render_table(results, width=_width()))
    click.echo(render_certainty(results, width=_width()))
    click.echo(render_cost(results, width=_width()))
    click.echo(f"report: {page}\ntable:  {table_beside(folder, page)}")


def _width() -> int:
    import shutil

    # a narrower table would lose its last columns: let the terminal break the lines
    return max(120, shutil.get_terminal_size((120, 24)).columns)
