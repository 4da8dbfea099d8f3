"""Random flips and rotations of whole batches of images."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from monai_fedskew.data.images import ImageDataset
from monai_fedskew.errors import ConfigError

__all__ = ["AugmentedImages", "flip_and_rotate"]


class AugmentedImages(Dataset[dict[str, Tensor]]):
    """Serve the images of another dataset, each flipped left to right or not and turned by an angle of its own.

    The training transforms of FedBN and FedRDN on Office-Caltech10 and DomainNet (Li et al. 2021, arXiv 2102.07623):
    flipped with probability 0.5, turned by -30 to 30 degrees, uniform, what comes in from outside filled. A batch is
    transformed at once. Interpolation is bilinear.

    Everything random comes from one generator that is seeded like a transform of MONAI (``set_random_state``), so that
    it follows the seed, the site and the round. The clean images are ``dataset``; statistics belong there, so a
    bundle names it as its ``survey#dataset``.

    Args:
        dataset: images of two dimensions.
        degrees: largest angle, 0 to 180; 0 turns nothing.
        flip: probability that an image is flipped, 0 to 1.
        fill: what comes in from outside: black, in the unit of the images.

    Attributes:
        site, labels, rows, groups, subject_ids, shape, n_classes: those of ``dataset``.

    Raises:
        ConfigError: a number out of range, or images of other than two dimensions.

    See `flip_and_rotate` for an example.
    """

    def __init__(self, dataset: ImageDataset, *, degrees: float = 30.0, flip: float = 0.5, fill: float = 0.0) -> None:
        if not 0 <= degrees <= 180 or not 0 <= flip <= 1 or not math.isfinite(fill):
            raise ConfigError(
                f"site {dataset.site}: degrees={degrees}, flip={flip}, fill={fill}: must lie in 0 to 180 and 0 to 1, "
                "and be finite"
            )
        if len(dataset.shape) != 3:
            raise ConfigError(
                f"site {dataset.site}: images of shape {dataset.shape} in {dataset.folder}; flips and rotations are of "
                "images (channels, height, width). Set augment: false"
            )
        self.dataset, self.degrees, self.flip, self.fill = dataset, degrees, flip, fill
        self.site, self.shape, self.n_classes = dataset.site, dataset.shape, dataset.n_classes
        self.labels: NDArray[np.int64] = dataset.labels
        self.rows: NDArray[np.int64] = dataset.rows
        self.groups: NDArray[np.int64] = dataset.groups
        self.subject_ids: NDArray[np.str_] = dataset.subject_ids
        self._generator = torch.Generator()

    def set_random_state(self, seed: int | None = None, state: Any = None) -> "AugmentedImages":
        """Seed the draws; ``state`` is there because MONAI's transforms take one, and is refused.

        Raises:
            ConfigError: a state instead of a seed.
        """
        if state is not None or seed is None:
            raise ConfigError(f"site {self.site}: AugmentedImages is seeded by a whole number, not by a state")
        self._generator.manual_seed(seed)
        return self

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one sample, transformed: ``image`` (channels, height, width) and ``label`` ()."""
        return {name: value[0] for name, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Return a batch in the given order, each image transformed anew."""
        batch = self.dataset.__getitems__(indices)
        flips, turns = torch.rand(2, len(batch["label"]), generator=self._generator)
        is_flipped, angles = flips < self.flip, (2 * turns - 1) * self.degrees
        return {**batch, "image": flip_and_rotate(batch["image"], is_flipped, angles, fill=self.fill)}

    def __getstate__(self) -> dict[str, Any]:
        # a generator cannot be pickled: its state goes along
        return {**self.__dict__, "_generator": self._generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generator = torch.Generator()
        self._generator.set_state(state["_generator"])


def flip_and_rotate(images: Tensor, is_flipped: Tensor, degrees: Tensor, *, fill: float = 0.0) -> Tensor:
    """Flip images left to right, then turn them counter-clockwise about their centre.

    Args:
        images: (B, C, height, width), floating.
        is_flipped: (B,) which are flipped.
        degrees: (B,) angles.
        fill: value of what comes in from outside.

    Returns:
        Images of the same shape, interpolated bilinearly; those of angle 0 that are not flipped, bit for bit.

    Example:
        >>> image = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
        >>> flip_and_rotate(image, torch.tensor([True]), torch.tensor([90.0])).round().tolist()
        [[[[1.0, 0.0], [0.0, 0.0]]]]
    """
    is_moved = is_flipped | (degrees != 0)
    if not is_moved.any():
        return images
    angle, side = torch.deg2rad(degrees).to(images)[:, None, None], 1 - 2 * is_flipped.to(images)[:, None, None]
    cos, sin = angle.cos(), angle.sin()
    height, width = images.shape[2:]
    y, x = _centres(height, images)[:, None], _centres(width, images)
    # where each pixel comes from, in halves of a width and of a height; five times as fast as affine_grid
    grid = torch.stack([side * (cos * x - sin * (height / width) * y), sin * (width / height) * x + cos * y], dim=-1)
    turned = torch.nn.functional.grid_sample(images - fill, grid, align_corners=False) + fill
    return torch.where(is_moved[:, None, None, None], turned, images)


def _centres(pixels: int, like: Tensor) -> Tensor:
    """Centres of pixels on a scale of -1 to 1 over all of them."""
    return (2 * torch.arange(pixels).to(like) + 1) / pixels - 1
