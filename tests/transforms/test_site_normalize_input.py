"""What is no image, and types that are no result, for the site transforms."""

import numpy as np
import pytest
import torch

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms.site_normalize import SiteNormalize
from monai_fedskew.transforms.statistics import SiteStatistics

TWO = SiteStatistics("A", (1.0, 2.0), (2.0, 4.0), "image", 1, 5)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (torch.ones(2, 3, dtype=torch.complex64), "a complex image cannot be normalised"),
        (np.ones((2, 3), complex), "a complex image cannot be normalised"),
        ("a.png", "not str: 'a.png'"),
        (None, "not NoneType"),
        (np.array([["a"], ["b"]]), "not ndarray"),
    ],
)
def test_what_is_no_image_is_refused(image: object, text: str) -> None:
    """Imaginary parts would be dropped without a word; a path was not loaded."""
    with pytest.raises(DataError, match=text):
        SiteNormalize(TWO)(image)


def test_inverse_needs_the_channels_that_were_measured() -> None:
    """One channel would be repeated to two without a word."""
    with pytest.raises(DataError, match="site A: statistics of 2 channels, but an image of 1"):
        SiteNormalize(TWO).inverse(torch.ones(1, 3))


def test_the_bytes_of_another_machine_are_turned() -> None:
    """Big-endian, as old scanners write NIfTI."""
    assert SiteNormalize(TWO)(np.full((2, 1), 3, ">i2")).tolist() == [[1.0], [0.25]]


@pytest.mark.parametrize("dtype", ["nonsense", 3, object, np.int32, complex])
def test_a_result_is_of_a_floating_type(dtype: object) -> None:
    """Named with the site."""
    with pytest.raises(ConfigError, match="site A: dtype=.* must be a floating type"):
        SiteNormalize(TWO, dtype=dtype)
