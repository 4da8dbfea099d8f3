"""``fedskew simulate``: one method over the prepared sites, in this process."""

from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli import options

__all__ = ["simulate"]


@click.command()
@click.argument("bundle")
@options.data
@options.method
@click.option("--site", "sites", multiple=True, help="Only these sites. Repeatable. [all prepared ones]")
@options.seed
@options.run_options
@options.partition_options
@click.option("--max-alive", type=click.IntRange(1), help="Sites held in memory at once; the rest are rebuilt. [all]")
@options.resume
@options.force
@options.out
def simulate(
    bundle: str,
    data: Path,
    method: str,
    sites: tuple[str, ...],
    overrides: tuple[str, ...],
    max_alive: int | None,
    partition: str | None,
    clients: int | None,
    resume: bool,
    force: bool,
    out: Path,
    **given: Any,
) -> None:
    """Run one METHOD over the sites of --data with BUNDLE, a name from `fedskew bundle list` or a folder.

    Writes the RUN folder --out: history, a checkpoint of every round, one ready-to-run bundle a site, a summary. With
    --partition the sites are clients that hold rows of all prepared ones; of these it writes the predictions only.
    """
    from monai_fedskew.cli.execute import RunSpec, execute, verify_sites
    from monai_fedskew.cli.progress import round_progress
    from monai_fedskew.cli.study import parse_overrides
    from monai_fedskew.reports import render_cost, render_table
    from monai_fedskew.sites.locate import find_bundle

    settings = options.settings_of(given)
    spec = RunSpec(
        find_bundle(bundle),
        data,
        method,
        settings,
        out,
        sites,
        parse_overrides(overrides),
        max_alive=max_alive,
        partition=options.partition_of(partition, clients),
    )
    verify_sites(data, sites)
    with round_progress(method, settings.rounds) as on_round:
        execute(spec, resume=resume, force=force, on_round=on_round)
    click.echo(render_table(out))
    click.echo(render_cost(out))
    click.echo(f"run: {out}\nFor the page: fedskew report {out}")
