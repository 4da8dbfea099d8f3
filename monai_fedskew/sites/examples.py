"""Examples of a dataset as batches, in its own order: what site statistics are taken from."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["stacked"]

_BATCH, _VALUES = 1024, 2**24  # at most so many examples, and values, in memory at once


def stacked(data: Any, keys: tuple[str, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield a dataset's examples in its order, as batches of one size; memory is bounded whatever their number.

    Args:
        data: a dataset of dictionaries, or one that returns whole batches (``__getitems__``). Sizes may differ from
            image to image; only neighbours of one size share a batch.
        keys: entries to yield.

    Returns:
        One (B, ...) tensor a key, at most 1024 examples and 16 million values of the first key, but at least one.

    Example:
        >>> sizes = [torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 3)]
        >>> [tuple(images.shape) for (images,) in stacked([{"image": size} for size in sizes], ("image",))]
        [(2, 1, 2), (1, 1, 3)]
    """
    return _whole(data, keys) if hasattr(data, "__getitems__") else _single(data, keys)


def _whole(data: Any, keys: tuple[str, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of a dataset that returns whole ones."""
    first = data.__getitems__([0])[keys[0]] if len(data) else torch.empty(1)
    size = max(1, min(_BATCH, _VALUES // max(1, torch.as_tensor(first).numel())))
    for start in range(0, len(data), size):
        batch = data.__getitems__(list(range(start, min(start + size, len(data)))))
        yield tuple(torch.as_tensor(batch[key]) for key in keys)


def _single(data: Any, keys: tuple[str, ...]) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of neighbours that have one shape: images may be of any size, and large."""
    held: list[tuple[Tensor, ...]] = []
    for index in range(len(data)):
        row = data[index]
        example = tuple(torch.as_tensor(row[key]).as_subclass(Tensor) for key in keys)
        most = max(1, min(_BATCH, _VALUES // max(1, example[0].numel())))
        if held and (len(held) >= most or [x.shape for x in held[0]] != [x.shape for x in example]):
            yield _stack(held)
            held = []
        held.append(example)
    if held:
        yield _stack(held)


def _stack(examples: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(values) for values in zip(*examples, strict=True))
