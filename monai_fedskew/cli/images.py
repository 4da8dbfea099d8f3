"""The commands `fedskew images prepare | layouts`."""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monai_fedskew.cli.options import force, out
from monai_fedskew.cli.preparing import FOLDER, peak_memory_mib, progress_of, table

if TYPE_CHECKING:
    from monai_fedskew.data.imaging.prepare import Prepared

__all__ = ["images"]

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class _Size(click.ParamType[tuple[int, ...]]):
    """Sizes such as 64x64 or 64x64x32."""

    name = "HxW[xD]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not re.fullmatch(r"\d+(x\d+){1,2}", str(value)):
            self.fail(f"{value!r} is no size; give HxW such as 64x64, or HxWxD", param, ctx)
        return tuple(int(part) for part in str(value).split("x"))


class _Range(click.ParamType[tuple[float, float]]):
    """Two numbers such as 0,1."""

    name = "LO,HI"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        try:
            low, high = (float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no range; give two numbers such as 0,1 or -1,1", param, ctx)
        return low, high


class _List(click.Path):
    """A file, or the word none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "none" else super().convert(value, param, ctx)


@click.group()
def images() -> None:
    """Prepare folders of images: pictures, NIfTI volumes, DICOM series.

    \b
    fedskew images layouts
    fedskew images prepare DATA --size 64x64 --out PREPARED        classification
    fedskew images prepare DATA --out PREPARED                     images with masks
    """


@images.command()
def layouts() -> None:
    """List the layouts that are recognised, with a line each."""
    from monai_fedskew.data.imaging.layouts import LAYOUTS

    width = max(len(name) for name in LAYOUTS)
    for name, layout in LAYOUTS.items():
        click.echo(f"{name:<{width}}  {layout.text}")
        if layout.note:
            click.echo(f"{'':<{width}}  {layout.note}")


@images.command()
@click.argument("data", type=FOLDER)
@out
@click.option(
    "--layout", default="auto", show_default=True, metavar="NAME", help="How DATA lies; see `fedskew images layouts`."
)
@click.option(
    "--labels",
    type=_FILE,
    metavar="CSV",
    help="A line an image: image, and label or mask; subject, split, site if there are.",
)
@click.option("--site", "sites", multiple=True, metavar="S", help="Only this site; may be repeated.")
@click.option("--classes", metavar="A,B,...", help="Only these classes.")
@click.option(
    "--label-names",
    metavar="A,B,...",
    help="Names of the classes in order, or of the masks' values from 0. Needed at a site that lacks a class.",
)
@click.option(
    "--splits",
    type=_List(path_type=Path, exists=True, dir_okay=False),
    metavar="CSV",
    help="A given list of splits (columns path and split), or none: deal folds even where the layout has a list.",
)
@click.option(
    "--subject-pattern",
    metavar="REGEX",
    help=r"The part of an image's name that is its subject, e.g. '(patient\d+)_'; no split cuts a subject.",
)
@click.option(
    "--size", type=_Size(), metavar="HxW[xD]", help="Resize to this and keep rows of one array; for classification."
)
@click.option("--channels", type=click.Choice(["1", "3"]), help="Turn colours into grey, or grey into colours.")
@click.option(
    "--range",
    "value_range",
    type=_Range(),
    default="0,1",
    show_default=True,
    help="What black and white of 8- and 16-bit pictures become in rows; other values stay as they are.",
)
@click.option(
    "--store",
    type=click.Choice(["auto", "vectors", "files"]),
    default="auto",
    show_default=True,
    help="Rows of one array, or the files as they are; auto: rows where --size is given.",
)
@click.option("--copy", is_flag=True, help="Copy the files into OUT, which can then be moved; else they stay in place.")
@click.option(
    "--binary-masks/--label-maps",
    default=None,
    help="Make every value of a mask above 0 one label (object numbers, white 255), or keep the values.",
)
@click.option("--skip-unreadable", is_flag=True, help="Leave out files that cannot be used, and say which.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that read; same result.")
@force
def prepare(
    data: Path,
    out: Path,
    layout: str,
    labels: Path | None,
    sites: tuple[str, ...],
    classes: str | None,
    label_names: str | None,
    splits: Path | str | None,
    subject_pattern: str | None,
    size: tuple[int, ...] | None,
    channels: str | None,
    value_range: tuple[float, float],
    store: Any,
    copy: bool,
    binary_masks: bool | None,
    skip_unreadable: bool,
    threads: int,
    force: bool,
) -> None:
    """Turn the images in DATA, a folder a site, into prepared sites.

    For classification give --size: every image becomes a row of OUT/<SITE>/vectors.npy. Images with masks, and images
    without --size, stay files: OUT/<SITE>/manifest.json names them. Each file is read once and checked: damaged, not
    finite, a mask that does not fit its image, or a given list that does not fit the images ends the call with the
    file's name. OUT/prepare.json has what the images of each site look like.
    """
    start = time.perf_counter()
    from monai_fedskew.data.imaging.options import Options
    from monai_fedskew.data.imaging.prepare import prepare_images

    options = Options(
        layout=layout,
        table=labels,
        splits=splits if isinstance(splits, Path) else None,
        has_lists=splits != "none",
        sites=sites,
        classes=_names(classes),
        subject_pattern=subject_pattern or "",
        size=size,
        channels=int(channels) if channels else None,
        value_range=value_range,
        store=store,
        has_copies=copy,
        binary_masks=binary_masks,
        label_names=_names(label_names),
        skips_unreadable=skip_unreadable,
    )
    with progress_of("prepare") as progress:
        prepared = prepare_images(data, out, options, force=force, threads=threads, progress=progress)
    _show(prepared, out)
    click.echo(f"{time.perf_counter() - start:.1f} seconds, {peak_memory_mib():.0f} MiB of memory at the most")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _show(prepared: "Prepared", out: Path) -> None:
    from rich.console import Console

    from monai_fedskew.data.imaging.report import exclusions, label_table, look_table

    console = Console(width=None if sys.stdout.isatty() else 110)
    titles = ["site", "images", "subjects", "train", "validation", "test", "left out"]
    counts = [list(row) for row in label_table(prepared.manifests)]
    counts.append(["all", *(sum(values) for values in list(zip(*counts, strict=True))[1:])])
    is_given = any(counts[-1][3:6])
    shown = [column for column in range(7) if is_given or column not in (3, 4, 5)]
    console.print(table([titles[k] for k in shown], [[row[k] for k in shown] for row in counts]))
    looks = ["site", "orientation", "spacing mm", "size", "channels", "mean", "std", "1 %", "50 %", "99 %"]
    console.print(table(looks, look_table(prepared.surveys)))
    left_out = exclusions(prepared.manifests)
    if left_out:
        console.print(table(["site", "left out because", "images"], left_out))
    if prepared.ignored:
        click.echo("files left alone: " + ", ".join(f"{n} {ending}" for ending, n in prepared.ignored.items()))
    if ".pkl" in prepared.ignored:
        click.echo("a .pkl is never opened, as it can run code: give a list of splits as CSV with --splits")
    for warning in prepared.warnings:
        click.echo(f"WARNING: {warning}")
    first = prepared.manifests[0]
    names = ", ".join(first.label_names[:12]) + (", ..." if len(first.label_names) > 12 else "")
    kept = f"rows of {'x'.join(map(str, first.shape))}" if first.store == "vectors" else "files"
    click.echo(f"layout {prepared.layout}; labels {names}; kept as {kept} in {out}")
