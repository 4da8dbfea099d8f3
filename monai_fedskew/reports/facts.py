"""What is known of each site's data: its manifest, and the mean and spread of each feature."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.manifest import DATA_FILES, MANIFEST, SiteManifest, read_manifest
from monai_fedskew.errors import DataError
from monai_fedskew.reports.results import Results, SiteData

__all__ = ["MAX_ROWS", "SiteFacts", "site_facts"]

MAX_ROWS = 2000


@dataclass(frozen=True, eq=False)
class SiteFacts:
    """A site's data as a report sees it.

    ``manifest`` is None when the data cannot be read any more or have changed since the run; ``why`` then says so.
    ``mean`` and ``std`` (ddof=1) have shape (features,) and are taken over ``rows_used`` evenly spaced rows; None when
    the rows themselves are not stored. ``summary`` holds mean and std over all values as recorded by the run.
    """

    site: str
    folder: Path
    manifest: SiteManifest | None
    why: str = ""
    mean: npt.NDArray[np.float64] | None = None
    std: npt.NDArray[np.float64] | None = None
    rows_used: int = 0
    summary: Mapping[str, float] = field(default_factory=dict)

    @property
    def has_masks(self) -> bool:
        """Whether subjects are labelled by maps of classes, and have no class of their own."""
        return self.manifest is not None and any(subject.mask for subject in self.manifest.subjects)

    @property
    def size(self) -> str:
        """Values in a row, in words: of images the channels and the size, of volumes that differ the median size."""
        if self.manifest is None:
            return "-"
        return " × ".join(map(str, self.manifest.shape)) if self.manifest.shape else f"{self.manifest.n_features:,}"

    @property
    def subjects_per_class(self) -> tuple[int, ...]:
        """Subjects of each class, in the order of the label names; empty without a manifest, and of segmentations."""
        if self.manifest is None or self.has_masks:
            return ()
        labels = [subject.label for subject in self.manifest.subjects]
        return tuple(labels.count(label) for label in range(len(self.manifest.label_names)))


def site_facts(results: Results, *, max_rows: int = MAX_ROWS) -> tuple[SiteFacts, ...]:
    """Read the manifest and feature statistics of every site that a run names with the folder of its data.

    Args:
        results: what :func:`read_results` returned.
        max_rows: rows to estimate each feature's mean and standard deviation from; bounds time and memory.

    Returns:
        One entry a site, by name; an unreadable site has ``manifest=None`` and the reason.
    """
    data = {
        site: (where.folder, where)
        for run in results.runs.values()
        for site, where in run.data.items()
        if where.folder is not None
    }
    return tuple(_facts(site, *data[site], max_rows) for site in sorted(data))


def _facts(site: str, folder: Path, data: SiteData, max_rows: int) -> SiteFacts:
    summary = data.summary
    try:
        manifest = read_manifest(folder)
    except DataError as error:
        why = str(error) if folder.is_dir() else f"its data folder is gone ({folder})"
        return SiteFacts(site, folder, None, why, summary=summary)
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    if data.manifest_sha256 not in ("", digest):
        why = f"its data have been prepared again since the run ({folder})"
        return SiteFacts(site, folder, None, why, summary=summary)
    summary = summary or manifest.summary
    if manifest.store != "vectors" or manifest.n_rows < 2:
        return SiteFacts(site, folder, manifest, summary=summary)
    rows = np.load(folder / DATA_FILES["vectors"], mmap_mode="r", allow_pickle=False)
    picked = np.unique(np.linspace(0, len(rows) - 1, min(max_rows, len(rows))).astype(int))
    sample = np.asarray(rows[picked])
    mean, std = sample.mean(axis=0, dtype=np.float64), sample.std(axis=0, ddof=1, dtype=np.float64)
    return SiteFacts(site, folder, manifest, "", mean, std, len(picked), summary)
