"""The order of the laws: those of one method behind each other, so that they can share its runs."""

import pytest
from laws import EVERY

_LAWS = "test_laws.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the laws that go over methods by method, in the places that they have among all tests."""
    places = [index for index, item in enumerate(items) if _text(item)]
    ordered = sorted((items[index] for index in places), key=lambda item: EVERY.index(_text(item)))
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def _text(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    text = callspec.params.get("text", "") if callspec and item.path.name == _LAWS else ""
    return text if text in EVERY else ""
