from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.abide.atlas import harvard_oxford, read_regions, write_regions
from monai_fedskew.data.manifest import Region
from monai_fedskew.errors import DataError


def test_the_table_has_the_documented_labels() -> None:
    """14 subcortical and 2 x 48 cortical labels in ascending order, without 3455."""
    cortical = [100 * k + side for k in range(1, 49) for side in (1, 2)]
    labels = [int(region.label) for region in harvard_oxford()]
    assert labels == sorted([10, 11, 12, 13, 17, 18, 26, 49, 50, 51, 52, 53, 54, 58, *cortical])


def test_left_and_right_mirror_each_other() -> None:
    """The two sides of a region share its name, lie on their side of x = 0, and mirror each other within 8 mm."""
    places = {region.label: region for region in harvard_oxford()}
    pairs = [(str(100 * k + 1), str(100 * k + 2)) for k in range(1, 49)]
    pairs += zip(["49", "50", "51", "52", "53", "54", "58"], ["10", "11", "12", "13", "17", "18", "26"], strict=True)
    for right, left in ((places[a], places[b]) for a, b in pairs):
        assert right.name.removeprefix("Right ") == left.name.removeprefix("Left ") != right.name
        assert right.xyz is not None
        assert left.xyz is not None
        assert left.xyz[0] < 0 < right.xyz[0]
        assert np.abs(np.array(right.xyz) * [-1, 1, 1] - left.xyz).max() <= 8


def test_regions_survive_writing(tmp_path: Path) -> None:
    """Names with commas and unknown centres come back; a table without labels or with one twice is refused."""
    path, regions = tmp_path / "regions.csv", (Region("1", "A, front", (1.5, -2.0, 3.0)), Region("2"))
    write_regions(path, regions)
    assert read_regions(path) == regions
    for text, message in (
        ("name\nx\n", "column 'label' is missing"),
        ("label\n1\n1\n", "label 1 appears twice"),
        ("label\n", "no region"),
        ("label,x,y,z\n1,a,b,c\n", "must be numbers"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_regions(path)
    path.write_bytes(b"label,name\n1,\xe9\n")
    with pytest.raises(DataError, match="regions.csv: cannot be read as CSV: byte 0xe9 is not UTF-8"):
        read_regions(path)
    path.write_text("label,name\n,a\n")
    with pytest.raises(DataError, match="regions.csv, line 2: the label is empty"):
        read_regions(path)
    path.write_text("label,name\n1,a\n", encoding="utf-8-sig")
    assert read_regions(path) == (Region("1", "a"),)
