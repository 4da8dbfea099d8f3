"""From folders of images to one prepared folder a site: the whole workflow, one image at a time."""

import math
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.data.imaging.choose import choose, find
from monai_fedskew.data.imaging.findings import ignored_files, warnings_of
from monai_fedskew.data.imaging.label_names import class_names, value_names
from monai_fedskew.data.imaging.layouts import LAYOUTS
from monai_fedskew.data.imaging.layouts.table import table_names
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.report import write_report
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.imaging.write import SiteWriter, Written
from monai_fedskew.data.manifest import SiteManifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Prepared", "prepare_images"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Prepared:
    """What `prepare_images` made.

    Args:
        layout: name of the layout that was found.
        manifests: of every site.
        surveys: what the images of each site look like, by site.
        warnings: what somebody should look at, a sentence each.
        ignored: files that are no images of the layout, counted by ending.
    """

    layout: str
    manifests: tuple[SiteManifest, ...]
    surveys: Mapping[str, Mapping[str, object]]
    warnings: tuple[str, ...]
    ignored: Mapping[str, int]


def prepare_images(
    data: Path,
    out: Path,
    options: Options = Options(),  # noqa: B008 - a frozen value
    *,
    force: bool = False,
    threads: int = 1,
    progress: Progress = lambda done, total, site: None,
) -> Prepared:
    """Prepare the sites of a folder of images; nothing is left behind if it fails.

    Args:
        data: a folder in one of `LAYOUTS`.
        out: the folder to write.
        options: what to prepare.
        force: whether `out` may be replaced.
        threads: threads that read and convert; no influence on the result.
        progress: called with the number of images done, of all images, and the site.

    Raises:
        ConfigError: `out` exists, an unknown site or class, or options that the images do not allow.
        DataError: no images, a damaged file, a mask that does not fit. Names site and file.

    Example:
        >>> prepare_images(Path("office_caltech10"), Path("prepared"), Options(size=(64, 64)))  # doctest: +SKIP
    """
    data, out = Path(data), Path(out)
    check_folders(data, out, force=force, mark="prepare.json")
    if out.resolve().is_relative_to(data.resolve()):
        raise ConfigError(f"output folder {out} would lie among the images of {data}; choose one outside of it")
    layout, found = find(data, options)
    chosen, left_out = choose(found, options)
    is_segmentation = chosen[0].mask is not None
    store = _store(options, is_segmentation)
    _require_room(out, options, len(chosen), store)
    is_binary = options.binary_masks if options.binary_masks is not None else LAYOUTS[layout].binary_masks
    sites: dict[str, list[ImageSource]] = {}
    for source in chosen:
        sites.setdefault(source.site, []).append(source)
    with whole_or_nothing(out) as folder:
        writer = SiteWriter(folder, out, data, options, store=store, is_binary=is_binary and is_segmentation)
        written, done = [], 0
        for site, members in sites.items():

            def tick(count: int, site: str = site, start: int = done) -> None:
                progress(start + count, len(chosen), site)

            written.append(writer.write(site, members, threads=threads, tick=tick))
            done += len(members)
        names = _names(data, layout, options, written, is_segmentation=is_segmentation)
        notes = {**options.notes(layout, store), "prepared by": f"monai-fedskew {version('monai-fedskew')}"}
        notes |= {"binary masks": "yes"} if writer.is_binary else {}
        manifests = tuple(writer.finish(one, names, notes, left_out.get(one.site, [])) for one in written)
        warnings = warnings_of(written, manifests, left_out)
        result = Prepared(
            layout, manifests, {w.site: w.survey.plain() for w in written}, warnings, ignored_files(data, found)
        )
        write_report(folder, result, _call(options, data))
    return result


def _store(options: Options, is_segmentation: bool) -> str:
    if is_segmentation and (options.size or options.channels or options.store == "vectors"):
        name = "--size" if options.size else "--channels" if options.channels else "--store vectors"
        raise ConfigError(f"{name} is for classification; images with masks stay files, and transforms resize both")
    if options.binary_masks is not None and not is_segmentation:
        raise ConfigError("--binary-masks and --label-maps are about masks, and these images have none")
    store = options.store
    if store == "auto":
        store = "vectors" if options.size or options.channels else "files"
    if store == "files" and options.value_range != (0.0, 1.0):
        raise ConfigError("--range is for rows (--size); images that stay files are scaled by the bundle's transforms")
    return store


def _require_room(out: Path, options: Options, images: int, store: str) -> None:
    """Refuse an array that the disk cannot hold, before an hour of work instead of after."""
    if store == "files" or options.size is None:
        return
    needed = 4 * images * (options.channels or 1) * math.prod(options.size)
    above = next(path for path in (out.absolute().parent, *out.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(above).free
    if needed > free:
        raise DataError(
            f"{images} rows of {options.channels or 1} x {' x '.join(map(str, options.size))} take "
            f"{needed / 1e9:.0f} GB, {above} has {free / 1e9:.0f} GB; choose a smaller --size, or leave "
            "--size out: then images stay files"
        )


def _names(
    data: Path, layout: str, options: Options, written: Sequence[Written], *, is_segmentation: bool
) -> tuple[str, ...]:
    own = table_names(options.table) if options.table is not None else LAYOUTS[layout].label_names(data)
    stated = options.label_names or own
    return value_names(written, stated) if is_segmentation else class_names(written, stated)


def _call(options: Options, data: Path) -> dict[str, object]:
    packages = ("monai-fedskew", "numpy", "pillow", "nibabel")
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    return {"data": str(data), "options": plain, "versions": versions}
