"""A JSON file of a run or a comparison, whose values are checked as they are read."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fedskew.errors import DataError

__all__ = ["COMPARE_AGAIN", "RUN_AGAIN", "Fields", "parse_object", "read_fields", "read_text"]

RUN_AGAIN = "remove this run's folder and run it again (of a comparison: compare --resume)"
COMPARE_AGAIN = "call compare with --resume, which keeps the finished runs"
_SCHEMA = 1


@dataclass(frozen=True)
class Fields:
    """An object of a JSON file.

    Args:
        file: the file.
        values: the object.
        again: what to do when the file cannot be used.
        where: keys that lead to the object, each followed by a dot; empty for the whole file.

    Example:
        >>> Fields(Path("run.json"), {"seed": 3}, RUN_AGAIN).whole("seed")
        3
    """

    file: Path
    values: Mapping[str, Any]
    again: str
    where: str = ""

    def text(self, key: str) -> str:
        """Return a text that is not empty."""
        value = self._held(key)
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "a text", value)
        return value

    def whole(self, key: str) -> int:
        """Return a whole number, not negative."""
        value = self._held(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, "a whole number", value)
        return value

    def number(self, key: str) -> float | None:
        """Return a number; None where the key is absent or null, or the number is not finite."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, "a number or null", value)
        return float(value) if math.isfinite(value) else None

    def share(self, key: str) -> float | None:
        """Return a number from 0 to 1; None as in ``number``."""
        value = self.number(key)
        if value is not None and not 0 <= value <= 1:
            raise self.wrong(key, "a number from 0 to 1, or null", value)
        return value

    def inside(self, key: str, *, is_required: bool = False) -> "Fields":
        """Return the object under a key; an empty one where it is absent or null and not required."""
        value = self._held(key) if is_required else self.values.get(key)
        if value is None and not is_required:
            value = {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object", value)
        return Fields(self.file, value, self.again, f"{self.where}{key}.")

    def items(self, key: str, kind: type, *, is_required: bool = False) -> tuple[Any, ...]:
        """Return a list whose items are all of one kind; empty where it is absent or null and not required."""
        value = self._held(key) if is_required else self.values.get(key)
        if value is None and not is_required:
            return ()
        listed: list[Any] = value if isinstance(value, list) else [None]
        is_fine = all(isinstance(item, kind) and not isinstance(item, bool) for item in listed)
        if is_fine and (listed or not is_required):
            return tuple(listed)
        raise self.wrong(key, f"a list of {'texts' if kind is str else 'whole numbers'}", value)

    def wrong(self, key: str, wanted: str, value: object) -> DataError:
        """Make the error about a value."""
        return DataError(f"{self.file}: {self.where}{key} must be {wanted}, seen {str(value)[:60]!r}; {self.again}")

    def _held(self, key: str) -> Any:
        if key not in self.values:
            raise DataError(f"{self.file}: {self.where and f'{self.where[:-1]} '}lacks the key {key!r}; {self.again}")
        return self.values[key]


def read_fields(file: Path, again: str) -> Fields:
    """Read a JSON file that holds an object.

    Args:
        file: the file.
        again: what to do when it cannot be used, for the message.

    Raises:
        DataError: it is absent, unreadable, no JSON object, or of another schema.
    """
    fields = parse_object(read_text(file, again), file, again)
    if fields.values.get("schema", _SCHEMA) != _SCHEMA:
        raise fields.wrong("schema", f"{_SCHEMA} for this version of monai_fedskew", fields.values["schema"])
    return fields


def parse_object(text: str, file: Path, again: str, *, line: int = 0) -> Fields:
    """Parse a JSON object from ``line`` of a file, or from a whole file.

    Raises:
        DataError: it is no JSON, or no object.
    """
    place = f"{file}, line {line}" if line else str(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: cannot be read ({error}); seen {text[:60]!r}; {again}") from error
    if not isinstance(content, dict):
        raise DataError(f"{place}: must hold a JSON object, found {type(content).__name__}; {again}")
    return Fields(Path(place), content, again)


def read_text(file: Path, again: str) -> str:
    """Read a text file.

    Raises:
        DataError: it is absent, no file, or no UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{file}: absent; {again}") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); {again}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is no text file ({error.reason} at byte {error.start}); {again}") from error
