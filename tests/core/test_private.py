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


def test_a_site_may_be_named_in_any_script() -> None:
    """As its manifest may."""
    assert StateKey(**{**GOOD, "site": "São Paulo (2)"}).site == "São Paulo (2)"


OUTSIDE = ["", ".", "..", "../up", "a/b", "a\\b", "/etc", ".hidden", "a\n", "a\0", 3, None]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("field", ["study", "run", "site"])
def test_what_could_leave_a_folder_is_refused(field: str, name: Any) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=f"^{field}="):
        StateKey(**{**GOOD, field: name})


@pytest.mark.parametrize("name", ["-x", "a b", "São", "x" * 101])
@pytest.mark.parametrize("field", ["study", "run"])
def test_studies_and_runs_have_plain_names(field: str, name: Any) -> None:
    """They come from a server."""
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
