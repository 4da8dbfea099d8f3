"""What the rows of a prepared site are, as values: regions, subjects, and who was left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "DATA_FILES",
    "Excluded",
    "GivenSplit",
    "Kind",
    "Region",
    "SiteManifest",
    "Store",
    "Subject",
    "series_lengths",
]

Kind = Literal["edges", "features", "series", "image"]
Store = Literal["vectors", "series", "files"]
GivenSplit = Literal["", "train", "validation", "test"]
DATA_FILES: Mapping[str, str] = {"vectors": "vectors.npy", "series": "series.npy"}


@dataclass(frozen=True)
class Region:
    """A region of a parcellation: its label, its name and its centre in MNI millimetres, where known."""

    label: str
    name: str = ""
    xyz: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class Subject:
    """A subject with the rows [start, stop) it owns.

    Args:
        id: unique at the site; of image data, the name of the image.
        label: class of all its rows.
        start: first row.
        stop: the row after the last.
        group: what a split may not cut, such as the patient of several images; by default the subject.
        split: where a published list puts it; empty leaves it to the folds.
        files: the image's files, where images stay files; several are its channels. Relative to the site's folder,
            or absolute, with slashes.
        mask: its label map, in the same way; empty for none.
    """

    id: str
    label: int
    start: int
    stop: int
    group: str = ""
    split: GivenSplit = ""
    files: tuple[str, ...] = ()
    mask: str = ""

    def __post_init__(self) -> None:
        """Fill in the group."""
        if not self.group:
            object.__setattr__(self, "group", self.id)

    def plain(self) -> dict[str, Any]:
        """Return what a manifest says of it; what only images have is left out where there is none.

        >>> Subject("s1", 0, 0, 2).plain()
        {'id': 's1', 'label': 0, 'start': 0, 'stop': 2, 'group': 's1'}
        """
        known = {"id": self.id, "label": self.label, "start": self.start, "stop": self.stop, "group": self.group}
        extra = {"split": self.split, "files": list(self.files), "mask": self.mask}
        return known | {key: value for key, value in extra.items() if value}


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
        kind: `edges` (upper triangle of a matrix over `regions`, row-major), `features`, `series` or `image`.
        regions: regions in column order; empty for plain features.
        features: names of the columns; empty for edges, whose names follow from the regions.
        subjects: subjects in row order, without gaps.
        excluded: who was left out and why.
        estimator: how an edge was computed, e.g. `pearson`; empty if nothing was estimated.
        window: volumes in a window; 0 if rows are no windows.
        stride: volumes from one window to the next.
        store: `vectors` (the rows themselves), `series` (rows are computed on the fly) or `files` (a row is an image
            that is read from its own files).
        sources: SHA-256 of every source file, by file name; of `files`, by the path that the subjects give.
        data_digest: digest of the array, see `monai_fedskew.data.digest`; empty lets `write_manifest` compute it.
        summary: `mean` and `std` over all values, and the number of `windows`.
        notes: options of the call in words (protocol, merged samples, ...).
        shape: of one row as an image (channels, *spatial), with `files` the median over images; empty for vectors.

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
    data_digest: str = ""
    summary: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()

    @property
    def n_features(self) -> int:
        """Values in a row."""
        if self.shape:
            return math.prod(self.shape)
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

    @cached_property
    def row_groups(self) -> npt.NDArray[np.int64]:
        """Number of every row's group, shape (rows,): what no split cuts, a patient of several images."""
        names = [subject.group for subject in self.subjects]
        return np.unique(names, return_inverse=True)[1].astype(np.int64)[self.row_subjects]

    @property
    def n_groups(self) -> int:
        """Patients: groups of subjects."""
        return len({subject.group for subject in self.subjects})


def series_lengths(manifest: SiteManifest) -> list[int]:
    """Volumes kept of every subject with `store="series"`: those that its windows cover."""
    return [(s.stop - s.start - 1) * manifest.stride + manifest.window for s in manifest.subjects]
