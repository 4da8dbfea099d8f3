"""JSON files that must hold an object."""

from pathlib import Path

import pytest

from monai_fedskew.core.json_object import read_object
from monai_fedskew.errors import DataError


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "holds a list, not an object"),
        ("null", "holds a NoneType, not an object"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_what_holds_no_object_is_named(text: str, told: str, tmp_path: Path) -> None:
    """File and what to do; nesting that would exhaust the stack is one of them."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"x\.json: {told}.*; correct it, or call somebody"):
        read_object(path, "call somebody")


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    """Absent, and a folder."""
    with pytest.raises(DataError, match="gone.json does not exist; call somebody"):
        read_object(tmp_path / "gone.json", "call somebody")
    with pytest.raises(DataError, match="is a folder; call somebody"):
        read_object(tmp_path, "call somebody")
