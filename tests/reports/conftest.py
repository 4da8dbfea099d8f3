"""A small comparison on disk, written once and read by many tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib leaves the tests' folder out of the path


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, three seeds, two sites; a COMPARE folder that tests must not change."""
    from folders import write_comparison

    methods = {"local": 0.55, "fedavg": 0.6, "fedprox:mu=0.2": 0.8}
    return write_comparison(tmp_path_factory.mktemp("study") / "compare", methods, (0, 1, 2))
