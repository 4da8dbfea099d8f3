"""Memory for a result that is made anew every step, reused as soon as nobody holds the last one."""

import math
import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ReusedMemory"]


class ReusedMemory:
    """Hand out uninitialised CPU tensors, from one block of memory while no earlier tensor or view of it lives.

    A fresh block of a few megabytes is given back to the system and paged in again at every step, which costs more
    than normalising 100 x 5995 values. Whoever keeps a tensor keeps its values: the next one then gets a new block.

    >>> memory = ReusedMemory()
    >>> first = memory.empty((2, 3), torch.float32)
    >>> first.data_ptr() == memory.empty((2, 3), torch.float32).data_ptr()
    False
    """

    def __init__(self) -> None:
        self._block: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._free = _references(self._block)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised, contiguous tensor that no other living tensor shares memory with."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        if self._block.size < size or _references(self._block) > self._free:
            self._block = np.empty(size, np.uint8)
        # A tensor made from an array, and every view of it, holds a reference to the array: counting them is exact.
        return torch.from_numpy(self._block[:size]).view(dtype).view(shape)


def _references(block: NDArray[np.uint8]) -> int:
    return sys.getrefcount(block)
