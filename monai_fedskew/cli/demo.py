"""``fedskew demo``: from raw synthetic scans to a report, as a first look."""

from pathlib import Path

import click

from monai_fedskew.cli import options

__all__ = ["demo"]


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True, help="Folder to write."
)
@options.force
def demo(out: Path, force: bool) -> None:
    """Run the whole job on four synthetic hospitals: prepare, compare, report. Under two minutes, no download.

    The scans, the table of subjects and the skew between the sites are made up; the commands are the real ones.
    """
    import shutil

    from monai_fedskew.cli.comparison import run_comparison
    from monai_fedskew.cli.main import fedskew
    from monai_fedskew.cli.study import read_study
    from monai_fedskew.data.synthetic import write_synthetic_abide
    from monai_fedskew.errors import ConfigError
    from monai_fedskew.sites.locate import find_bundle

    raw, prepared, compared = out / "scans", out / "prepared", out / "comparison"
    if out.exists() and any(out.iterdir()):
        if not force:
            raise ConfigError(f"--out {out} exists; choose another folder or replace it with --force")
        if not raw.is_dir():
            raise ConfigError(f"--force: {out} is no demo (no {raw.name}/ in it); it is left alone")
        shutil.rmtree(out)
    bundle = find_bundle("abide_connectome")
    click.echo(f"1 of 3  four synthetic hospitals -> {raw}")
    write_synthetic_abide(raw)
    click.echo(f"2 of 3  fedskew abide prepare {raw} --out {prepared}")
    fedskew.main(args=["abide", "prepare", str(raw), "--out", str(prepared)], standalone_mode=False)
    click.echo(f"3 of 3  fedskew compare {bundle.name} --study demo --data {prepared} --out {compared}")
    run_comparison(bundle, prepared, read_study(bundle, "demo"), compared, name="demo")
