"""Windows of a scan, and their columns standardised to zero sum and unit norm.

Float32 is enough where the mean of a window is not far off its deviation, which holds for windows of ordinary scans:
an error d in the mean only enters a correlation as d squared. Other windows are standardised in float64, one by one.
What becomes of a window depends on nothing but the window and the mean and deviation of its scan.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from monai_fedskew.data.abide.sliding import constant_in_windows

__all__ = ["Windows", "standardise", "standardised_pairs", "windows_of"]

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
_FAR = 5.0  # deviations between the mean of a window and that of its scan from which float32 is not enough


@dataclass(frozen=True)
class Windows:
    """Windows of one scan or of several.

    Args:
        values: (windows, volumes, regions), each region with mean 0 and deviation 1 over its whole scan; may be a view.
        single: the same in float32.
        is_still: (windows, regions), whether a region stands still in a window.
    """

    values: Floats
    single: Rows
    is_still: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, pick: slice | Index) -> "Windows":
        return Windows(self.values[pick], self.single[pick], self.is_still[pick])


def windows_of(series: Floats, window: int, stride: int) -> Windows:
    """Cut a series of (volumes, regions) into windows.

    Example:
        >>> windows_of(np.random.default_rng(0).standard_normal((40, 3)), 32, 4).values.shape
        (3, 32, 3)
    """
    x = series - series.mean(axis=0)
    deviations = x.std(axis=0)
    x /= np.where(deviations > 0, deviations, 1.0)
    still = constant_in_windows(series, window)[::stride]
    return Windows(_cut(x, window, stride), _cut(x.astype(np.float32), window, stride), still)


def standardise(windows: Windows, z: Rows) -> None:
    """Standardise every column of every window; a column that stands still becomes 0.

    Args:
        windows: n of them.
        z: receives the result, (n, volumes, regions).
    """
    size = z.shape[1]
    # a product with ones is a sum over volumes, several times as fast as `sum`
    means = np.matmul(np.full((1, size), 1 / size, np.float32), windows.single)
    np.subtract(windows.single, means, out=z)
    squares = np.einsum("tvr,tvr->tr", z, z)
    is_far = (size * np.square(means[:, 0]) > _FAR**2 * squares) | (squares < np.finfo(np.float32).tiny)
    for k in np.flatnonzero((is_far & ~windows.is_still).any(axis=1)).tolist():
        centred = windows.values[k] - windows.values[k].mean(axis=0)
        norms = np.sqrt(np.square(centred).sum(axis=0))
        z[k] = centred / np.where(norms > 0, norms, 1.0)
        squares[k] = 1
    squares[windows.is_still] = np.inf
    z *= (1 / np.sqrt(squares))[:, None]


def standardised_pairs(windows: Windows, rows: Index, first: Index, second: Index) -> Floats:
    """Correlate pairs of regions in float64: regions `first[k]` and `second[k]` in window `rows[k]`, shape (k,)."""
    sides = []
    for regions in (first, second):
        values = windows.values[rows, :, regions]
        values = values - values.mean(axis=1, keepdims=True)
        sides.append(values / np.sqrt(np.square(values).sum(axis=1, keepdims=True)))
    exact: Floats = np.einsum("kt,kt->k", *sides)
    return exact


def _cut(x: npt.NDArray[Any], size: int, step: int) -> Any:
    """View a series as (windows, volumes, regions)."""
    return sliding_window_view(x, size, axis=0)[::step].transpose(0, 2, 1)
