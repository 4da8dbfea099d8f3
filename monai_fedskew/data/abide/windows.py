"""Rows of a site that keeps its series: windows are computed when they are asked for."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.connectome import Edges, Estimator, connectomes
from monai_fedskew.data.manifest import DATA_FILES, SiteManifest, series_lengths
from monai_fedskew.errors import DataError

__all__ = ["edges_of", "read_rows"]


def read_rows(folder: Path, manifest: SiteManifest, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Read or compute some rows of a site, bit for bit those that `store="vectors"` holds.

    Args:
        folder: the site's folder.
        manifest: its manifest.
        rows: row numbers, each 0 to rows - 1, in any order.

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
    out = np.empty((len(rows), manifest.n_features), np.float32)
    owners = manifest.row_subjects[rows]
    for owner in np.unique(owners):
        mine = np.flatnonzero(owners == owner)
        series = np.asarray(data[starts[owner] : starts[owner + 1]], np.float64)
        out[mine] = connectomes(series, edges_of(manifest), windows=rows[mine] - manifest.subjects[owner].start)
    return out


def edges_of(manifest: SiteManifest) -> Edges:
    """Return how the edges of a site were, or are to be, computed."""
    notes: dict[str, Any] = dict(manifest.notes)
    return Edges(
        window=manifest.window,
        stride=manifest.stride,
        estimator=cast(Estimator, manifest.estimator),
        fisher_z=notes.get("fisher_z", "yes") == "yes",
        clip_negative=notes.get("clip_negative", "no") == "yes",
    )
