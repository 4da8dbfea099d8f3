"""Random flips and rotations: what they do to pixels, and that they follow the seed."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.data.utils import set_rnd
from PIL import Image

from monai_fedskew.data.augment import AugmentedImages, flip_and_rotate
from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.data.images import ImageDataset
from monai_fedskew.errors import ConfigError


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageDataset:
    """Eight images of three channels, 6 x 10."""
    pixels = np.random.default_rng(0).random((8, 3, 6, 10)).astype(np.float32)
    folder = tmp_path_factory.mktemp("augment") / "A"
    write_image_site(folder, pixels, np.arange(8) % 2, label_names=["no", "yes"])
    return ImageDataset(folder, "all")


def test_no_flip_and_no_turn_is_the_dataset(images: ImageDataset) -> None:
    """With 0 degrees and probability 0 every bit is as it was."""
    served = AugmentedImages(images, degrees=0, flip=0).__getitems__([3, 1])
    clean = images.__getitems__([3, 1])
    assert torch.equal(served["image"], clean["image"])
    assert torch.equal(served["label"], clean["label"])


def test_a_flip_mirrors_left_and_right(images: ImageDataset) -> None:
    """Every image, if the probability is 1: the columns in reverse order."""
    served = AugmentedImages(images, degrees=0, flip=1).__getitems__([0, 1])["image"]
    assert torch.allclose(served, images.__getitems__([0, 1])["image"].flip(-1), atol=1e-6)


def test_a_turn_is_that_of_pillow() -> None:
    """Counter-clockwise about the centre, bilinear, of an image that is not square; fill where nothing was."""
    image = torch.rand(20, 40, generator=torch.Generator().manual_seed(0))
    turned = flip_and_rotate(image[None, None], torch.tensor([True]), torch.tensor([25.0]), fill=2.0)[0, 0]
    expected = np.asarray(Image.fromarray(image.flip(-1).contiguous().numpy()).rotate(25, Image.Resampling.BILINEAR))
    np.testing.assert_allclose(turned[6:14, 12:28], expected[6:14, 12:28], atol=1e-5)
    assert turned[0, 0] == turned[-1, -1] == 2.0


def test_draws_follow_the_seed(images: ImageDataset) -> None:
    """The same seed gives the same images, another one others; within a batch each image has its own angle."""
    data, index = AugmentedImages(images), list(range(8))
    assert set_rnd(data, 5) != 5  # MONAI, and so a site, knows that it is random
    first, second = data.__getitems__(index)["image"], data.__getitems__(index)["image"]
    set_rnd(data, 5)
    again = data.__getitems__(index)["image"]
    set_rnd(data, 6)
    other = data.__getitems__(index)["image"]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    one = AugmentedImages(images, flip=0)
    assert len({tuple(image.ravel().tolist()) for image in one.__getitems__([2] * 4)["image"]}) == 4


def test_a_copy_in_another_process_draws_alike(images: ImageDataset) -> None:
    """What a worker gets has the state of the generator, and all that datasets of images know."""
    data = AugmentedImages(images)
    data.set_random_state(3)
    copy = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy[4]["image"], data[4]["image"])
    assert len(copy) == len(images)
    for name in ("labels", "rows", "groups", "subject_ids"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(images, name))


@pytest.mark.parametrize("wrong", [{"degrees": -1.0}, {"degrees": 200.0}, {"flip": 1.5}, {"fill": float("nan")}])
def test_numbers_out_of_range_are_refused(images: ImageDataset, wrong: dict[str, float]) -> None:
    """The site, the values and their ranges are named."""
    with pytest.raises(ConfigError, match="site A: degrees="):
        AugmentedImages(images, **wrong)


def test_volumes_are_refused(tmp_path: Path) -> None:
    """A rotation in a plane is of images of two dimensions."""
    write_image_site(tmp_path / "B", np.zeros((4, 1, 4, 4, 4), np.float32), [0, 1, 0, 1], label_names=["no", "yes"])
    with pytest.raises(ConfigError, match=r"site B: images of shape \(1, 4, 4, 4\)"):
        AugmentedImages(ImageDataset(tmp_path / "B", "all"))
