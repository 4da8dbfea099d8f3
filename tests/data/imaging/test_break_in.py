"""What breaks preparation in silence if nobody looks: names that meet, masks without labels, patterns without match."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_images import gradient, picture

from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.prepare import prepare_images
from monai_fedskew.data.manifest import read_manifest
from monai_fedskew.errors import ConfigError, DataError


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """One site of two pictures with masks."""
    root = tmp_path / "data"
    for k in range(2):
        picture(root / "A" / "images" / f"{k}.png", gradient(seed=k))
        picture(root / "A" / "labels" / f"{k}.png", np.ones_like(gradient()))
    return root


def test_copied_channels_keep_apart(cells: Path, tmp_path: Path) -> None:
    """The second channel of image 0 is not written to the place of an image that is called 0_1."""
    one, two = sorted((cells / "A" / "images").iterdir())[:2]
    other = shutil.copy(two, one.with_stem(f"{one.stem}_1"))
    lines = [f"A/images/{one.name};A/images/{one.name},x", f"A/images/{other.name},x"]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["image,label", *lines]))
    prepare_images(cells, tmp_path / "out", Options(table=table, has_copies=True))
    first, second = read_manifest(tmp_path / "out" / "A").subjects
    here = tmp_path / "out" / "A"
    assert [(here / name).read_bytes() for name in (*first.files, *second.files)] == [
        path.read_bytes() for path in (one, one, two)
    ]


def test_names_that_no_json_holds_are_refused_before_work(cells: Path, tmp_path: Path) -> None:
    """A file name that is not UTF-8, as old archives unpack to."""
    for kind in ("images", "labels"):
        os.rename(cells / "A" / kind / "0.png", os.fsencode(cells / "A" / kind) + b"/\xff.png")
    with pytest.raises(DataError, match=r"the name '.*\\udcff\.png' is not in UTF-8; rename it"):
        prepare_images(cells, tmp_path / "out", Options())


def test_a_pattern_of_subjects_must_find_one(cells: Path, tmp_path: Path) -> None:
    """A group that takes no part, or an empty match, would leave each image alone without a word."""
    for pattern in ("(none)|.", "z*"):
        with pytest.raises(ConfigError, match="fits nothing in"):
            prepare_images(cells, tmp_path / "out", Options(subject_pattern=pattern))


def test_empty_masks_are_warned_of(cells: Path, tmp_path: Path) -> None:
    """A site without any foreground has nothing to learn from."""
    for mask in (cells / "A" / "labels").iterdir():
        picture(mask, np.zeros_like(gradient()))
    found = prepare_images(cells, tmp_path / "out", Options()).warnings
    assert any("masks are empty, 0 everywhere" in text for text in found)
