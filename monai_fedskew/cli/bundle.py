"""`fedskew bundle`: list the shipped bundles, check one, write a hospital's own."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from monai_fedskew.sites.check import BundleReport

__all__ = ["bundle"]

_FOLDER = click.Path(path_type=Path)


@click.group()
def bundle() -> None:
    """List, check and write bundles: a network, its training and its data, in MONAI's form."""


@bundle.command("list")
def list_() -> None:
    """List the bundles shipped with this package and their studies."""
    import json

    from monai_fedskew.sites.locate import list_bundles

    for name, folder in list_bundles().items():
        meta = json.loads((folder / "configs" / "metadata.json").read_text(encoding="utf-8"))
        studies = ", ".join(path.stem for path in sorted(folder.glob("studies/*.yaml"))) or "none"
        click.echo(f"{name} {meta['version']}\n  {meta['task']}\n  studies: {studies}\n  folder:  {folder}")


@bundle.command()
@click.argument("name", metavar="BUNDLE")
@click.option("--data", type=_FOLDER, metavar="DIR/SITE", help="A site's prepared folder: opens datasets and engines.")
def check(name: str, data: Path | None) -> None:
    """See whether BUNDLE (a name or a folder) can take part in a federation.

    Looks at its files and properties, passes a batch through the network, counts batch norm layers, makes sure that
    trainer and evaluator share one network, and says what FedBN would share. Exit code 1 if something must be mended.
    """
    from monai_fedskew.sites.check import check_bundle
    from monai_fedskew.sites.locate import find_bundle

    report = check_bundle(find_bundle(name), data)
    click.echo(_text(report))
    if report.problems:
        raise click.exceptions.Exit(1)


@bundle.command()
@click.argument("name", metavar="NAME")
@click.option("--site", required=True, help="The hospital's name, as in its prepared data.")
@click.option("--data", required=True, type=_FOLDER, help="Its prepared folder, or the folder of several sites.")
@click.option("--out", required=True, type=_FOLDER, help="The folder to write.")
@click.option("--force", is_flag=True, help="Replace the bundle's own files in a folder that exists.")
def new(name: str, site: str, data: Path, out: Path, force: bool) -> None:
    """Write a hospital's own bundle from NAME (a shipped bundle or a folder).

    The folder can be moved, and runs with MONAI alone; its README.md has the three commands.
    """
    from monai_fedskew.sites.scaffold import new_bundle

    folder = new_bundle(name, site=site, data=data, out=out, force=force)
    click.echo(f"bundle: {folder}\nnext:   {folder / 'README.md'} says how to train, score and predict")


def _text(report: "BundleReport") -> str:
    width = max(len(name) for name, _ in report.facts)
    lines = [f"{name:<{width}}  {value}" for name, value in report.facts]
    for title, keys in (("shared under fedbn", report.shared), ("private under fedbn", report.private)):
        lines.append(f"{title}: {len(keys)} entries\n" + "\n".join(f"    {key}" for key in keys))
    lines += [f"problem: {problem}" for problem in report.problems]
    lines.append("fit for a federation" if not report.problems else f"{len(report.problems)} to mend")
    return "\n".join(lines)
