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

__all__ = ["ArrayWriter", "RunningMoments", "ahead", "open_array"]


T = TypeVar("T")
_AHEAD = 2  # how many results wait at most


def ahead(function: Callable[..., T], calls: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Yield ``function(*call)`` for each call in order, computed by a thread while the caller is busy.

    At most two results wait, so memory does not grow with the number of calls. An error is raised in its turn.

    Example:
        >>> list(ahead(pow, [(2, 3), (3, 2)]))
        [8, 9]
    """
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1) as thread:
        for call in calls:
            waiting.append(thread.submit(function, *call))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclass
class RunningMoments:
    """Mean and standard deviation (ddof 0) over all values seen, in float64."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, rows: npt.NDArray[np.float32]) -> None:
        """Take in (rows, features) values. Sums within a row are float32, which numpy adds pairwise."""
        self.count += rows.size
        self.total += float(rows.sum(axis=1).sum(dtype=np.float64))
        self.squares += float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))

    @property
    def mean(self) -> float:
        """Mean of the values, 0 if there are none."""
        return self.total / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of the values, 0 if there are none."""
        return float(np.sqrt(max(0.0, self.squares / self.count - self.mean**2))) if self.count else 0.0


@dataclass
class ArrayWriter:
    """An open `.npy` file that grows row by row.

    `n_windows` is for the caller to count what the rows stand for. Writing goes on in a thread of its own while the
    next rows are computed.
    """

    file: io.FileIO
    columns: int
    dtype: np.dtype[Any]
    thread: ThreadPoolExecutor
    rows: int = 0
    n_windows: int = 0
    pending: Future[None] | None = None
    memory: list[npt.NDArray[np.float32]] = field(default_factory=lambda: [np.empty(0, np.float32)] * 2)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write (rows, columns) values, which must not change before the next call returns."""
        self.wait()
        self.pending = self.thread.submit(self._write, np.ascontiguousarray(rows, self.dtype))
        self.rows += len(rows)

    def buffer(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Return an uninitialised (rows, columns) array, one of two in turn."""
        self.memory.reverse()
        if self.memory[0].size < rows * columns:
            self.memory[0] = np.empty(rows * columns, np.float32)
        return self.memory[0][: rows * columns].reshape(rows, columns)

    def wait(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        if self.pending is not None:
            self.pending.result()

    def _write(self, rows: npt.NDArray[Any]) -> None:
        view = rows.data.cast("B")
        written = 0
        while written < len(view):
            written += self.file.write(view[written:]) or 0


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
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as thread:
        writer = ArrayWriter(file, columns, np.dtype(dtype), thread)
        file.write(_header(writer))
        yield writer
        writer.wait()
        file.seek(0)
        file.write(_header(writer))


def _header(writer: ArrayWriter) -> bytes:
    """The header numpy writes, padded to 256 bytes so that its length does not depend on the number of rows."""
    text = repr({"descr": writer.dtype.str, "fortran_order": False, "shape": (writer.rows, writer.columns)})
    return b"\x93NUMPY\x01\x00" + (246).to_bytes(2, "little") + text.ljust(245).encode("ascii") + b"\n"
