"""Pictures and masks as arrays, whatever the file format."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from monai_fedskew.data.pictures import read_mask, read_picture
from monai_fedskew.errors import DataError

GREY = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51  # 0 to 255 in fifths


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P"])
def test_forms_of_8_bits_have_the_same_values(tmp_path: Path, mode: str) -> None:
    """Grey stays one channel and colours three, rows before columns, without transparency, black 0 and white 1."""
    Image.fromarray(GREY).convert("RGB").convert(mode).save(tmp_path / "a.png")
    values = read_picture(tmp_path / "a.png")
    assert values.shape == (1 if mode in ("L", "LA") else 3, 2, 3)
    assert np.allclose(values, GREY / 255, atol=0.11 if mode == "P" else 1e-7)  # 216 web colours


def test_16_bits_are_scaled_by_their_own_white(tmp_path: Path) -> None:
    """65535 is 1, so that a camera of 16 bits gives what one of 8 gives."""
    Image.fromarray(GREY.astype(np.uint16) * 257).save(tmp_path / "a.png")
    assert np.allclose(read_picture(str(tmp_path / "a.png")), GREY / 255)


def test_several_files_are_channels(tmp_path: Path) -> None:
    """Three stains in three files make one picture, in the order given."""
    for number in range(3):
        Image.fromarray(GREY // (number + 1)).save(tmp_path / f"{number}.png")
    values = read_picture([tmp_path / f"{number}.png" for number in range(3)])
    assert np.allclose(values[:, 1, 2], [1, 127 / 255, 85 / 255])


def test_a_mask_is_its_numbers(tmp_path: Path) -> None:
    """Class numbers of a palette image are kept; its colours are for viewers."""
    mask = Image.fromarray(GREY // 51 % 3)
    mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    mask.save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == [[[0, 1, 2], [0, 1, 2]]]


def test_a_mask_may_be_grey_stored_as_colours(tmp_path: Path) -> None:
    """What preparation accepts and leaves in place can be read in training."""
    Image.fromarray(GREY // 51 % 3).convert("RGB").save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png").tolist() == [[[0, 1, 2], [0, 1, 2]]]


def test_files_of_no_use_are_named(tmp_path: Path) -> None:
    """Two channels, floating point, colours as a mask, no file: one line with the file's name."""
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    Image.fromarray(GREY.astype(np.float32)).save(tmp_path / "float.tif")
    Image.new("RGB", (3, 2), (255, 0, 0)).save(tmp_path / "colour.png")
    with pytest.raises(DataError, match=r"grey.png: pixels of shape \(2, 2, 3\)"):
        read_picture([tmp_path / "grey.png"] * 2)
    with pytest.raises(DataError, match=r"float.tif: float32 without a largest value"):
        read_picture(tmp_path / "float.tif")
    with pytest.raises(DataError, match=r"colour.png: a mask of 3 channels"):
        read_mask(tmp_path / "colour.png")
    with pytest.raises(DataError, match=r"absent.png"):
        read_picture(tmp_path / "absent.png")
