"""One process a site."""

import pytest

from monai_fedskew.errors import ConfigError
from monai_fedskew.handlers.ranks import site_of_rank


def test_rank_k_is_site_k(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, site in enumerate(("EAST", "WEST")):
        monkeypatch.setenv("RANK", str(rank))
        assert site_of_rank(["EAST", "WEST"]) == site


def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise sites would be left out in silence."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes for 3 sites"):
        site_of_rank(["A", "B", "C"])
    with pytest.raises(ConfigError, match="must be sorted"):
        site_of_rank(["B", "A"])


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """No RANK."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        site_of_rank(["A", "B"])
