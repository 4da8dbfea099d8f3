"""From ROI series to one prepared folder a site: the whole workflow, one subject at a time."""

import hashlib
import logging
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.atlas import STRAY_LABEL
from monai_fedskew.data.abide.connectome import Edges, connectomes
from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.data.abide.phenotypes import LABEL_NAMES, Person, find_table, pick_sites, read_table
from monai_fedskew.data.abide.report import write_report
from monai_fedskew.data.abide.scans import (
    ConstantRoi,
    Exclude,
    Rules,
    find_regions,
    find_scans,
    read_scan,
    usual_volumes,
    without_files,
)
from monai_fedskew.data.abide.sliding import n_windows, window_length
from monai_fedskew.data.abide.store import ArrayWriter, RunningMoments, ahead, open_array
from monai_fedskew.data.manifest import DATA_FILES, Excluded, Region, SiteManifest, Store, Subject, write_manifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Options", "prepare"]

Progress = Callable[[int, int, str], None]
Floats = npt.NDArray[np.float64]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What `prepare` is asked for.

    Args:
        protocol: `fedbn` for the four hospitals of the FedBN paper, or None.
        sites: names of sites; empty for all.
        merge_samples: whether samples such as UM_1 and UM_2 become one site.
        quality_checked: whether scans must have passed the raters' checks.
        edges: how edges are computed.
        constant_roi: what becomes of a subject with a region that stands still, see `Rules`.
        exclude: the rule of exclusion, see `Rules`.
        store: keep the `vectors`, or the `series`, from which rows are computed when asked for.
    """

    protocol: str | None = None
    sites: tuple[str, ...] = ()
    merge_samples: bool = False
    quality_checked: bool = True
    edges: Edges = field(default_factory=Edges)
    constant_roi: ConstantRoi = "exclude"
    exclude: Exclude = "dead-roi"
    store: Store = "vectors"

    def __post_init__(self) -> None:
        """Refuse what cannot go together."""
        if self.exclude == "fed-abide" and self.constant_roi == "zero":
            raise ConfigError("exclude=fed-abide leaves out every scan with a constant ROI: constant_roi=zero is void")

    @property
    def rules(self) -> Rules:
        """What makes a scan usable."""
        return Rules(self.edges.window, self.edges.stride, self.constant_roi, self.exclude)

    @property
    def notes(self) -> dict[str, str]:
        """The options in words, for the manifest."""
        return {
            "protocol": self.protocol or "none",
            "samples": "merged" if self.merge_samples else "as in SITE_ID",
            "subjects": "quality-checked" if self.quality_checked else "all",
            "fisher_z": "yes" if self.edges.fisher_z else "no",
            "clip_negative": "yes" if self.edges.clip_negative else "no",
            "constant_roi": self.constant_roi,
            "exclude": self.exclude,
        }


def prepare(
    data: Path,
    out: Path,
    options: Options = Options(),  # noqa: B008 - a frozen value
    *,
    force: bool = False,
    threads: int = 1,
    progress: Progress = lambda done, total, site: None,
) -> tuple[SiteManifest, ...]:
    """Prepare the sites of a folder of ROI series; nothing is left behind if it fails.

    Args:
        data: a folder in nilearn's layout (or any with `.1D` files) and the phenotypic table below it.
        out: the folder to write.
        options: what to prepare.
        force: whether `out` may be replaced.
        threads: threads of the arithmetic, beside the one that writes. No influence on the result; more than one only
            helps where processors are idle.
        progress: called with the number of subjects done, of all subjects, and the site.

    Returns:
        The manifest of every site, also of those that have no subject left and so no folder.

    Raises:
        ConfigError: `out` exists, or an unknown site or protocol.
        DataError: no usable input, or a damaged file.

    Example:
        >>> prepare(Path("abide"), Path("prepared"), Options(protocol="fedbn"))  # doctest: +SKIP
    """
    data, out = Path(data), Path(out)
    check_folders(data, out, force=force, mark="prepare.json")
    table = find_table(data)
    people = read_table(table, quality_checked=options.quality_checked)
    sites = pick_sites(
        {person.sample for person in people}, options.sites, options.protocol, merge=options.merge_samples
    )
    regions, is_pcp = find_regions(data)
    source = _Source(find_scans(data, is_pcp=is_pcp), regions, is_pcp, {table.name: _sha256(table)})
    members = {site: [person for person in people if person.sample in samples] for site, samples in sites.items()}
    total, done = sum(len(group) for group in members.values()), 0
    with whole_or_nothing(out) as folder:
        manifests = []
        for site, group in members.items():

            def tick(count: int, site: str = site, start: int = done) -> None:
                progress(start + count, total, site)

            manifests.append(_prepare_site(folder / site, group, source, options, threads=threads, tick=tick))
            done += len(group)
        if not any(manifest.subjects for manifest in manifests):
            first = next((f"; first: {m.excluded[0].id}: {m.excluded[0].reason}" for m in manifests if m.excluded), "")
            raise DataError(f"{data}: no subject is left of {total}{first}")
        if is_pcp:
            _log.info("dropped label %s: no region of the atlas", STRAY_LABEL)
        write_report(folder, tuple(manifests), _call(options, data))
    return tuple(manifests)


@dataclass(frozen=True)
class _Source:
    scans: Mapping[str, Path]
    regions: tuple[Region, ...]
    is_pcp: bool
    hashes: Mapping[str, str]


def _prepare_site(
    folder: Path,
    people: list[Person],
    source: _Source,
    options: Options,
    *,
    threads: int,
    tick: Callable[[int], None],
) -> SiteManifest:
    usable, excluded = without_files(people, source.scans)
    paths = [source.scans[person.file_id] for person in usable]
    usual = usual_volumes(paths) if options.exclude == "fed-abide" and paths else None
    subjects: list[Subject] = []
    hashes, flags = dict(source.hashes), []
    moments = RunningMoments()
    folder.mkdir()
    columns = len(source.regions) if options.store == "series" else len(source.regions) * (len(source.regions) - 1) // 2
    dtype = "float64" if options.store == "series" else "float32"
    with open_array(folder / DATA_FILES[options.store], columns, dtype) as array:
        read = partial(read_scan, regions=source.regions, rules=options.rules, is_pcp=source.is_pcp, usual=usual)
        scans = ahead(read, zip(usable, paths, strict=True))
        for number, (person, path, scan) in enumerate(zip(usable, paths, scans, strict=True), start=len(excluded) + 1):
            if isinstance(scan, Excluded):
                excluded.append(scan)
            else:
                start = array.n_windows
                _append(array, moments, scan.values, options, threads)
                subjects.append(Subject(person.id, int(person.label or 0), start, array.n_windows))
                hashes[path.name] = scan.sha256
                flags += [f"{person.id}: {scan.flags}"] if scan.flags else []
            tick(number)
    manifest = SiteManifest(
        site=folder.name,
        label_names=LABEL_NAMES,
        kind="edges",
        regions=source.regions,
        features=(),
        subjects=tuple(subjects),
        excluded=tuple(sorted(excluded, key=lambda item: item.id)),
        estimator=options.edges.estimator,
        window=options.edges.window,
        stride=options.edges.stride,
        store=options.store,
        sources=hashes,
        summary={"mean": moments.mean, "std": moments.std, "windows": float(array.n_windows)},
        notes={**options.notes, **({"edges set to zero": "; ".join(flags)} if flags else {})},
    )
    if subjects:
        write_manifest(folder, manifest)
    else:
        shutil.rmtree(folder)
    return manifest


def _append(array: ArrayWriter, moments: RunningMoments, values: Floats, options: Options, threads: int) -> None:
    """Write one subject."""
    edges, regions = options.edges, values.shape[1]
    count = n_windows(len(values), edges.window, edges.stride)
    rows = connectomes(values, edges, threads=threads, out=array.buffer(count, regions * (regions - 1) // 2))
    moments.add(rows)
    stored = rows if options.store == "vectors" else values[: window_length(count, edges.window, edges.stride)]
    array.append(stored)
    array.n_windows += count


def _call(options: Options, data: Path) -> dict[str, object]:
    packages = ("monai-fedskew", "numpy", "pandas", "scikit-learn", "nilearn")
    return {
        "data": str(data),
        "options": asdict(options),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
