"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def testdata() -> Path:
    """Folder of the real data; tests that need it skip when it is absent."""
    folder = Path(os.environ.get("FEDSKEW_TESTDATA", ROOT.parent / "shared" / "testdata")).resolve()
    if not folder.is_dir():
        pytest.skip(f"real data not found: {folder} (set FEDSKEW_TESTDATA)")
    return folder


@pytest.fixture(scope="session")
def abide(testdata: Path) -> Path:
    """The real ABIDE subset in nilearn's layout."""
    folder = testdata / "abide"
    if not folder.is_dir():
        pytest.skip(f"real ABIDE data not found: {folder}")
    return folder
