"""Ranges of the settings."""

from typing import Any

import pytest

from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings


@pytest.mark.parametrize("name", ["rounds", "local_epochs", "min_sites", "threads"])
@pytest.mark.parametrize("value", [0, -1])
def test_counts_start_at_one(name: str, value: int) -> None:
    """The error names setting and value."""
    with pytest.raises(ConfigError, match=f"{name}={value} must be .*at least 1"):
        Settings(**{"rounds": 1, name: value})


def test_threads_are_bounded() -> None:
    """A server names them, and torch ends the process at numbers that no machine has."""
    with pytest.raises(ConfigError, match="threads=1000000000 must be at most 1024"):
        Settings(rounds=1, threads=10**9)


def test_a_seed_can_be_sent() -> None:
    """Flower's configuration holds 64 bits; a negative seed is as good as another."""
    assert Settings(rounds=1, seed=-3).seed == -3
    with pytest.raises(ConfigError, match="must have at most 63 bits"):
        Settings(rounds=1, seed=10**30)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_the_fraction_is_a_share(value: float) -> None:
    """Above 0, at most 1."""
    with pytest.raises(ConfigError, match=f"fraction={value} must be above 0 and at most 1"):
        Settings(rounds=1, fraction=value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("weights", "windows"), ("optimizer_state", "drop"), ("non_finite", "ignore"), ("choose", "first")],
)
def test_closed_choices_are_checked(name: str, value: str) -> None:
    """A typing error in a study or in Python is found before anything runs."""
    with pytest.raises(ConfigError, match=f"{name}='{value}'"):
        Settings(rounds=1, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", "ten"), ("rounds", 2.5), ("rounds", True), ("fraction", "half"), ("seed", "x")]
)
def test_types_are_checked(name: str, value: Any) -> None:
    """A study gives what YAML gives."""
    with pytest.raises(ConfigError, match=f"{name}="):
        Settings(**{"rounds": 1, name: value})


def test_settings_are_plain_values() -> None:
    """They go into run.json and come back equal."""
    settings = Settings(rounds=3, fraction=0.5, weights="equal")
    assert Settings(**settings.plain()) == settings
