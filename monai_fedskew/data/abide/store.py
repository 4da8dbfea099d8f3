"""Write one site's rows as they come, so that memory does not grow with the number of subjects."""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.digest import Digest

__all__ = ["ArrayWriter", "Buffers", "Moments", "in_order", "open_array"]

T = TypeVar("T")
_PIECE_BYTES = 2**18


def in_order(function: Callable[..., T], calls: Iterable[tuple[Any, ...]], *, threads: int) -> Iterator[T]:
    """Yield ``function(*call)`` for each call in order, computed by threads while the caller is busy.

    At most ``threads + 1`` results wait, so memory does not grow with the number of calls. An error is raised in its
    turn.

    Example:
        >>> list(in_order(pow, [(2, 3), (3, 2)], threads=2))
        [8, 9]
    """
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for call in calls:
                waiting.append(pool.submit(function, *call))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Buffers:
    """Arrays for the rows of one subject, used again: the pages of fresh ones would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._free: deque[npt.NDArray[np.float32]] = deque()  # its operations are safe among threads

    def take(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Return an uninitialised (rows, columns) array, to be given back."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(0, np.float32)
        if memory.size < rows * columns:
            memory = np.empty(rows * columns, np.float32)
        return memory[: rows * columns].reshape(rows, columns)

    def give_back(self, rows: npt.NDArray[np.float32]) -> None:
        """Let an array from `take` be used again."""
        memory = rows.base
        assert isinstance(memory, np.ndarray)
        self._free.append(memory)


@dataclass(frozen=True)
class Moments:
    """Number, sum and sum of squares of values, in float64."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(rows: npt.NDArray[np.float32]) -> "Moments":
        """Measure (rows, features) values. Sums within a row are float32, which numpy adds pairwise."""
        total = float(rows.sum(axis=1).sum(dtype=np.float64))
        return Moments(rows.size, total, float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)

    @property
    def mean(self) -> float:
        """Mean of the values, 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the values (ddof 0), 0 if there are none."""
        return float(np.sqrt(max(0.0, self.squares / self.count - self.mean**2))) if self.count else 0.0


@dataclass
class ArrayWriter:
    """An open `.npy` file that grows row by row, with the digest of what was written."""

    file: io.FileIO
    columns: int
    dtype: np.dtype[Any]
    rows: int = 0
    digest: Digest = field(default_factory=Digest)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write (rows, columns) values."""
        view = np.ascontiguousarray(rows, self.dtype).data.cast("B")
        # piece by piece, so that the digest leaves in the processor's cache what is written next: else it costs 15 %
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            self.digest.add(piece)
            while len(piece):
                piece = piece[self.file.write(piece) or 0 :]
        self.rows += len(rows)


@contextmanager
def open_array(path: Path, columns: int, dtype: str) -> Iterator[ArrayWriter]:
    """Open a `.npy` file for appending; its header gets the number of rows at the end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     with open_array(Path(tmp) / "x.npy", 2, "float32") as array:
        ...         array.append(np.ones((3, 2)))
        ...         array.append(np.zeros((1, 2)))
        ...     np.load(Path(tmp) / "x.npy").shape
        (4, 2)
    """
    with path.open("wb", buffering=0) as file:
        writer = ArrayWriter(file, columns, np.dtype(dtype))
        _write_header(writer)
        yield writer
        file.seek(0)
        _write_header(writer)


def _write_header(writer: ArrayWriter) -> None:
    # numpy leaves room for the number of rows to grow, so that both headers have one length
    shape = (writer.rows, writer.columns)
    header = {"descr": np.lib.format.dtype_to_descr(writer.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(writer.file, header)
