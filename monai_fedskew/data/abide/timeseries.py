"""Read ROI series in `.1D` form: one line of `#label`s, then one line of numbers a volume."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.sliding import LARGEST
from monai_fedskew.errors import DataError

__all__ = ["Series", "count_volumes", "read_series", "write_series"]

Floats = npt.NDArray[np.float64]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_BROKEN = "the file is truncated or damaged; fetch or write it again"


@dataclass(frozen=True)
class Series:
    """A scan's ROI series: `values` is (volumes, labels) float64 in the order of `labels`."""

    labels: tuple[str, ...]
    values: Floats
    sha256: str

    def columns(self, labels: Sequence[str]) -> Floats:
        """Return the columns of some labels, in their order, C-contiguous."""
        place = {label: column for column, label in enumerate(self.labels)}
        return np.ascontiguousarray(self.values[:, [place[label] for label in labels]])


def read_series(path: Path, expected: Sequence[str], *, optional: Sequence[str] = ()) -> Series:
    """Read a `.1D` file and check its header and every row.

    Args:
        path: the file.
        expected: labels that must be there; their order in the file does not matter.
        optional: labels that may be there.

    Raises:
        DataError: the header lacks a label or has one too many, a second header follows, a row has another number of
            values, a value is no number or beyond 1e9 in size, or the last line is cut off. Names the file and the
            label or line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     path = Path(tmp) / "A_0000001_rois_ho.1D"
        ...     write_series(path, ["10", "11"], np.array([[1.0, 2.0], [3.0, 4.0]]))
        ...     read_series(path, ["11", "10"]).columns(["11", "10"]).tolist()
        [[2.0, 1.0], [4.0, 3.0]]
    """
    raw = Path(path).read_bytes()
    header, _, body = raw.partition(b"\n")
    labels = _labels(path, header)
    _check_labels(path, labels, expected, optional)
    _check_comments(path, body)
    values = _fast(path, len(labels)) if body.endswith(b"\n") else None
    if values is None:
        values = _slow(path, body, len(labels))
    is_fit = np.abs(values) <= LARGEST
    if not is_fit.all():
        row, column = (int(k[0]) for k in np.nonzero(~is_fit))
        value = values[row, column]
        line = [number for number, text in enumerate(_lines(body), start=2) if text.strip()][row]
        what = f"; sizes up to {LARGEST:.0e} can be correlated" if np.isfinite(value) else ""
        raise DataError(f"{path}, line {line}: the value of label {labels[column]} is {value}{what}; {_BROKEN}")
    return Series(labels, values, hashlib.sha256(raw).hexdigest())


def count_volumes(path: Path) -> int:
    """Count the volumes of a `.1D` file without reading its numbers."""
    with Path(path).open("rb") as file:
        return sum(1 for line in file if line.strip() and not line.startswith(b"#"))


def write_series(path: Path, labels: Sequence[str], values: Floats) -> None:
    """Write a `.1D` file: `#label`s, then a line a volume, all separated by tabs; see `read_series`.

    Args:
        path: the file to write.
        labels: one a column.
        values: (volumes, labels).
    """
    header = "\t".join(f"#{label}" for label in labels)
    lines = ["\t".join(format(value, ".9g") for value in row) for row in values.tolist()]
    Path(path).write_text("\n".join([header, *lines]) + "\n", encoding="ascii")


def _labels(path: Path, header: bytes) -> tuple[str, ...]:
    if not header.startswith(b"#"):
        start = header[:40].decode("utf-8", "replace")
        raise DataError(
            f"{path}, line 1: expected a header of #labels, found {start!r}; without labels columns are not known"
        )
    return tuple(header.decode("utf-8", "replace").replace("#", " ").split())


def _check_labels(path: Path, labels: Sequence[str], expected: Sequence[str], optional: Sequence[str]) -> None:
    found = set(labels)
    missing = [label for label in expected if label not in found]
    if missing:
        raise DataError(f"{path}, line 1: the header lacks {_some(missing)} of {len(expected)}; {_BROKEN}")
    known = {*expected, *optional}
    extra = [label for label in labels if label not in known]
    if extra:
        raise DataError(f"{path}, line 1: the header has unexpected {_some(extra)}; it is of another atlas or damaged")
    if len(found) != len(labels):
        twice = [label for label in dict.fromkeys(labels) if list(labels).count(label) > 1]
        raise DataError(f"{path}, line 1: the header has {_some(twice)} more than once; {_BROKEN}")


def _check_comments(path: Path, body: bytes) -> None:
    if b"#" not in body:
        return
    line = next(number for number, text in enumerate(_lines(body), start=2) if "#" in text)
    raise DataError(
        f"{path}, line {line}: a # after the header in line 1: the file was appended to another or to itself, or has "
        "comments; write one header and one line a volume"
    )


def _lines(body: bytes) -> list[str]:
    return body.decode("utf-8", "replace").splitlines()


def _some(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")
    return f"label {shown}" if len(labels) == 1 else f"{len(labels)} labels ({shown})"


def _fast(path: Path, columns: int) -> Floats | None:
    """Parse a file of the right shape; None for any other, which is then read line by line to say what is wrong."""
    try:
        values = np.loadtxt(path, np.float64, comments="#", ndmin=2)
    except ValueError:
        return None
    return values if values.shape[1] == columns and len(values) else None


def _slow(path: Path, body: bytes, columns: int) -> Floats:
    """Parse line by line, to say which line is wrong."""
    rows = []
    for number, line in enumerate(_lines(body), start=2):
        words = line.split()
        if not words:
            continue
        if len(words) != columns:
            raise DataError(
                f"{path}, line {number}: {len(words)} values where the header has {columns} labels; {_BROKEN}"
            )
        rows.append([_number(path, number, word) for word in words])
    if not rows:
        raise DataError(f"{path}: no volume after the header; {_BROKEN}")
    if not body.endswith(b"\n"):
        raise DataError(f"{path}, line {len(rows) + 1}: the last line does not end; {_BROKEN}")
    return np.array(rows)


def _number(path: Path, line: int, word: str) -> float:
    if not _NUMBER.fullmatch(word):  # float would also take 1_000 and digits of other scripts
        raise DataError(f"{path}, line {line}: {word[:20]!r} is no number; {_BROKEN}")
    return float(word)
