"""tests/CASES.md and the tests agree."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d\d) \|.*$", (HERE / "CASES.md").read_text(), re.MULTILINE)
NAMED = sorted(set(re.findall(r"`(\S+\.py)::(\w+)`", (HERE / "CASES.md").read_text())))


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda value: str(value).rpartition("/")[2])
def test_a_test_named_in_the_table_exists(file: str, name: str) -> None:
    """Renaming a test means renaming it there."""
    assert f"def {name}(" in (HERE / file).read_text()


def test_every_case_a_test_mentions_is_in_the_table() -> None:
    """A number in a docstring can be looked up; each case has one row."""
    assert len(set(ROWS)) == len(ROWS)
    mentioned = {
        number
        for path in HERE.rglob("*.py")
        for group in re.findall(r"\b[Cc]ases? (\d\d(?:(?:, | and )\d\d)*)", path.read_text())
        for number in re.findall(r"\d\d", group)
    }
    assert mentioned <= set(ROWS)
    assert "07" in mentioned
