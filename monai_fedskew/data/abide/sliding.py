"""Sliding windows over a series: how many, where they lie, and which regions stand still in them."""

import numpy as np
import numpy.typing as npt

from monai_fedskew.errors import ConfigError

__all__ = ["LARGEST", "constant_columns", "constant_in_windows", "n_windows", "window_length"]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Series are centred on their mean over the scan, in float64: a spike of 1e16 deviations would leave no digit of the
# rest of its column, and so edges of 0 in every window beside it. Up to 1e9, an edge is right to 1e-6 where the column
# has a deviation of 1e-3 or more; series in the arbitrary units of a scanner stay below 1e6.
LARGEST = 1e9


def n_windows(volumes: int, window: int, stride: int = 1) -> int:
    """Count the windows of a scan: floor((volumes - window) / stride) + 1, and 0 for a scan shorter than the window.

    Args:
        volumes: volumes of the scan.
        window: volumes in a window, at least 3 (two points are always perfectly correlated).
        stride: volumes from one window to the next, at least 1.

    Raises:
        ConfigError: window or stride is out of range.

    Example:
        >>> [n_windows(volumes, 32) for volumes in (176, 296, 236, 116, 31)]
        [145, 265, 205, 85, 0]
    """
    if window < 3:
        raise ConfigError(f"window={window}: a correlation needs at least 3 volumes")
    if stride < 1:
        raise ConfigError(f"stride={stride}: must be at least 1 volume")
    return max(0, (volumes - window) // stride + 1)


def window_length(count: int, window: int, stride: int) -> int:
    """Volumes that `count` windows cover together.

    Example:
        >>> window_length(145, 32, 1)
        176
    """
    return (count - 1) * stride + window


def constant_columns(series: Floats) -> Bools:
    """Tell which columns of a (volumes, regions) series never change, shape (regions,).

    Equality is exact: a standard deviation of a constant 0.1 is not exactly zero, its range is.

    Example:
        >>> constant_columns(np.array([[0.1, 1.0], [0.1, 2.0]])).tolist()
        [True, False]
    """
    still: Bools = (series == series[:1]).all(axis=0)
    return still


def constant_in_windows(series: Floats, window: int) -> Bools:
    """Tell which columns stand still in each window of stride 1, shape (volumes - window + 1, regions).

    Example:
        >>> constant_in_windows(np.array([[1.0], [1.0], [1.0], [2.0]]), 3).tolist()
        [[True], [False]]
    """
    changes = np.zeros((len(series), series.shape[1]), np.int32)
    np.cumsum(series[1:] != series[:-1], axis=0, out=changes[1:])
    still: Bools = changes[window - 1 :] == changes[: len(series) - window + 1]
    return still
