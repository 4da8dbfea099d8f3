"""Read a CSV table as text, with the line of every row, so that an error can say where it is."""

import csv
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.errors import DataError

__all__ = ["CsvTable", "read_csv"]


@dataclass(frozen=True)
class CsvTable:
    """A table: names of the `columns`, and for each row its last line in the file and its cells by column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]


def read_csv(path: Path, *, once: tuple[str, ...] = (), is_complete: bool = False) -> CsvTable:
    """Read a CSV file in UTF-8, with or without a byte order mark. Empty lines are skipped.

    Args:
        path: the file.
        once: columns that must not be there twice.
        is_complete: whether every row must have as many cells as the header; otherwise missing ones are empty.

    Raises:
        DataError: the file cannot be read, is not UTF-8, is no CSV, or a row has more cells than the header.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     path = Path(tmp) / "labels.csv"
        ...     _ = path.write_text("label,name\\n10,Left Thalamus\\n")
        ...     read_csv(path).rows
        ((2, {'label': '10', 'name': 'Left Thalamus'}),)
    """
    lines = _lines(path)
    if not lines:
        raise DataError(f"{path}: no readable CSV table: it is empty")
    columns = tuple(name.strip() for name in lines[0][1])
    for name in once:
        if columns.count(name) > 1:
            raise DataError(f"{path}, line 1: column {name} is there {columns.count(name)} times; keep one")
    rows = []
    for line, cells in lines[1:]:
        if any(cells[len(columns) :]) or (is_complete and len(cells) < len(columns)):
            raise DataError(
                f"{path}, line {line}: {len(cells)} cells where the header has {len(columns)}; text with a comma must "
                "stand in quotes, and a file that breaks off must be got again"
            )
        padded = [*cells, *[""] * (len(columns) - len(cells))]
        rows.append((line, dict(zip(columns, padded, strict=False))))
    return CsvTable(columns, tuple(rows))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            return [(reader.line_num, cells) for cells in reader if cells]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: cannot be read as CSV: byte {error.object[error.start]:#04x} is not UTF-8; "
            "save the table as 'CSV UTF-8'"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read as CSV ({error.strerror})") from error
    except csv.Error as error:
        raise DataError(f"{path}: no readable CSV table ({error})") from error
