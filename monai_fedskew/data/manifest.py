"""The manifest of one site's prepared data: the only hand-over from data to a bundle.

A prepared folder holds one folder per site::

    OUT/NYU/manifest.json     this file: what each row is, where it came from, what was left out and why
    OUT/NYU/vectors.npy       (rows, features) float32; or series.npy, from which rows are computed on the fly
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from monai_fedskew.errors import DataError

__all__ = [
    "DATA_FILES",
    "MANIFEST",
    "SCHEMA",
    "Excluded",
    "Kind",
    "Region",
    "SiteManifest",
    "Store",
    "Subject",
    "read_manifest",
    "series_lengths",
    "site_folders",
    "write_manifest",
]

SCHEMA = 1
MANIFEST = "manifest.json"
Kind = Literal["edges", "features", "series"]
Store = Literal["vectors", "series"]
DATA_FILES: Mapping[str, str] = {"vectors": "vectors.npy", "series": "series.npy"}
_CHECKSUM = "manifest_sha256"
_AGAIN = "prepare the data again instead of editing the file"


@dataclass(frozen=True)
class Region:
    """A region of a parcellation: its label, its name and its centre in MNI millimetres, where known."""

    label: str
    name: str = ""
    xyz: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Subject:
    """A subject with the rows [start, stop) it owns; `group` is what a split may not cut (default: the subject)."""

    id: str
    label: int
    start: int
    stop: int
    group: str = ""

    def __post_init__(self) -> None:
        """Fill in the group."""
        if not self.group:
            object.__setattr__(self, "group", self.id)


@dataclass(frozen=True)
class Excluded:
    """A subject that was left out, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class SiteManifest:
    """What the rows of one site's data are.

    Args:
        site: name of the site.
        label_names: name of label 0, 1, ...
        kind: `edges` (upper triangle of a matrix over `regions`, row-major), `features` or `series`.
        regions: regions in column order; empty for plain features.
        features: names of the columns; empty for edges, whose names follow from the regions.
        subjects: subjects in row order, without gaps.
        excluded: who was left out and why.
        estimator: how an edge was computed, e.g. `pearson`; empty if nothing was estimated.
        window: volumes in a window; 0 if rows are no windows.
        stride: volumes from one window to the next.
        store: `vectors` (the rows themselves) or `series` (rows are computed on the fly).
        sources: SHA-256 of every source file, by file name.
        summary: `mean` and `std` over all values, and the number of `windows`.
        notes: options of the call in words (protocol, merged samples, ...).

    Example:
        >>> regions = (Region("10"), Region("11"), Region("12"))
        >>> site = SiteManifest("A", ("control", "autism"), "edges", regions, (), (Subject("s1", 1, 0, 2),))
        >>> site.n_features, site.feature_names, site.labels.tolist()
        (3, ('10-11', '10-12', '11-12'), [1, 1])
    """

    site: str
    label_names: tuple[str, ...]
    kind: Kind
    regions: tuple[Region, ...]
    features: tuple[str, ...]
    subjects: tuple[Subject, ...]
    excluded: tuple[Excluded, ...] = ()
    estimator: str = ""
    window: int = 0
    stride: int = 1
    store: Store = "vectors"
    sources: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Values in a row."""
        return len(self.regions) * (len(self.regions) - 1) // 2 if self.kind == "edges" else len(self.features)

    @property
    def n_rows(self) -> int:
        """Rows of all subjects."""
        return self.subjects[-1].stop if self.subjects else 0

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Name of every column; an edge is named after its two regions, as in `10-11`."""
        if self.kind != "edges":
            return self.features
        names = [region.label for region in self.regions]
        return tuple(f"{a}-{b}" for i, a in enumerate(names) for b in names[i + 1 :])

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """Label of every row, shape (rows,)."""
        labels = np.array([subject.label for subject in self.subjects], np.int64)
        return labels[self.row_subjects]

    @cached_property
    def row_subjects(self) -> npt.NDArray[np.int64]:
        """Position in `subjects` of every row's subject, shape (rows,)."""
        counts = [subject.stop - subject.start for subject in self.subjects]
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def write_manifest(folder: Path, manifest: SiteManifest) -> None:
    """Write `manifest.json` into a folder, whole or not at all.

    Args:
        folder: the site's folder; must exist.
        manifest: what to write.

    Raises:
        DataError: rows of the subjects overlap or leave gaps, or a label has no name.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     site = SiteManifest("A", ("no", "yes"), "features", (), ("age",), (Subject("s1", 1, 0, 1),))
        ...     np.save(Path(tmp) / "vectors.npy", np.zeros((1, 1), np.float32))
        ...     write_manifest(Path(tmp), site)
        ...     read_manifest(Path(tmp)) == site
        True
    """
    path = Path(folder) / MANIFEST
    _check(path, manifest)
    content = {"schema": SCHEMA, **asdict(manifest)}
    content[_CHECKSUM] = _checksum(content)
    temporary = path.with_name(f".{MANIFEST}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_manifest(folder: Path) -> SiteManifest:
    """Read and check the manifest of one site; see `write_manifest` for an example.

    Args:
        folder: the site's folder, holding `manifest.json` and the data file it describes.

    Raises:
        DataError: the file is absent, damaged, edited by hand, of another schema, or contradicts the data file.
    """
    path = Path(folder) / MANIFEST
    content = _load(path)
    if content.get("schema") != SCHEMA:
        raise DataError(f"{path}: key 'schema' is {content.get('schema')!r}, this version reads {SCHEMA}; {_AGAIN}")
    found, stated = _checksum(content), content.get(_CHECKSUM)
    if found != stated:
        raise DataError(
            f"{path}: key '{_CHECKSUM}' is {str(stated)[:12]!r} but the content gives {found[:12]!r}: "
            f"the file was changed after it was written; {_AGAIN}"
        )
    manifest = _build(path, content)
    _check(path, manifest)
    _check_data(Path(folder), manifest)
    return manifest


def site_folders(root: Path) -> dict[str, Path]:
    """Find the sites of a prepared folder, sorted by name.

    Args:
        root: what `fedskew abide prepare --out` wrote.

    Raises:
        DataError: there is no such folder or no site in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     (Path(tmp) / "NYU").mkdir()
        ...     _ = (Path(tmp) / "NYU" / "manifest.json").write_text("{}")
        ...     list(site_folders(Path(tmp)))
        ['NYU']
    """
    root = Path(root)
    found = sorted(path.parent for path in root.glob(f"*/{MANIFEST}") if not path.parent.name.startswith("."))
    if not found:
        state = "holds no site (no */manifest.json)" if root.is_dir() else "does not exist"
        raise DataError(f"prepared data folder {root} {state}; give what `fedskew abide prepare --out` wrote")
    return {folder.name: folder for folder in found}


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a site's folder written by `fedskew abide prepare`") from None
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON ({error}); {_AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} where an object is expected; {_AGAIN}")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _build(path: Path, content: Mapping[str, Any]) -> SiteManifest:
    values = {key: value for key, value in content.items() if key not in ("schema", _CHECKSUM)}
    try:
        values["regions"] = tuple(
            Region(str(r["label"]), str(r["name"]), tuple(r["xyz"]) if r["xyz"] else None) for r in values["regions"]
        )
        values["subjects"] = tuple(Subject(**subject) for subject in values["subjects"])
        values["excluded"] = tuple(Excluded(**excluded) for excluded in values["excluded"])
        values["label_names"], values["features"] = tuple(values["label_names"]), tuple(values["features"])
        return SiteManifest(**values)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: missing or unknown key ({error}); {_AGAIN}") from error


def _check(path: Path, manifest: SiteManifest) -> None:
    if manifest.kind not in get_args(Kind) or manifest.store not in get_args(Store):
        raise DataError(f"{path}: kind {manifest.kind!r} or store {manifest.store!r} is unknown; {_AGAIN}")
    at = 0
    for subject in manifest.subjects:
        if subject.start != at or subject.stop <= subject.start:
            raise DataError(
                f"{path}: key 'subjects': {subject.id} has rows {subject.start} to {subject.stop}, "
                f"but rows must follow each other without gaps and the next is {at}; {_AGAIN}"
            )
        if not 0 <= subject.label < len(manifest.label_names):
            names = len(manifest.label_names)
            raise DataError(f"{path}: 'subjects': {subject.id} has label {subject.label} of {names} labels; {_AGAIN}")
        at = subject.stop
    if len({subject.id for subject in manifest.subjects}) != len(manifest.subjects):
        raise DataError(f"{path}: key 'subjects': a subject appears twice; {_AGAIN}")


def _check_data(folder: Path, manifest: SiteManifest) -> None:
    path = folder / DATA_FILES[manifest.store]
    try:
        shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    except FileNotFoundError:
        raise DataError(f"{path} does not exist although the manifest beside it names it; {_AGAIN}") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as an array ({error}); {_AGAIN}") from error
    expected = (manifest.n_rows, manifest.n_features)
    if manifest.store == "series":
        expected = (sum(series_lengths(manifest)), len(manifest.regions))
    if shape != expected:
        raise DataError(f"{path} has shape {shape}, but the manifest describes {expected}; {_AGAIN}")


def series_lengths(manifest: SiteManifest) -> list[int]:
    """Volumes kept of every subject with `store="series"`: those that its windows cover."""
    return [(s.stop - s.start - 1) * manifest.stride + manifest.window for s in manifest.subjects]
