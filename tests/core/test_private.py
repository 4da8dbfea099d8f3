"""Keys of private state: names that become folders and come from a server."""

from typing import Any

import pytest

from monai_fedskew.core.private import StateKey
from monai_fedskew.errors import ConfigError

GOOD = {"study": "abide", "run": "r1", "site": "NYU", "network": "a" * 64}


@pytest.mark.parametrize("name", ["A", "UM_1", "0", "2026-01-31.b", "a..b", "x" * 100])
@pytest.mark.parametrize("field", ["study", "run", "site"])
def test_plain_names_are_taken(field: str, name: str) -> None:
    """Letters, digits and . _ - after a letter or digit."""
    assert getattr(StateKey(**{**GOOD, field: name}), field) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../up", "a/b", "a\\b", "/etc", ".hidden", "-x", "a\n", "a b", "a\0", "São", "x" * 101, 3, None],
)
@pytest.mark.parametrize("field", ["study", "run", "site"])
def test_what_could_leave_a_folder_is_refused(field: str, name: Any) -> None:
    """The error names field and value."""
    with pytest.raises(ConfigError, match=f"^{field}="):
        StateKey(**{**GOOD, field: name})


@pytest.mark.parametrize("network", ["", "abc", "A" * 64, "g" * 64, "a" * 65, "a" * 64 + "\n", None])
def test_the_network_is_a_hash(network: Any) -> None:
    """64 lower-case hex digits."""
    with pytest.raises(ConfigError, match="^network="):
        StateKey(**{**GOOD, "network": network})


def test_equal_keys_are_one_key() -> None:
    """Frozen values: a key can index a mapping."""
    assert {StateKey(**GOOD): 1}[StateKey(**GOOD)] == 1
