"""Images of every format in one form."""

import struct
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from small_images import gradient, nifti, picture

from monai_fedskew.data.imaging.read import read_pixels
from monai_fedskew.errors import DataError


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
def test_a_picture_is_channels_first_without_transparency(mode: str, tmp_path: Path) -> None:
    """Grey stays one channel, colours are three; height before width; the format's white is known."""
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 6)).save(path)
    pixels = read_pixels([path])
    assert pixels.values.shape == (1 if mode in ("1", "L", "LA", "I;16") else 3, 6, 8)
    assert pixels.white == {"1": 1, "I;16": 65535}.get(mode, 255)
    assert (pixels.spacing, pixels.orientation) == ((), "")


def test_a_palette_is_colours_in_an_image_and_numbers_in_a_mask(tmp_path: Path) -> None:
    """A label map that is stored with a palette keeps its labels."""
    labels = Image.new("P", (2, 1))
    labels.putpalette([0, 0, 0, 250, 10, 20])
    labels.putdata([0, 1])
    labels.save(tmp_path / "a.png")
    assert read_pixels([tmp_path / "a.png"]).values[:, 0, 1].tolist() == [250, 10, 20]
    assert read_pixels([tmp_path / "a.png"], is_mask=True).values.tolist() == [[[0, 1]]]


def test_sixteen_bits_survive(tmp_path: Path) -> None:
    """No value above 255 is cut."""
    values = (gradient().astype(np.uint16) + 1) * 250
    assert np.array_equal(read_pixels([picture(tmp_path / "a.png", values)]).values[0], values)


def test_nifti_has_physical_values_and_its_place(tmp_path: Path) -> None:
    """Slope and intercept are applied: stored 3 with slope 2 and intercept 1 is 7. Spacing and orientation are read."""
    image = nibabel.Nifti1Image(np.full((2, 3, 4), 3, np.int16), np.diag([-2.0, 1.0, 3.0, 1.0]))
    image.header.set_slope_inter(2, 1)
    path = tmp_path / "a.nii.gz"
    nibabel.save(image, path)
    pixels = read_pixels([path])
    assert pixels.values.shape == (1, 2, 3, 4)
    assert pixels.values.dtype == np.float32
    assert np.unique(pixels.values).tolist() == [nibabel.load(path).get_fdata()[0, 0, 0]]
    assert (pixels.spacing, pixels.orientation, pixels.white) == ((2.0, 1.0, 3.0), "LAS", 0)


def test_the_fourth_axis_is_channels(tmp_path: Path) -> None:
    """As the decathlon stores several contrasts."""
    values = np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2)
    assert np.array_equal(read_pixels([nifti(tmp_path / "a.nii", values)]).values, np.moveaxis(values, -1, 0))


def test_several_files_are_channels_on_one_grid(tmp_path: Path) -> None:
    """In order; another size or place is refused with both."""
    one, two = nifti(tmp_path / "t1.nii", np.zeros((2, 3, 4))), nifti(tmp_path / "t2.nii", np.ones((2, 3, 4)))
    assert read_pixels([one, two]).values[:, 0, 0, 0].tolist() == [0, 1]
    moved = nifti(tmp_path / "t3.nii", np.ones((2, 3, 4)), (2, 1, 1))
    with pytest.raises(DataError, match=r"t3\.nii: a channel .* beside t1\.nii"):
        read_pixels([one, moved])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    """Cut short, not an image at all, empty, several pages: one DataError with the path."""
    whole = picture(tmp_path / "whole.png", np.repeat(gradient(64, 64)[..., None], 3, axis=2)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "broken.nii.gz").write_bytes(nifti(tmp_path / "v.nii.gz", np.random.rand(9, 9, 9)).read_bytes()[:200])
    (tmp_path / "text.nii").write_text("no image")
    for name in ("cut.png", "text.jpg", "empty.png", "broken.nii.gz", "text.nii"):
        with pytest.raises(DataError, match=f"{name}.* cannot be read"):
            read_pixels([tmp_path / name])
    pages = [Image.fromarray(gradient(seed=k)) for k in range(2)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r"pages\.tif holds 2 pictures"):
        read_pixels([tmp_path / "pages.tif"])
    with pytest.raises(DataError, match=r"absent\.png does not exist"):
        read_pixels([tmp_path / "absent.png"])


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (70, struct.pack("<h", 9999), "code 9999 not recognized"),  # datatype
        (40, struct.pack("<4h", 3, 32767, 32767, 32767), "do not fit into memory|Expected .* bytes"),  # dim
        (40, struct.pack("<4h", 3, 0, 3, 4), "is of size 0 x 3 x 4: it holds no value"),
        (280, struct.pack("<4f", 0, 0, 0, 0), "axes span no space"),  # srow_x
        (280, struct.pack("<4f", np.nan, 0, 0, 0), "axes span no space"),
    ],
)
def test_headers_that_cannot_be_are_named(at: int, value: bytes, text: str, tmp_path: Path) -> None:
    """An unknown kind of number, sizes beyond all memory, no size, and axes that span no space."""
    path = nifti(tmp_path / "a.nii", np.zeros((2, 3, 4)))
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.nii.*({text})"):
        read_pixels([path])
