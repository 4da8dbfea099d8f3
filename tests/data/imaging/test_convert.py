"""Channels, size and range of rows."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from small_images import gradient

from monai_fedskew.data.imaging.convert import as_row
from monai_fedskew.data.imaging.read import Pixels, read_pixels
from monai_fedskew.errors import DataError


def _colours(height: int = 20, width: int = 30) -> Pixels:
    return Pixels(np.stack([gradient(height, width, seed=k) for k in range(3)]), 255.0)


def test_pictures_are_resized_as_pillow_does() -> None:
    """Bit for bit what ``Image.resize(BILINEAR)`` and 1/255 give, as torchvision's Resize and ToTensor."""
    pixels = _colours()
    image = Image.fromarray(np.moveaxis(pixels.values, 0, -1))
    expected = np.moveaxis(np.asarray(image.resize((7, 9), Image.Resampling.BILINEAR)), -1, 0)
    assert np.allclose(as_row(pixels, (3, 9, 7)), expected.astype(np.float32) / 255, atol=1e-7)


@pytest.mark.parametrize("size", [(9, 7), (40, 33), (20, 11)])
def test_floating_point_has_the_same_filter(size: tuple[int, int]) -> None:
    """Larger, smaller, along one axis: as Pillow's mode F, to rounding."""
    values = gradient(20, 30).astype(np.float32) / 7
    expected = np.asarray(Image.fromarray(values).resize(size[::-1], Image.Resampling.BILINEAR))
    assert np.allclose(as_row(Pixels(values[None]), (1, *size))[0], expected, atol=1e-4)


def test_a_volume_is_resized_along_every_axis() -> None:
    """A constant stays one; a ramp of 4 to 2 places averages with weights (3, 3, 1)/7: (0*3 + 1*3 + 2*1)/7 = 5/7."""
    assert np.allclose(as_row(Pixels(np.full((1, 4, 6, 5), 3.0, np.float32)), (1, 2, 9, 5)), 3.0)
    ramp = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None, None], (4, 2, 2))[None]
    assert np.allclose(as_row(Pixels(ramp), (1, 2, 2, 2))[0, :, 0, 0], [5 / 7, 16 / 7])


def test_colours_and_grey_become_each_other() -> None:
    """Grey is repeated; colours weigh 0.299, 0.587, 0.114: pure red of 8 bits is 76."""
    grey = as_row(Pixels(gradient()[None], 255.0), (3, 6, 8))
    assert np.array_equal(grey[0], grey[2])
    red = np.zeros((3, 2, 2), np.uint8)
    red[0] = 255
    assert np.allclose(as_row(Pixels(red, 255.0), (1, 2, 2)), 76 / 255)
    assert np.allclose(as_row(Pixels(red.astype(np.float32)), (1, 2, 2)), 0.299 * 255)


def test_black_and_white_is_resized_to_grey() -> None:
    """Two of four pixels white, made one: 0.5, not rounded to black or white."""
    assert as_row(Pixels(np.array([[[0, 1], [1, 0]]], np.uint8), 1.0), (1, 1, 1)).item() == 0.5


def test_the_range_is_of_the_format_not_of_the_image() -> None:
    """A dark picture stays dark: 51 of 255 is 0.2 in 0..1, and -0.6 in -1..1; physical values are left alone."""
    dark = np.full((1, 2, 2), 51, np.uint8)
    assert np.allclose(as_row(Pixels(dark, 255.0), (1, 2, 2)), 0.2)
    assert np.allclose(as_row(Pixels(dark, 255.0), (1, 2, 2), (-1.0, 1.0)), -0.6)
    assert np.allclose(as_row(Pixels(dark.astype(np.float32)), (1, 2, 2), (-1.0, 1.0)), 51)


def test_volumes_are_turned_alike(tmp_path: Path) -> None:
    """The same head, stored along other axes, gives the same row."""
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    image = nibabel.Nifti1Image(values, np.diag([1.0, 2.0, 3.0, 1.0]))
    turned = image.as_reoriented(np.array([[1, -1], [0, 1], [2, -1]]))
    for name, one in (("a.nii", image), ("b.nii", turned)):
        nibabel.save(one, tmp_path / name)
    rows = [as_row(read_pixels([tmp_path / name]), (1, 3, 4, 5)) for name in ("a.nii", "b.nii")]
    assert np.allclose(rows[0], values)
    assert np.allclose(rows[0], rows[1])


def test_what_cannot_be_is_refused_with_the_file() -> None:
    """Two channels are no colours; a volume is no picture."""
    with pytest.raises(DataError, match="site A: x has 2 channels, 1 are asked for"):
        as_row(Pixels(np.zeros((2, 3, 3), np.float32)), (1, 3, 3), where="site A: x")
    with pytest.raises(DataError, match=r"x has 3 spatial axes \(2, 3, 3\), --size gives 2: 3x3"):
        as_row(Pixels(np.zeros((1, 2, 3, 3), np.float32)), (1, 3, 3), where="x")
