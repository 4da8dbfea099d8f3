"""What one look at an image finds."""

from pathlib import Path

import numpy as np
import pytest
from small_images import gradient, nifti, picture

from monai_fedskew.data.imaging.examine import examine, examine_pixels, read_mask
from monai_fedskew.data.imaging.read import Pixels
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.imaging.summary import Survey
from monai_fedskew.errors import DataError


def test_moments_are_those_of_all_values() -> None:
    """Mean and standard deviation of several images equal those of all values at once, over many pieces."""
    rng = np.random.default_rng(0)
    images = [rng.normal(700, 40, (1, 130, 110, 90)).astype(np.float32), rng.normal(5, 1, (1, 8, 9)).astype(np.float32)]
    total = sum(
        (examine_pixels(Pixels(one), "x").moments for one in images[1:]), examine_pixels(Pixels(images[0]), "x").moments
    )
    values = np.concatenate([one.ravel() for one in images]).astype(np.float64)
    assert total.mean == pytest.approx(values.mean(), rel=1e-12)
    assert total.std == pytest.approx(values.std(), rel=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_counted(bad: float, tmp_path: Path) -> None:
    """Site, file and number."""
    values = np.ones((3, 3, 3), np.float32)
    values[0, 1] = bad
    source = ImageSource("HK", "a", (nifti(tmp_path / "a.nii", values),), label="x")
    with pytest.raises(DataError, match=r"site HK: .*a\.nii has 3 values of 27 that are not finite"):
        examine(source)


def test_an_image_that_is_normalised_already_is_noticed() -> None:
    """Over all values or over those that are not 0 (the background); a picture or raw values are not."""
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (1, 40, 40)).astype(np.float32)
    head = np.zeros((1, 80, 40), np.float32)
    head[:, :40] = values
    assert examine_pixels(Pixels(values), "x").is_normalised
    assert examine_pixels(Pixels(head), "x").is_normalised
    assert not examine_pixels(Pixels(values * 3 + 9), "x").is_normalised
    assert not examine_pixels(Pixels(gradient()[None], 255.0), "x").is_normalised


def test_masks_are_whole_numbers_on_the_grid_of_the_image(tmp_path: Path) -> None:
    """Another size, another place, a fraction and a negative number are each refused with the mask's name."""
    image = nifti(tmp_path / "a.nii", np.arange(8.0).reshape(2, 2, 2))

    def look(name: str, values: object, spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> tuple[int, ...]:
        mask = nifti(tmp_path / name, np.asarray(values), spacing)
        return examine(ImageSource("HK", "a", (image,), mask=mask))[0].mask_values

    whole = np.array([0, 0, 2, 2, 0, 5, 0, 0], np.int16).reshape(2, 2, 2)
    assert look("fits.nii", whole) == (0, 2, 5)
    with pytest.raises(DataError, match=r"site HK: .*size\.nii: a mask of 1 x 2 x 2 for an image of 2 x 2 x 2"):
        look("size.nii", whole[:1])
    with pytest.raises(DataError, match=r"place\.nii: the mask's affine differs from the image's by up to 1"):
        look("place.nii", whole, (1, 1, 2))
    with pytest.raises(DataError, match=r"part\.nii: a mask with value 0\.5"):
        look("part.nii", whole / 4)
    with pytest.raises(DataError, match=r"minus\.nii: a mask with value -5"):
        look("minus.nii", -whole)


def test_a_mask_in_colours_is_refused_and_grey_as_colours_is_not(tmp_path: Path) -> None:
    """Three equal channels are one."""
    grey = np.repeat(np.array([[0, 7]], np.uint8)[..., None], 3, axis=2)
    assert read_mask(picture(tmp_path / "grey.png", grey)).values.tolist() == [[[0, 7]]]
    grey[0, 1, 0] = 9
    with pytest.raises(DataError, match=r"red\.png: a mask of 3 channels"):
        read_mask(picture(tmp_path / "red.png", grey))


def test_a_survey_has_ranges_counts_and_percentiles() -> None:
    """Sizes and spacings as low..high; the median shape; percentiles of pooled values (0..99 gives 49.5)."""
    survey = Survey(2)
    one = Pixels(np.arange(100, dtype=np.float32).reshape(1, 5, 5, 4), affine=np.diag([1.0, 1.0, 3.0, 1.0]))
    two = Pixels(np.arange(100, dtype=np.float32).reshape(1, 5, 4, 5), affine=np.diag([-1.0, 1.0, 2.0, 1.0]))
    for pixels in (one, two):
        survey.add(examine_pixels(pixels, "x"))
    plain = survey.plain()
    assert (plain["size"], plain["spacing mm"], plain["orientation"]) == ("5x4..5x4..5", "1x1x2..3", "RAS 1, LAS 1")
    assert survey.median_shape == (1, 5, 4, 4)
    assert plain["percentiles"]["50"] == 49.5
