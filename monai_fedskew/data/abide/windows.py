"""Rows of a site that keeps its series: windows are computed when they are asked for."""

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.connectome import Edges, Estimator, edges_of_windows, scan_windows
from monai_fedskew.data.abide.standardise import Windows
from monai_fedskew.data.manifest import DATA_FILES, SiteManifest, series_lengths
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["CACHE_BYTES", "ScanCache", "edges_of", "read_rows"]

CACHE_BYTES = 64 * 2**20  # of one site: 240 scans of 176 volumes and 110 regions


@dataclass
class ScanCache:
    """Standardised scans of one site, by subject; the ones unused for longest go when they exceed `limit` bytes."""

    limit: int = CACHE_BYTES
    size: int = 0
    scans: OrderedDict[int, tuple[Windows, int]] = field(default_factory=OrderedDict)

    def windows(self, subject: int, series: npt.NDArray[Any], edges: Edges) -> Windows:
        """Return the windows of a subject's scan, cut from `series` (volumes, regions) if they are not here."""
        if subject in self.scans:
            self.scans.move_to_end(subject)
            return self.scans[subject][0]
        windows = scan_windows(np.asarray(series, np.float64), edges)
        # the windows are views of the scan in float64 and in float32
        used = 12 * series.size + windows.is_still.nbytes
        self.scans[subject] = windows, used
        self.size += used
        while self.size > self.limit and len(self.scans) > 1:
            self.size -= self.scans.popitem(last=False)[1][1]
        return windows


def read_rows(
    folder: Path, manifest: SiteManifest, rows: npt.NDArray[np.int64], *, cache: ScanCache | None = None
) -> npt.NDArray[np.float32]:
    """Read or compute some rows of a site, bit for bit those that `store="vectors"` holds.

    Args:
        folder: the site's folder.
        manifest: its manifest.
        rows: row numbers, each 0 to rows - 1, in any order.
        cache: keeps scans for the next call for the same site; None reads them anew.

    Returns:
        (len(rows), features) float32.

    Raises:
        DataError: a row number is out of range.

    Example:
        >>> from monai_fedskew.data.abide.prepare import Options, prepare  # doctest: +SKIP
        >>> prepare(Path("abide"), Path("out"), Options(store="series"))  # doctest: +SKIP
        >>> read_rows(Path("out/NYU"), read_manifest(Path("out/NYU")), np.arange(3)).shape  # doctest: +SKIP
        (3, 5995)
    """
    rows = np.asarray(rows, np.int64)
    if len(rows) and not (rows.min() >= 0 and rows.max() < manifest.n_rows):
        raise DataError(f"site {manifest.site}: rows {rows.min()} to {rows.max()} asked for, it has {manifest.n_rows}")
    data = np.load(Path(folder) / DATA_FILES[manifest.store], mmap_mode="r", allow_pickle=False)
    if manifest.store == "vectors":
        return np.asarray(data[rows], np.float32)
    starts = np.cumsum([0, *series_lengths(manifest)])
    edges, cache = edges_of(manifest), cache or ScanCache()
    shape = (len(rows), manifest.window, len(manifest.regions))
    picked = Windows(np.empty(shape), np.empty(shape, np.float32), np.empty((len(rows), shape[2]), bool))
    owners = manifest.row_subjects[rows]
    for owner in np.unique(owners).tolist():
        scan = cache.windows(owner, data[starts[owner] : starts[owner + 1]], edges)
        mine = np.flatnonzero(owners == owner)
        numbers = rows[mine] - manifest.subjects[owner].start
        for place, number in zip(mine.tolist(), numbers.tolist(), strict=True):
            picked.values[place], picked.single[place] = scan.values[number], scan.single[number]
            picked.is_still[place] = scan.is_still[number]
    return edges_of_windows(picked, edges)


def edges_of(manifest: SiteManifest) -> Edges:
    """Return how the edges of a site were, or are to be, computed.

    Raises:
        DataError: the manifest names another estimator than there is, or a window too short.
    """
    try:
        return Edges(
            window=manifest.window,
            stride=manifest.stride,
            estimator=cast(Estimator, manifest.estimator),
            fisher_z=manifest.notes.get("fisher_z", "yes") == "yes",
            clip_negative=manifest.notes.get("clip_negative", "no") == "yes",
        )
    except ConfigError as error:
        raise DataError(f"site {manifest.site}: manifest.json: {error}; prepare the data again") from error
