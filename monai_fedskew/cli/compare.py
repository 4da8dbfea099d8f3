"""``fedskew compare``: methods x seeds in parallel processes, one table, one page."""

from pathlib import Path
from typing import Any

import click

from monai_fedskew.cli import options

__all__ = ["compare"]


@click.command()
@click.argument("bundle")
@options.data
@click.option("--study", help="A study of the bundle, e.g. fedbn_table1; the options below change it.")
@click.option("--method", "methods", multiple=True, help="A method to compare; the first is the reference. Repeatable.")
@click.option("--site", "sites", multiple=True, help="Only these sites. Repeatable. [the study's, or all]")
@click.option("--seeds", type=click.IntRange(1), help="Number of seeds; seed s tests subject fold s. [5]")
@click.option("--jobs", type=click.IntRange(1), help="Processes at once. [number of cores]")
@options.run_options
@options.partition_options
@options.resume
@options.force
@options.out
def compare(
    bundle: str,
    data: Path,
    study: str | None,
    jobs: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    force: bool,
    out: Path,
    **given: Any,
) -> None:
    """Compare methods over the sites of --data with BUNDLE, a name from `fedskew bundle list` or a folder.

    Either --study NAME, or --method M --method M ... --rounds N. Writes one RUN folder per method and seed, table.txt,
    table.csv and report.html to --out.
    """
    from monai_fedskew.cli.comparison import run_comparison
    from monai_fedskew.cli.study import Study, parse_overrides, read_study, with_options
    from monai_fedskew.errors import ConfigError
    from monai_fedskew.sites.locate import find_bundle

    folder = find_bundle(bundle)
    given["overrides"] = parse_overrides(overrides)
    if study is not None:
        chosen = with_options(read_study(folder, study), given)
    elif not given["methods"] or given["rounds"] is None:
        raise ConfigError("give --study NAME, or --method M (repeatable) and --rounds N")
    else:
        chosen = with_options(Study("Comparison", given["methods"], given["rounds"]), given)
    run_comparison(folder, data, chosen, out, name=study, jobs=jobs, resume=resume, force=force)
