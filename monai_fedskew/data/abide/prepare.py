"""From ROI series to one prepared folder a site: the whole workflow, one subject at a time."""

import hashlib
import logging
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping
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
    Scan,
    find_regions,
    find_scans,
    read_scan,
    usual_volumes,
    without_files,
)
from monai_fedskew.data.abide.sliding import n_windows, window_length
from monai_fedskew.data.abide.store import Buffers, Moments, in_order, open_array
from monai_fedskew.data.manifest import DATA_FILES, Excluded, Region, SiteManifest, Store, Subject, write_manifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Options", "prepare"]

Progress = Callable[[int, int, str], None]
Floats = npt.NDArray[np.float64]
_STRAY = f"{STRAY_LABEL}: two stray voxels, no region of the atlas"
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
        threads: threads that read and compute, beside the one that writes; no influence on the result. More than one
            helps where more than two processors are idle.
        progress: called with the number of subjects done, of all subjects, and the site.

    Returns:
        The manifest of every site, also of those that have no subject left and so no folder.

    Raises:
        ConfigError: `out` exists, or an unknown site or protocol.
        DataError: no usable input, a damaged file, or one scan for two subjects.

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
        _refuse_copies(manifests, table.name)
        if is_pcp:
            _log.info("dropped label %s", _STRAY)
        write_report(folder, tuple(manifests), _call(options, data))
    return tuple(manifests)


def _refuse_copies(manifests: Iterable[SiteManifest], table: str) -> None:
    """Refuse a scan that is there twice under two names: its windows could be on both sides of a split."""
    seen: dict[str, str] = {}
    for manifest in manifests:
        for name, digest in manifest.sources.items():
            other = seen.setdefault(digest, name) if name != table else name
            if other != name:
                raise DataError(
                    f"site {manifest.site}: {name} has the content of {other}: one scan cannot be two subjects'; "
                    "remove the copy, or get the file again"
                )


@dataclass(frozen=True)
class _Source:
    scans: Mapping[str, Path]
    regions: tuple[Region, ...]
    is_pcp: bool
    hashes: Mapping[str, str]


@dataclass
class _Collected:
    """What is known of a site's subjects so far, in the order of their rows."""

    excluded: list[Excluded]
    hashes: dict[str, str]
    subjects: list[Subject] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    moments: Moments = field(default_factory=Moments)
    n_rows: int = 0

    def add(self, person: Person, path: Path, result: "_Result") -> None:
        start, self.n_rows = self.n_rows, self.n_rows + len(result.rows)
        self.subjects.append(Subject(person.id, int(person.label or 0), start, self.n_rows))
        self.hashes[path.name] = result.scan.sha256
        self.flags += [f"{person.id}: {result.scan.flags}"] if result.scan.flags else []
        self.moments += result.moments


def _prepare_site(
    folder: Path,
    people: list[Person],
    source: _Source,
    options: Options,
    *,
    threads: int,
    tick: Callable[[int], None],
) -> SiteManifest:
    folder.mkdir()
    site, digest = _write_rows(folder, people, source, options, threads=threads, tick=tick)
    notes = {**options.notes, "prepared by": f"monai-fedskew {version('monai-fedskew')}"}
    notes |= {"dropped label": _STRAY} if source.is_pcp else {}
    manifest = SiteManifest(
        site=folder.name,
        label_names=LABEL_NAMES,
        kind="edges",
        regions=source.regions,
        features=(),
        subjects=tuple(site.subjects),
        excluded=tuple(sorted(site.excluded, key=lambda item: item.id)),
        estimator=options.edges.estimator,
        window=options.edges.window,
        stride=options.edges.stride,
        store=options.store,
        sources=site.hashes,
        data_digest=digest,
        summary={"mean": site.moments.mean, "std": site.moments.std, "windows": float(site.n_rows)},
        notes={**notes, **({"edges set to zero": "; ".join(site.flags)} if site.flags else {})},
    )
    if site.subjects:
        write_manifest(folder, manifest)
    else:
        shutil.rmtree(folder)
    return manifest


def _write_rows(
    folder: Path,
    people: list[Person],
    source: _Source,
    options: Options,
    *,
    threads: int,
    tick: Callable[[int], None],
) -> tuple[_Collected, str]:
    """Write the array of a site, one subject after the other; returns what was collected and the array's digest."""
    usable, excluded = without_files(people, source.scans)
    paths = [source.scans[person.file_id] for person in usable]
    usual = usual_volumes(paths) if options.exclude == "fed-abide" and paths else None
    read = partial(read_scan, regions=source.regions, rules=options.rules, is_pcp=source.is_pcp, usual=usual)
    buffers, regions, done = Buffers(), len(source.regions), len(excluded)
    compute = partial(_compute, read=read, options=options, buffers=buffers)
    site = _Collected(excluded, dict(source.hashes))
    columns, dtype = (regions, "float64") if options.store == "series" else (regions * (regions - 1) // 2, "float32")
    with open_array(folder / DATA_FILES[options.store], columns, dtype) as array:
        results = in_order(compute, zip(usable, paths, strict=True), threads=threads)
        for number, (person, path, result) in enumerate(zip(usable, paths, results, strict=True), start=done + 1):
            if isinstance(result, Excluded):
                site.excluded.append(result)
            else:
                array.append(result.rows if options.store == "vectors" else result.series)
                site.add(person, path, result)
                buffers.give_back(result.rows)
            tick(number)
    return site, array.digest.text


@dataclass(frozen=True)
class _Result:
    """One subject: its `rows` lie in a buffer; `series` are the volumes that its windows cover."""

    scan: Scan
    series: Floats
    rows: npt.NDArray[np.float32]
    moments: Moments


def _compute(
    person: Person, path: Path, *, read: Callable[[Person, Path], Scan | Excluded], options: Options, buffers: Buffers
) -> _Result | Excluded:
    """Read one subject and compute its rows, also for `store="series"`: the summary describes the rows, not the scan.

    It is what reports compare sites by, and must not depend on how the rows are kept.
    """
    scan = read(person, path)
    if isinstance(scan, Excluded):
        return scan
    edges, regions = options.edges, scan.values.shape[1]
    count = n_windows(len(scan.values), edges.window, edges.stride)
    rows = connectomes(scan.values, edges, out=buffers.take(count, regions * (regions - 1) // 2))
    series = scan.values[: window_length(count, edges.window, edges.stride)]
    return _Result(scan, series, rows, Moments.of(rows))


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
