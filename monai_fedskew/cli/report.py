"""`fedskew report`: one self-contained page from a RUN or COMPARE folder."""

from pathlib import Path

import click

__all__ = ["report"]


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The page.  [default: DIR/report.html]")
def report(folder: Path, out: Path | None) -> None:
    """Write one self-contained HTML page with tables and figures.

    DIR is what `fedskew simulate` or `fedskew compare` wrote with --out. The page is made anew at every call; the
    figures of its tables are written beside it as table.csv.
    """
    from monai_fedskew.reports import render_certainty, render_table, write_csv, write_report

    page = write_report(folder, out)
    table = write_csv(folder, page.with_name("table.csv"))
    click.echo(render_table(folder, width=_width()))
    click.echo(render_certainty(folder, width=_width()))
    click.echo(f"report: {page}\ntable:  {table}")


def _width() -> int:
    import shutil

    return max(80, shutil.get_terminal_size((120, 24)).columns)
