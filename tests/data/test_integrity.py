import dataclasses
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.digest import Digest, array_digest, row_blocks
from monai_fedskew.data.integrity import verify_data
from monai_fedskew.data.manifest import read_manifest
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import DataError


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A prepared synthetic site."""
    return write_synthetic_study(tmp_path, sites=("EAST",)) / "EAST"


def change(site: Path, value: float) -> None:
    """Change one value of the array."""
    rows = np.load(site / "vectors.npy", mmap_mode="r+")
    rows[7, 2] = value
    rows.flush()


def test_an_untouched_site_passes(site: Path) -> None:
    """Nothing is raised and nothing is written."""
    before = sorted(site.iterdir())
    verify_data(site, read_manifest(site))
    assert sorted(site.iterdir()) == before


def test_one_changed_value_is_found(site: Path) -> None:
    """The shape is right and the manifest reads well, but the digest tells; site, file and what to do are named."""
    change(site, 0.25)
    with pytest.raises(DataError, match=r"site EAST: .*vectors.npy was changed after it was prepared.*prepare again"):
        verify_data(site, read_manifest(site))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(site: Path, value: float) -> None:
    """The error has the number of the row and of the column."""
    change(site, value)
    with pytest.raises(DataError, match="site EAST: .*row 7 has 1 values that are not finite .first in column 2"):
        verify_data(site, read_manifest(site))


def test_large_finite_values_are_no_fault(site: Path) -> None:
    """A row whose sum overflows float32 is finite all the same; only the digest differs."""
    rows = np.load(site / "vectors.npy", mmap_mode="r+")
    rows[3] = 3e38
    rows.flush()
    with pytest.raises(DataError, match="changed after it was prepared"):
        verify_data(site, read_manifest(site))


def test_a_manifest_without_digest_does_not_pass(site: Path) -> None:
    """What cannot be checked is no silent success; nor is a file that is gone."""
    manifest = read_manifest(site)
    with pytest.raises(DataError, match="no data_digest to check it by; prepare again"):
        verify_data(site, dataclasses.replace(manifest, data_digest=""))
    (site / "vectors.npy").unlink()
    with pytest.raises(DataError, match="cannot be read as an array"):
        verify_data(site, manifest)


def test_pieces_give_the_digest_of_the_whole() -> None:
    """Blocks cover every row once, and taking them in one by one gives the digest of the array."""
    array = np.random.default_rng(0).standard_normal((3000, 999)).astype(np.float32)
    blocks = list(row_blocks(array))
    assert len(blocks) == 2
    assert (np.concatenate([rows for _, rows in blocks]) == array).all()
    assert [start for start, _ in blocks] == [0, len(blocks[0][1])]
    digest = Digest()
    digest.add(array[:10])
    digest.add(array[10:])
    assert digest.text == array_digest(array)
