"""Random patches: where they come from, from which sides, and that randomness is seeded."""

import numpy as np
import pytest
import torch
from monai.data.utils import set_rnd
from monai.transforms import Compose

from monai_fedskew.errors import ConfigError
from monai_fedskew.transforms.patches import RandPatchd

GRID = torch.arange(20.0).reshape(1, 4, 5)


def drawn(transform: RandPatchd, times: int) -> list[torch.Tensor]:
    """Many patches of the grid."""
    return [transform({"image": GRID})["image"][0] for _ in range(times)]


def test_every_place_and_every_side_occurs_equally_often() -> None:
    """2 x 2 patches of 4 x 5: 3 * 4 places times 8 sides; each of the 96 about 1/96 of the draws."""
    patches = drawn(RandPatchd("image", [2, 2]).set_random_state(0), 9600)
    kinds, counts = np.unique([patch.flatten().numpy() for patch in patches], axis=0, return_counts=True)
    assert len(kinds) == 96
    assert 60 < counts.min() <= counts.max() < 140  # 100 +- 4 standard deviations


def test_without_turns_a_patch_is_a_piece_of_the_image() -> None:
    """Every patch reads left to right and top to bottom as the grid: columns step by 1, rows by 5."""
    for patch in drawn(RandPatchd("image", [2, 3], has_turns=False).set_random_state(1), 50):
        assert torch.equal(patch.diff(dim=1), torch.ones(2, 2))
        assert torch.equal(patch.diff(dim=0), torch.full((1, 3), 5.0))


def test_image_and_label_stay_together() -> None:
    """What is true of a pixel's value is still true of its label, in each of 50 draws; other entries are left alone."""
    transform = RandPatchd(["image", "label"], [3, 3]).set_random_state(2)
    for _ in range(50):
        made = transform({"image": GRID.expand(3, 4, 5), "label": GRID % 2, "name": "a"})
        assert made["image"].shape == (3, 3, 3)
        assert torch.equal(made["image"][:1] % 2, made["label"])
        assert made["name"] == "a"


def test_volumes_are_turned_in_their_last_two_axes() -> None:
    """The first spatial axis keeps its order, since values of one of its planes stay below those of the next."""
    volume = torch.arange(60.0).reshape(1, 3, 4, 5)
    made = RandPatchd("image", [2, 3, 3]).set_random_state(3)({"image": volume})["image"]
    assert made.shape == (1, 2, 3, 3)
    assert made[0, 0].max() < made[0, 1].min()


def test_draws_follow_the_seed_that_a_site_sets() -> None:
    """set_rnd, which a federation calls before each round, repeats the patches, also inside a Compose."""
    transform = Compose([RandPatchd("image", [2, 2])])
    runs = []
    for seed in (5, 5, 6):
        set_rnd(transform, seed)
        runs.append(torch.stack([transform({"image": GRID})["image"] for _ in range(8)]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("size", [[2, 3], [0, 0], [2]])
def test_sizes_that_cannot_be_turned_are_refused(size: list[int]) -> None:
    """Sizes that differ, that are no sizes, or of one axis end in one line."""
    with pytest.raises(ConfigError, match="size"):
        RandPatchd("image", size)


def test_images_that_are_too_small_are_refused() -> None:
    """Batches need patches of one size, so a smaller image is no silent exception."""
    with pytest.raises(ConfigError, match="4x5: no patch of 5x5 fits"):
        RandPatchd("image", [5, 5])({"image": GRID})
