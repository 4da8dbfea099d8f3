"""Mean and squared deviations of long runs of numbers, in float64 and in pieces that stay in the processor's cache."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CHUNK", "row_moments", "run_moments"]

CHUNK = 32768  # numbers at once: 256 KiB as float64; a whole volume as float64 takes ten times as long
_SPREAD = 1e-3  # where squared deviations are at least this share of the squares, their difference has twelve digits


def row_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's mean and sum of squared deviations from it.

    Args:
        rows: (R, n) of any integer or floating type, n at least 1.

    Returns:
        mean and squares, (R,) float64. A constant row has squares of exactly 0.

    >>> row_moments(torch.tensor([[0, 2], [10, 14]]))
    (tensor([ 1., 12.], dtype=torch.float64), tensor([2., 8.], dtype=torch.float64))
    """
    parts = [_spread(part) for part in torch.split(rows, max(1, CHUNK // rows.shape[1]))]
    mean, squares = zip(*parts, strict=True)
    return torch.cat(mean), torch.cat(squares)


def run_moments(
    values: Tensor, keep: Tensor | None = None, *, is_nonzero_only: bool = False
) -> tuple[int, float, float]:
    """Return number, mean and sum of squared deviations of the values that count; all zero where none does.

    Args:
        values: (n,) of any integer or floating type.
        keep: (n,) bool, the values that count; all if absent.
        is_nonzero_only: whether only values other than 0 count.

    >>> run_moments(torch.tensor([5.0, 1.0, 3.0]), torch.tensor([False, True, True]))
    (2, 2.0, 2.0)
    """
    parts = torch.split(values, CHUNK)
    covers = [None] * len(parts) if keep is None else [cover.numpy() for cover in torch.split(keep, CHUNK)]
    found = [_piece(part.double(), cover, is_nonzero_only) for part, cover in zip(parts, covers, strict=True)]
    found = [piece for piece in found if piece[0]]
    if not found:
        return 0, 0.0, 0.0
    count, mean, squares = (torch.tensor(entry, dtype=torch.float64) for entry in zip(*found, strict=True))
    total = count.sum()
    joint = mean[0] + ((mean - mean[0]) * count).sum() / total
    # Chan, Golub and LeVeque 1979: squares about the joint mean
    return int(total), float(joint), float(squares.sum() + (count * (mean - joint).square()).sum())


def _piece(values: Tensor, keep: NDArray[np.bool_] | None, is_nonzero_only: bool) -> tuple[int, float, float]:
    if keep is not None and not keep.all():  # numpy picks three times as fast as torch
        values = torch.from_numpy(np.compress(keep, values.numpy()))
    count = int(np.count_nonzero(values.numpy() != 0)) if is_nonzero_only else len(values)
    if not count:
        return 0, 0.0, 0.0
    total, second = float(values.sum()), float(torch.dot(values, values))  # zeros add nothing
    squares = second - total * total / count
    if squares >= _SPREAD * second:
        return count, total / count, squares
    mean, exact = _spread((values[values != 0] if is_nonzero_only else values)[None])
    return count, float(mean), float(exact)


def _spread(rows: Tensor) -> tuple[Tensor, Tensor]:
    # Deviations from the first value: a constant row gives exactly 0, whatever the offset.
    wide = rows.double()
    first = wide[:, :1]
    shifted = wide - first
    mean = shifted.mean(-1, keepdim=True)
    squares = shifted.sub_(mean).square_().sum(-1)
    return (mean + first).squeeze(-1), squares
