"""From folders of images to one prepared folder a site: the whole workflow, one image at a time."""

import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.data.imaging.found import stem
from monai_fedskew.data.imaging.given_splits import apply_splits
from monai_fedskew.data.imaging.label_names import class_names, value_names
from monai_fedskew.data.imaging.layouts import LAYOUTS, find_images
from monai_fedskew.data.imaging.layouts.table import read_table, table_names
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.report import write_report
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.imaging.write import SiteWriter, Written
from monai_fedskew.data.manifest import Excluded, SiteManifest, require_site_name
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
    layout, found = _found(data, options)
    chosen, left_out = _chosen(found, options)
    is_segmentation = chosen[0].mask is not None
    store = _store(options, is_segmentation)
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
        warnings = _warnings(written, manifests, left_out)
        result = Prepared(
            layout, manifests, {w.site: w.survey.plain() for w in written}, warnings, _ignored(data, found)
        )
        write_report(folder, result, _call(options, data))
    return result


def _found(data: Path, options: Options) -> tuple[str, list[ImageSource]]:
    if options.table is not None:
        layout, found = "table", read_table(options.table, data)
    else:
        layout, found = find_images(data, options.layout)
    if not options.has_lists:
        found = [replace(source, split="") for source in found]
    if options.splits is not None:
        found = apply_splits(found, options.splits, data)
    if options.subject_pattern:
        found = [replace(source, group=_subject(source, options.subject_pattern)) for source in found]
    for site in {source.site for source in found}:
        require_site_name(site, f"{data}: the name of a site")
    twice = next((key for key, n in Counter((s.site, s.id) for s in found).items() if n > 1), None)
    if twice is not None:
        files = [str(s.files[0]) for s in found if (s.site, s.id) == twice]
        raise DataError(f"site {twice[0]}: {files[0]} and {files[1]} would both be image {twice[1]!r}; rename one")
    kinds = {source.mask is None for source in found}
    if len(kinds) > 1:
        one = next(source for source in found if source.mask is None)
        raise DataError(f"site {one.site}: {one.files[0]} has no mask, other images have; prepare them apart")
    return layout, sorted(found, key=lambda source: (source.site, source.id))


def _subject(source: ImageSource, pattern: str) -> str:
    try:
        match = re.search(pattern, source.id)
    except re.error as error:
        raise ConfigError(f"--subject-pattern {pattern!r} is no regular expression ({error})") from error
    if match is None:
        raise ConfigError(f"--subject-pattern {pattern!r} fits nothing in {source.id!r} of site {source.site}")
    return match[1] if match.re.groups else match[0]


def _chosen(found: Sequence[ImageSource], options: Options) -> tuple[list[ImageSource], dict[str, list[Excluded]]]:
    """Return the images of the sites and classes asked for that a list of splits has, and the others of these."""
    for name, wanted, known in (
        ("--site", options.sites, {source.site for source in found}),
        ("--classes", options.classes, {str(source.label) for source in found}),
    ):
        unknown = [value for value in wanted if value not in known]
        if unknown:
            shown = ", ".join(sorted(known)[:20])
            raise ConfigError(f"{name} {unknown[0]} is none of these: {shown}{', ...' if len(known) > 20 else ''}")
    kept = [
        source
        for source in found
        if (not options.sites or source.site in options.sites)
        and (not options.classes or source.label in options.classes)
    ]
    listed = [source for source in kept if source.split]
    left_out: dict[str, list[Excluded]] = {}
    if listed:
        for source in kept:
            if not source.split:
                left_out.setdefault(source.site, []).append(Excluded(source.id, "not in the list of splits"))
        kept = listed
    if not kept:
        raise DataError("no image is left: --site, --classes and the list of splits have none in common")
    _require_whole_groups(kept)
    return kept, left_out


def _require_whole_groups(kept: Sequence[ImageSource]) -> None:
    given: dict[tuple[str, str], ImageSource] = {}
    for source in kept:
        first = given.setdefault((source.site, source.group), source) if source.group else source
        if first.split != source.split:
            raise DataError(
                f"site {source.site}: subject {source.group!r} is in {first.split} with {first.id} and in "
                f"{source.split} with {source.id}; no split may cut a subject: correct the list, or --splits none"
            )


def _store(options: Options, is_segmentation: bool) -> str:
    if is_segmentation and (options.size or options.channels or options.store == "vectors"):
        name = "--size" if options.size else "--channels" if options.channels else "--store vectors"
        raise ConfigError(f"{name} is for classification; images with masks stay files, and transforms resize both")
    if options.store != "auto":
        return options.store
    return "vectors" if options.size or options.channels else "files"


def _names(
    data: Path, layout: str, options: Options, written: Sequence[Written], *, is_segmentation: bool
) -> tuple[str, ...]:
    stated = options.label_names or LAYOUTS[layout].label_names(data)
    if not stated and options.table is not None:
        stated = table_names(options.table)
    return value_names(written, stated) if is_segmentation else class_names(written, stated)


def _warnings(
    written: Sequence[Written], manifests: Sequence[SiteManifest], left_out: Mapping[str, Sequence[Excluded]]
) -> tuple[str, ...]:
    found = [text for one in written for text in (*one.warnings, *_copies(one.site, written))]
    for manifest in manifests:
        absent = sorted(set(range(len(manifest.label_names))) - {subject.label for subject in manifest.subjects})
        if absent and not any(subject.mask for subject in manifest.subjects):
            names = ", ".join(manifest.label_names[label] for label in absent[:5])
            found.append(f"site {manifest.site}: no image of {names}{', ...' if len(absent) > 5 else ''}")
    sites = {manifest.site for manifest in manifests}
    found += [f"site {site}: no image is in the list of splits" for site in left_out if site not in sites]
    return tuple(found)


def _copies(site: str, written: Sequence[Written]) -> list[str]:
    """Say which images of a site are copies of images before them, here or at another site."""
    first: dict[str, tuple[str, str, str]] = {}
    copies: list[str] = []
    apart = 0
    for one in written:
        for subject in one.subjects:
            here = (one.site, subject.id, subject.split)
            other = first.setdefault(one.digests[subject.id], here)
            if other != here and one.site == site:
                copies.append(f"{here[1]} = {other[1] if other[0] == site else ' '.join(other[:2])}")
                apart += (other[0], other[2]) != (site, subject.split)
    if not copies:
        return []
    shown = ", ".join(copies[:3]) + (", ..." if len(copies) > 3 else "")
    across = f", {apart} of them across splits or sites" if apart else ""
    return [f"site {site}: {len(copies)} images are copies of others, byte for byte{across}: {shown}"]


def _ignored(data: Path, found: Sequence[ImageSource]) -> dict[str, int]:
    """Count files below the folder that belong to no image, by ending."""
    used = {path for source in found for path in (*source.files, *([source.mask] if source.mask else []))}
    inside = (path for path in data.rglob("*") if path.is_file() and not path.name.startswith("."))
    loose = (path.name for path in inside if path not in used and path.parent not in used)
    endings = Counter(name.removeprefix(stem(Path(name))) or Path(name).suffix or "without ending" for name in loose)
    return dict(endings.most_common())


def _call(options: Options, data: Path) -> dict[str, object]:
    packages = ("monai-fedskew", "numpy", "pillow", "nibabel")
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    return {"data": str(data), "options": plain, "versions": versions}
