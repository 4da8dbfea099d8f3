"""The commands `fedskew abide fetch | extract | prepare`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from monai_fedskew.cli.options import force, out
from monai_fedskew.cli.preparing import FOLDER, peak_memory_mib, progress_of, table

if TYPE_CHECKING:
    from monai_fedskew.data.manifest import SiteManifest

__all__ = ["abide"]


_SITE = click.option("--site", "sites", multiple=True, metavar="S", help="Only this site; may be repeated.")
_QUALITY = click.option(
    "--quality/--all-subjects",
    "quality",
    default=True,
    help="Only scans that passed the raters' quality checks, or all.  [default: --quality]",
)
_PROTOCOL = click.option(
    "--protocol",
    type=click.Choice(["fedbn"]),
    help="The sites of a paper: fedbn is NYU, USM, UM (sample UM_1) and UCLA (UCLA_1).",
)


@click.group()
def abide() -> None:
    """Fetch, extract and prepare ABIDE resting-state fMRI.

    \b
    fedskew abide fetch DATA --protocol fedbn
    fedskew abide prepare DATA --protocol fedbn --out PREPARED
    """


@abide.command()
@click.argument("data", type=FOLDER)
@_SITE
@_PROTOCOL
@_QUALITY
@click.option("--url", metavar="URL", help="Another server with the original's layout.")
def fetch(data: Path, sites: tuple[str, ...], protocol: str | None, quality: bool, url: str | None) -> None:
    """Fetch the preprocessed series and the phenotypic table into DATA, through nilearn.

    Files that are there and whole are kept: run it again to go on after a broken transfer. The data are for
    non-commercial research; cite Di Martino et al. 2014 and Craddock et al. 2013.
    """
    from monai_fedskew.data.abide.fetch import fetch as run

    with progress_of("fetch") as progress:
        done = run(data, sites=sites, protocol=protocol, quality_checked=quality, url=url, progress=progress)
    for name in done.repaired:
        click.echo(f"damaged, fetched again: {name}")
    for site, name, volumes, usual in done.shorter:
        click.echo(f"shorter than usual at {site}: {name} has {volumes} volumes, not {usual}")
    click.echo(f"{done.files} scans in {done.folder}, {done.new} of them new")


@abide.command()
@click.argument("data", type=FOLDER)
@click.option("--atlas", required=True, type=click.Path(path_type=Path, exists=True), help="3D NIfTI of labels.")
@click.option(
    "--labels",
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="CSV of the regions: a column label (or index), and name if known.",
)
@click.option("--mask", type=click.Path(path_type=Path, exists=True), help="3D NIfTI of the brain.")
@out
@force
def extract(data: Path, atlas: Path, labels: Path, mask: Path | None, out: Path, force: bool) -> None:
    """Average the 4D NIfTI files below DATA over the regions of an atlas.

    Every region gives a column, in ascending label order. OUT is a folder that `fedskew abide prepare` reads; the
    phenotypic table is copied along if DATA has one.
    """
    from monai_fedskew.data.abide.extract import extract as run

    with progress_of("extract") as progress:
        done = run(data, atlas, labels, out, mask=mask, force=force, progress=progress)
    if done.unnamed:
        shown = ", ".join(str(label) for label in done.unnamed[:10]) + (", ..." if len(done.unnamed) > 10 else "")
        click.echo(f"left out {len(done.unnamed)} labels of the atlas that {labels.name} does not name: {shown}")
    for name, still in done.flat.items():
        click.echo(f"constant ROI {', '.join(still)} (no signal inside the field of view): {name}")
    click.echo(f"{len(done.files)} scans in {done.folder}, {len(done.flat)} with a constant ROI")


@abide.command()
@click.argument("data", type=FOLDER)
@out
@_PROTOCOL
@_SITE
@click.option("--merge-samples", is_flag=True, help="Make UM_1 and UM_2 one site UM, and so on.")
@click.option("--window", default=32, show_default=True, help="Volumes in a window.")
@click.option("--stride", default=1, show_default=True, help="Volumes from one window to the next.")
@click.option("--estimator", type=click.Choice(["pearson", "ledoit-wolf"]), default="pearson", show_default=True)
@click.option("--fisher-z/--no-fisher-z", default=True, help="Transform r to arctanh(r).  [default: --fisher-z]")
@click.option("--clip-negative", is_flag=True, help="Set negative edges to 0.")
@click.option(
    "--constant-roi",
    type=click.Choice(["exclude", "zero"]),
    default="exclude",
    show_default=True,
    help="A region that never changes: leave the subject out, or set its edges to 0.",
)
@click.option(
    "--exclude",
    type=click.Choice(["dead-roi", "fed-abide"]),
    default="dead-roi",
    show_default=True,
    help="Look at the atlas's regions only; or at every column and the usual length, as Li et al. 2020.",
)
@_QUALITY
@click.option(
    "--store",
    type=click.Choice(["vectors", "series"]),
    default="vectors",
    show_default=True,
    help="Keep the vectors, or the series (25 times smaller) and compute vectors when they are read.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads that read and compute, beside one that writes; no influence on the result.",
)
@force
def prepare(
    data: Path,
    out: Path,
    sites: tuple[str, ...],
    protocol: Literal["fedbn"] | None,
    merge_samples: bool,
    window: int,
    stride: int,
    estimator: Literal["pearson", "ledoit-wolf"],
    fisher_z: bool,
    clip_negative: bool,
    constant_roi: Literal["exclude", "zero"],
    exclude: Literal["dead-roi", "fed-abide"],
    quality: bool,
    store: Literal["vectors", "series"],
    threads: int,
    force: bool,
) -> None:
    """Turn the ROI series in DATA into connectomes, one folder a site.

    DATA is nilearn's layout, folders a subject, or what `fedskew abide extract` wrote. OUT/<SITE>/ gets
    manifest.json and vectors.npy; OUT/prepare.json and OUT/excluded.csv say what was left out and why.
    """
    start = time.perf_counter()
    from monai_fedskew.data.abide.connectome import Edges
    from monai_fedskew.data.abide.prepare import Options
    from monai_fedskew.data.abide.prepare import prepare as run

    options = Options(
        protocol=protocol,
        sites=sites,
        merge_samples=merge_samples,
        quality_checked=quality,
        edges=Edges(window, stride, estimator, fisher_z, clip_negative),
        constant_roi=constant_roi,
        exclude=exclude,
        store=store,
    )
    with progress_of("prepare") as progress:
        manifests = run(data, out, options, force=force, threads=threads, progress=progress)
    _show(manifests, out)
    click.echo(f"{time.perf_counter() - start:.1f} seconds, {peak_memory_mib():.0f} MiB of memory at the most")


def _show(manifests: "Sequence[SiteManifest]", out: Path) -> None:
    from rich.console import Console

    from monai_fedskew.data.abide.report import exclusions, site_table

    console = Console(width=None if sys.stdout.isatty() else 110)
    counts = site_table(manifests)
    total = ("all", *(sum(row[column] for row in counts) for column in range(1, 6)))  # type: ignore[misc]  # ints
    console.print(table(["site", "subjects", "autism", "control", "windows", "excluded"], [*counts, total]))
    left_out = exclusions(manifests)
    if left_out:
        console.print(table(["site", "left out because", "subjects"], left_out))
    for manifest in manifests:
        if "edges set to zero" in manifest.notes:
            click.echo(f"{manifest.site}: edges set to zero: {manifest.notes['edges set to zero']}")
    skipped = [f"{m.site} {item.id}" for m in manifests for item in m.excluded if "shorter than" in item.reason]
    if skipped:
        click.echo(f"{len(skipped)} scans shorter than the window: {', '.join(skipped[:20])}")
    first = manifests[0]
    if "dropped label" in first.notes:
        click.echo(f"dropped label {first.notes['dropped label']}")
    click.echo(f"{len(first.regions)} regions, {first.n_features} features; written to {out}")
