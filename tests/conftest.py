"""Fixtures shared by all tests."""

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# scripts: run by hand, or by a test in a process of its own; the search for doctests would import them
collect_ignore = ["benchmarks", "engines/killed.py", "handlers/ranks.py", "second_device.py"]


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


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small prepared sites with feature skew: 6 regions, 15 edges, 16 subjects of 4 windows each."""
    from monai_fedskew.data.synthetic import write_synthetic_study

    folder = tmp_path_factory.mktemp("data") / "study"
    return write_synthetic_study(folder, sites=("A", "B", "C", "D"), subjects=16, windows=4, n_regions=6)


@pytest.fixture(scope="session")
def tiny_bundle() -> Path:
    """A bundle with batch norm, dropout, momentum, a schedule and torch's own shuffling."""
    return ROOT / "tests" / "tiny_bundle"


@pytest.fixture(scope="session")
def sources(study: Path, tiny_bundle: Path) -> dict[str, Any]:
    """The four sites of the small study on the tiny bundle."""
    from monai_fedskew.sites.bundle import BundleSite

    return {site: BundleSite(tiny_bundle, site, study / site) for site in ("A", "B", "C", "D")}


@pytest.fixture(scope="session")
def image_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small prepared sites of 1 x 8 x 8 images with scanner skew, 32 images each."""
    from monai_fedskew.data.synthetic_images import write_synthetic_images

    folder = tmp_path_factory.mktemp("data") / "images"
    return write_synthetic_images(folder, sites=("A", "B", "C", "D"), images=32)


@pytest.fixture(scope="session")
def image_bundle() -> Path:
    """A bundle with a small MONAI ResNet with batch norm, momentum and a schedule."""
    return ROOT / "tests" / "image_bundle"


@pytest.fixture(scope="session")
def image_sources(image_study: Path, image_bundle: Path) -> dict[str, Any]:
    """The four sites of the small images on the image bundle."""
    from monai_fedskew.sites.bundle import BundleSite

    return {site: BundleSite(image_bundle, site, image_study / site) for site in ("A", "B", "C", "D")}
