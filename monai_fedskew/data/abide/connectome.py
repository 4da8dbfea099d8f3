"""Sliding-window connectomes: the correlation of every pair of regions in every window, as one vector a window.

An edge is Pearson's r of two regions within the window, by default Fisher-transformed, z = arctanh(r) with |r| held at
1 - 1e-7. Edges come as the upper triangle, row by row: (0,1), (0,2), ... (R-2,R-1), as in `np.triu_indices(R, 1)`.

One matrix product a window over standardised columns gives all edges. Means and variances are float64; the product is
float32, whose error of 4e-7 in r matters only where arctanh is steep, so edges with |r| > 0.97 (about 1 in
10,000) are computed again in float64.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from monai_fedskew.data.abide.sliding import constant_in_windows, n_windows, window_length
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Edges", "Estimator", "connectomes"]

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
        series: (volumes, regions), finite, any unit; at least as long as one window.
        edges: how to compute them.
        windows: numbers of the windows wanted; default all.
        threads: threads to share the windows among; the result does not depend on it.
        out: array to write into, (windows, features) float32; default a new one.

    Returns:
        (windows, R * (R - 1) / 2) float32.

    Raises:
        DataError: the series is shorter than a window, no matrix, or not finite.

    Example:
        >>> series = np.random.default_rng(0).standard_normal((40, 4))
        >>> vectors = connectomes(series, Edges(window=32))
        >>> vectors.shape, bool(np.isclose(vectors[0, 0], np.arctanh(np.corrcoef(series[:32].T)[0, 1])))
        ((9, 6), True)
    """
    series = np.asarray(series, np.float64)
    count = n_windows(len(series), edges.window, edges.stride)
    if series.ndim != 2 or count == 0:
        raise DataError(f"series of shape {series.shape} has no window of {edges.window} volumes")
    if not np.isfinite(series).all():
        raise DataError(f"series has {int((~np.isfinite(series)).sum())} values that are not finite")
    # volumes behind the last window would change the last digits of the means
    prepared = _Standardised.of(series[: window_length(count, edges.window, edges.stride)], edges)
    numbers = np.arange(count) if windows is None else np.asarray(windows, np.int64)
    regions = series.shape[1]
    rows = np.empty((len(numbers), regions * (regions - 1) // 2), np.float32) if out is None else out
    for start in range(0, len(numbers), _CHUNK * threads):
        chunk = slice(start, start + _CHUNK * threads)
        _fill(rows[chunk], prepared, numbers[chunk], edges, threads)
    return rows


@dataclass(frozen=True)
class _Standardised:
    """All windows of a series, ready to be standardised: z = (x - mean) * scale has zero sum and unit norm.

    `single` are the windows in float32, where that is enough: the mean of no window is far off its deviation.
    """

    windows: Floats
    means: Floats
    scales: Floats
    single: Rows | None

    @staticmethod
    def of(series: Floats, edges: Edges) -> "_Standardised":
        x = series - series.mean(axis=0)
        deviations = x.std(axis=0)
        x /= np.where(deviations > 0, deviations, 1.0)
        size, step = edges.window, edges.stride
        windows = _windows(x, size, step)
        first, squares = (_moving_sums(part, size)[::step] for part in (x, x * x))
        means = first / size
        offsets = first * means
        squares = squares - offsets
        # the difference loses digits where a window hardly moves about a far-off mean: sum those directly
        quiet = squares < 1e-6 * offsets
        for window, region in np.argwhere(quiet) if quiet.any() else ():
            values = windows[window, :, region]
            means[window, region] = values.mean()
            squares[window, region] = np.square(values - values.mean()).sum()
        still = constant_in_windows(series, size)[::step] | (squares <= 0)
        squares[still] = np.inf
        is_close = bool((offsets <= 25 * squares).all())
        single = _windows(x.astype(np.float32), size, step) if is_close else None
        return _Standardised(windows, means, 1 / np.sqrt(squares), single)


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


def _fill(out: Rows, prepared: _Standardised, numbers: Index, edges: Edges, threads: int) -> None:
    """Write the edges of some windows into `out`, shape (len(numbers), features)."""
    scratch = _Scratch.of(_CHUNK * threads, *prepared.windows.shape[1:])
    share = -(-len(numbers) // threads)
    parts = [slice(k, min(k + share, len(numbers))) for k in range(0, len(numbers), share)]
    _run([partial(_multiply, prepared, numbers, scratch, part) for part in parts])
    # by one thread: calls as short as these would only wait for each other
    at, regions = 0, scratch.z.shape[2]
    for start, stop, block in scratch.blocks:
        for row in range(stop - start):
            width = regions - start - row - 1
            out[:, at : at + width] = block[: len(numbers), row, row + 1 :]
            at += width
    _run([partial(_finish, out, prepared, numbers, edges, scratch=scratch, part=part) for part in parts])


def _run(tasks: list[Callable[[], None]]) -> None:
    others = [_pool(len(tasks)).submit(task) for task in tasks[1:]]
    tasks[0]()
    for other in others:
        other.result()


def _multiply(prepared: _Standardised, numbers: Index, scratch: _Scratch, part: slice) -> None:
    """Standardise windows and multiply; blocks of rows spare most of the lower triangle."""
    mine = numbers[part]
    pick = slice(int(mine[0]), int(mine[-1]) + 1) if (np.diff(mine) == 1).all() else mine
    z, means = scratch.z[part], prepared.means[pick, None, :]
    if prepared.single is not None:
        np.subtract(prepared.single[pick], means.astype(np.float32), out=z)
    else:
        z[...] = prepared.windows[pick] - means
    z *= prepared.scales[pick, None, :].astype(np.float32)
    for start, stop, block in scratch.blocks:
        np.matmul(z[:, :, start:stop].transpose(0, 2, 1), z[:, :, start:], out=block[part])


def _finish(
    rows: Rows, prepared: _Standardised, numbers: Index, edges: Edges, *, scratch: _Scratch, part: slice
) -> None:
    """Compute steep edges again, shrink and transform, in place."""
    out, is_steep = rows[part], scratch.is_steep[part]
    np.abs(out, out=scratch.size[part])
    np.greater(scratch.size[part], _STEEP, out=is_steep)
    steep = np.flatnonzero(is_steep)
    exact = _exact(prepared, numbers[part], steep)
    if edges.estimator == "ledoit-wolf":
        shrink = _shrinkage(scratch.z[part].astype(np.float64), out, steep, exact)
        exact *= shrink[steep // out.shape[1]]
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


def _windows(x: np.ndarray[tuple[int, ...], np.dtype[Any]], size: int, step: int) -> Any:
    """View a series as (windows, volumes, regions)."""
    return sliding_window_view(x, size, axis=0)[::step].transpose(0, 2, 1)


def _moving_sums(x: Floats, size: int) -> Floats:
    """Sum over every window by doubling: sums of 1, 2, 4 ... volumes, put together by the binary digits of `size`."""
    count, start, width, sums = len(x) - size + 1, 0, 1, x
    total = np.zeros((count, x.shape[1]))
    while True:
        if size & width:
            total += sums[start : start + count]
            start += width
        if 2 * width > size:
            return total
        sums = sums[:-width] + sums[width:]
        width *= 2


def _exact(prepared: _Standardised, numbers: Index, steep: Index) -> Floats:
    """Compute the edges at flat positions `steep` of some windows in float64."""
    regions = prepared.means.shape[1]
    row, edge = np.divmod(steep, regions * (regions - 1) // 2)
    window, sides = numbers[row], []
    for region in (side[edge] for side in _pairs(regions)):
        centred = prepared.windows[window, :, region] - prepared.means[window, region, None]
        sides.append(centred * prepared.scales[window, region, None])
    exact: Floats = np.einsum("kt,kt->k", *sides)
    return exact


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
