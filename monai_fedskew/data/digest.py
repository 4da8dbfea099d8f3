"""The digest that ties a manifest to its array.

CRC-32 costs 0.5 ms a subject of 145 x 5995 float32 where SHA-256 costs 1.7 ms: it finds a damaged, swapped or edited
array, and is no protection against somebody who forges one.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Digest", "array_digest", "files_digest", "row_blocks"]

_BLOCK_BYTES = 2**23


@dataclass
class Digest:
    """CRC-32 of the values of an array in C order, taken in piece by piece.

    Example:
        >>> digest = Digest()
        >>> digest.add(np.zeros((2, 3), np.float32))
        >>> digest.text == array_digest(np.zeros((2, 3), np.float32))
        True
    """

    crc: int = 0

    def add(self, rows: npt.NDArray[Any] | memoryview) -> None:
        """Take in the next rows, or some of their bytes."""
        content = rows if isinstance(rows, memoryview) else np.ascontiguousarray(rows).data.cast("B")
        self.crc = zlib.crc32(content, self.crc)

    @property
    def text(self) -> str:
        """The digest as it stands in a manifest, such as `crc32:00000000`."""
        return f"crc32:{self.crc:08x}"


def array_digest(array: npt.NDArray[Any]) -> str:
    """Return the digest of an array, which may be a mapped file of any size."""
    digest = Digest()
    for _, rows in row_blocks(array):
        digest.add(rows)
    return digest.text


def files_digest(sources: Mapping[str, str]) -> str:
    """Return the digest of files by the SHA-256 of each; the order does not matter.

    Example:
        >>> files_digest({"a.png": "00"}) == files_digest({"a.png": "01"})
        False
    """
    digest = Digest()
    for name, sha256 in sorted(sources.items()):
        digest.add(memoryview(f"{name} {sha256}\n".encode()))
    return digest.text


def row_blocks(array: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield the rows of a matrix in blocks of some megabytes, each with the number of its first row."""
    step = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
