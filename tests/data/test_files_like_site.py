"""Single files as a site's prepared images are: size, range, channels."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_fedskew.data.files_like_site import FilesLikeSite
from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.errors import ConfigError, DataError


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A white picture."""
    path = tmp_path / "photo.png"
    Image.new("RGB", (9, 7), (255, 255, 255)).save(path)
    return path


def site(folder: Path, channels: int, notes: dict[str, str] | None = None) -> Path:
    """A prepared site of two images, 4 x 6."""
    images = np.zeros((2, channels, 4, 6), np.float32)
    return write_image_site(folder, images, [0, 1], label_names=["no", "yes"], notes=notes)


def test_size_and_range_are_the_sites(photo: Path, tmp_path: Path) -> None:
    """What the manifest says goes before what the bundle says; grey is repeated for the network."""
    told = FilesLikeSite(photo, site(tmp_path / "A", 1, {"range": "-1,3"}), channels=3)[0]["image"]
    assert (told.shape, told.unique().tolist()) == ((3, 4, 6), [3.0])
    silent = FilesLikeSite(photo, site(tmp_path / "B", 3), channels=3, value_range=(-1, 1))[0]["image"]
    assert (silent.shape, silent.unique().tolist()) == ((3, 4, 6), [1.0])


def test_a_given_size_needs_no_site(photo: Path) -> None:
    """A bundle that came without data: several files, in order, nobody knows their class."""
    data = FilesLikeSite([photo, photo], "nowhere", channels=1, size=(5, 5))
    assert data[1]["image"].shape == (1, 5, 5)
    assert (data.rows.tolist(), data.labels.tolist()) == ([0, 1], [-1, -1])
    assert data.subject_ids.tolist() == ["photo", "photo"]


def test_what_does_not_fit_is_refused(photo: Path, tmp_path: Path) -> None:
    """No data and no size, or data of other channels than the network takes."""
    with pytest.raises(DataError, match="no prepared site at .*nowhere.*--image_size"):
        FilesLikeSite(photo, "nowhere", channels=3)
    with pytest.raises(ConfigError, match="its images have 3 channels, the network takes 1"):
        FilesLikeSite(photo, site(tmp_path / "A", 3), channels=1)
