"""Mean and squared deviations of long runs of numbers, in float64 and in pieces that stay in the processor's cache."""

import torch
from torch import Tensor

__all__ = ["CHUNK", "row_moments", "run_moments"]

CHUNK = 32768  # numbers at once: 256 KiB as float64; a whole volume as float64 takes ten times as long


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


def run_moments(values: Tensor, keep: Tensor | None = None) -> tuple[int, float, float]:
    """Return number, mean and sum of squared deviations of the values that are kept; all zero where none is.

    Args:
        values: (n,) of any integer or floating type.
        keep: (n,) bool, the values that count; all if absent.

    >>> run_moments(torch.tensor([5.0, 1.0, 3.0]), torch.tensor([False, True, True]))
    (2, 2.0, 2.0)
    """
    parts = list(torch.split(values, CHUNK))
    if keep is not None:
        parts = [part[kept] for part, kept in zip(parts, torch.split(keep, CHUNK), strict=True)]
    found = [(len(part), *_spread(part[None])) for part in parts if len(part)]
    if not found:
        return 0, 0.0, 0.0
    count = torch.tensor([n for n, _, _ in found], dtype=torch.float64)
    mean, squares = torch.cat([m for _, m, _ in found]), torch.cat([q for _, _, q in found])
    total = count.sum()
    joint = mean[0] + ((mean - mean[0]) * count).sum() / total
    # Chan, Golub and LeVeque 1979: squares about the joint mean
    return int(total), float(joint), float(squares.sum() + (count * (mean - joint).square()).sum())


def _spread(rows: Tensor) -> tuple[Tensor, Tensor]:
    # Deviations from the first value: a constant row gives exactly 0, whatever the offset.
    wide = rows.double()
    first = wide[:, :1]
    shifted = wide - first
    mean = shifted.mean(-1, keepdim=True)
    squares = shifted.sub_(mean).square_().sum(-1)
    return (mean + first).squeeze(-1), squares
