"""Sliding-window connectomes: the correlation of every pair of regions in every window, as one vector a window.

An edge is Pearson's r of two regions within the window, by default Fisher-transformed, z = arctanh(r) with |r| held at
1 - 1e-7. Edges come as the upper triangle, row by row: (0,1), (0,2), ... (R-2,R-1), as in `np.triu_indices(R, 1)`.

One matrix product a window over standardised columns gives all edges. It is float32, whose error of 4e-7 in r matters
only where arctanh is steep, so edges with |r| > 0.97 (about 1 in 10,000) are computed again in float64.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.sliding import LARGEST, n_windows, window_length
from monai_fedskew.data.abide.standardise import Windows, standardise, standardised_pairs, windows_of
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Edges", "Estimator", "connectomes", "edges_of_windows", "scan_windows"]

Estimator = Literal["pearson", "ledoit-wolf"]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]

_STEEP = 0.97
_LIMIT = 1 - 1e-7
_CHUNK = 74  # windows a thread works on at once
_kept = threading.local()  # the scratch of each thread
_BLOCK = 32  # rows of a matrix computed at once, of which only the part right of the diagonal block is needed


@dataclass(frozen=True)
class Edges:
    """How edges are computed.

    Args:
        window: volumes in a window, at least 3.
        stride: volumes from one window to the next.
        estimator: `pearson`, or `ledoit-wolf` for the correlation of the shrunk covariance of the standardised window,
            which is what nilearn's `ConnectivityMeasure(kind="correlation")` computes unless told otherwise.
        fisher_z: whether to transform r to arctanh(r).
        clip_negative: whether negative edges become 0, as in the code of Li et al. 2020.

    Raises:
        ConfigError: a value is out of range.
    """

    window: int = 32
    stride: int = 1
    estimator: Estimator = "pearson"
    fisher_z: bool = True
    clip_negative: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        n_windows(0, self.window, self.stride)
        if self.estimator not in get_args(Estimator):
            raise ConfigError(f"estimator={self.estimator!r}: must be one of {', '.join(get_args(Estimator))}")


def connectomes(
    series: Floats,
    edges: Edges = Edges(),  # noqa: B008 - a frozen value
    *,
    windows: Index | None = None,
    threads: int = 1,
    out: Rows | None = None,
) -> Rows:
    """Compute one vector of edges a window.

    A region that stands still in a window has no correlation; its edges there are 0.

    Args:
        series: (volumes, regions), finite, any unit, up to 1e9 in size; at least as long as one window.
        edges: how to compute them.
        windows: numbers of the windows wanted; default all.
        threads: threads to share the windows among; the result does not depend on it.
        out: array to write into, (windows, features) float32; default a new one.

    Returns:
        (windows, R * (R - 1) / 2) float32.

    Raises:
        DataError: the series is shorter than a window, no matrix, or has values that are not finite or too large.

    Example:
        >>> series = np.random.default_rng(0).standard_normal((40, 4))
        >>> vectors = connectomes(series, Edges(window=32))
        >>> vectors.shape, bool(np.isclose(vectors[0, 0], np.arctanh(np.corrcoef(series[:32].T)[0, 1])))
        ((9, 6), True)
    """
    all_windows = scan_windows(series, edges)
    return edges_of_windows(all_windows if windows is None else all_windows[windows], edges, threads=threads, out=out)


def scan_windows(series: Floats, edges: Edges) -> Windows:
    """Cut a series into windows, ready for `edges_of_windows`.

    Args:
        series: (volumes, regions), finite, up to 1e9 in size; at least as long as one window.
        edges: how long a window is and where the next begins.

    Raises:
        DataError: the series is shorter than a window, no matrix, or has values that are not finite or too large.
    """
    series = np.asarray(series, np.float64)
    count = n_windows(len(series), edges.window, edges.stride)
    if series.ndim != 2 or count == 0:
        raise DataError(f"series of shape {series.shape} has no window of {edges.window} volumes")
    is_fit = np.abs(series) <= LARGEST
    if not is_fit.all():
        raise DataError(f"series has {int((~is_fit).sum())} values that are not finite or beyond {LARGEST:.0e} in size")
    # volumes behind the last window would change the last digits of the means
    return windows_of(series[: window_length(count, edges.window, edges.stride)], edges.window, edges.stride)


def edges_of_windows(windows: Windows, edges: Edges, *, threads: int = 1, out: Rows | None = None) -> Rows:
    """Compute one vector of edges a window, whichever scans the windows are of; see `connectomes`.

    Example:
        >>> series = np.random.default_rng(0).standard_normal((40, 4))
        >>> bool((edges_of_windows(scan_windows(series, Edges(32)), Edges(32)) == connectomes(series, Edges(32))).all())
        True
    """
    regions = windows.values.shape[2]
    rows = np.empty((len(windows), regions * (regions - 1) // 2), np.float32) if out is None else out
    for start in range(0, len(windows), _CHUNK * threads):
        chunk = slice(start, start + _CHUNK * threads)
        _fill(rows[chunk], windows[chunk], edges, threads)
    return rows


@dataclass(frozen=True)
class _Scratch:
    """Arrays used again for every chunk: fresh ones would cost as much as the arithmetic."""

    z: Rows
    blocks: tuple[tuple[int, int, Rows], ...]
    size: Rows
    is_steep: npt.NDArray[np.bool_]

    @staticmethod
    def of(chunk: int, window: int, regions: int) -> "_Scratch":
        """Return the scratch of this thread, made anew if the shape is another than last time."""
        old: _Scratch | None = getattr(_kept, "scratch", None)
        if old is not None and old.z.shape == (chunk, window, regions):
            return old
        cuts = [*range(0, regions, _BLOCK), regions]
        blocks = tuple((a, b, np.empty((chunk, b - a, regions - a), np.float32)) for a, b in pairwise(cuts))
        shape = (chunk, regions * (regions - 1) // 2)
        z = np.empty((chunk, window, regions), np.float32)
        new = _Scratch(z, blocks, np.empty(shape, np.float32), np.empty(shape, bool))
        _kept.scratch = new
        return new


def _fill(out: Rows, windows: Windows, edges: Edges, threads: int) -> None:
    """Write the edges of some windows into `out`, shape (windows, features)."""
    count = len(windows)
    scratch = _Scratch.of(_CHUNK * threads, *windows.values.shape[1:])
    share = -(-count // threads)
    parts = [slice(k, min(k + share, count)) for k in range(0, count, share)]
    _run([partial(_multiply, windows[part], scratch, part) for part in parts])
    # by one thread: calls as short as these would only wait for each other
    at, regions = 0, scratch.z.shape[2]
    for start, stop, block in scratch.blocks:
        for row in range(stop - start):
            width = regions - start - row - 1
            out[:, at : at + width] = block[:count, row, row + 1 :]
            at += width
    _run([partial(_finish, out[part], windows[part], edges, scratch=scratch, part=part) for part in parts])


def _run(tasks: list[Callable[[], None]]) -> None:
    others = [_pool(len(tasks)).submit(task) for task in tasks[1:]]
    tasks[0]()
    for other in others:
        other.result()


def _multiply(windows: Windows, scratch: _Scratch, part: slice) -> None:
    """Standardise windows and multiply; blocks of rows spare most of the lower triangle."""
    z = scratch.z[part]
    standardise(windows, z)
    for start, stop, block in scratch.blocks:
        np.matmul(z[:, :, start:stop].transpose(0, 2, 1), z[:, :, start:], out=block[part])


def _finish(out: Rows, windows: Windows, edges: Edges, *, scratch: _Scratch, part: slice) -> None:
    """Compute steep edges again, shrink and transform, in place."""
    is_steep = scratch.is_steep[part]
    np.abs(out, out=scratch.size[part])
    np.greater(scratch.size[part], _STEEP, out=is_steep)
    steep = np.flatnonzero(is_steep)
    row, edge = np.divmod(steep, out.shape[1])
    exact = standardised_pairs(windows, row, *(side[edge] for side in _pairs(scratch.z.shape[2])))
    if edges.estimator == "ledoit-wolf":
        shrink = _shrinkage(scratch.z[part].astype(np.float64), out, steep, exact)
        exact *= shrink[row]
        out *= shrink[:, None].astype(np.float32)
    out.reshape(-1)[steep] = 0
    if edges.fisher_z:
        np.arctanh(out, out=out)
        exact = np.arctanh(np.clip(exact, -_LIMIT, _LIMIT))
    else:
        np.clip(exact, -1, 1, out=exact)
    out.reshape(-1)[steep] = exact
    if edges.clip_negative:
        np.maximum(out, 0, out=out)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


@cache
def _pairs(regions: int) -> tuple[Index, Index]:
    first, second = np.triu_indices(regions, 1)
    return first, second


def _shrinkage(z: Floats, r: Rows, steep: Index, exact: Floats) -> Floats:
    """Factor from Pearson's r to the shrunk correlation, one a window (Ledoit and Wolf 2004).

    The standardised columns have variance 1, or 0 where still, so the shrunk matrix (1 - s) R + s m I has off-diagonal
    correlations r (1 - s) / (1 - s + s m), with m the mean variance.
    """
    size, regions = z.shape[1:]
    squares = np.square(z)
    alive = squares.sum(axis=1).sum(axis=1)
    pairs = np.square(r, dtype=np.float64)
    pairs.reshape(-1)[steep] = exact**2
    norm = alive + 2 * pairs.sum(axis=1)
    mean = alive / regions
    noise = (size * np.square(squares.sum(axis=2)).sum(axis=1) - norm) / (regions * size)
    spread = (norm - 2 * mean * alive + regions * mean**2) / regions
    with np.errstate(divide="ignore", invalid="ignore"):
        s = np.where(spread > 0, np.minimum(noise, spread) / spread, 0.0)
    factor: Floats = (1 - s) / np.where(s < 1, 1 - s + s * mean, 1.0)
    return factor
