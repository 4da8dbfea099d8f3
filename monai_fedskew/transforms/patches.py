"""A random patch of an image and its label map, mirrored and turned, in one step."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from monai.transforms import MapTransform, Randomizable
from torch import Tensor

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError

__all__ = ["RandPatchd"]


class RandPatchd(Randomizable, MapTransform):  # type: ignore[misc]  # MONAI comes without types
    """Cut one patch at a random place, the same under all keys, and show it from one of eight sides.

    The place is uniform over all that lie inside the image; the eight sides are the symmetries of a square (four
    quarter turns, each mirrored or not), equally likely, of the last two axes. It does what ``RandSpatialCropd``,
    ``RandFlipd`` and ``RandRotate90d`` do one after the other, without keeping track of meta data, which takes as long
    as a small network's training step (``tests/benchmarks/nuclei_training.py``).

    Args:
        keys: of tensors (channels, *spatial), of one spatial size; plain ones, which have no affine to correct.
        size: of the patch, one number a spatial axis; the last two are equal.
        has_turns: whether the patch is mirrored and turned.

    Raises:
        ConfigError: the last two sizes differ or one is below 1; or an image that is smaller than the patch.

    Example:
        >>> image = torch.arange(12.0).reshape(1, 3, 4)
        >>> patch = RandPatchd(["image", "label"], [2, 2]).set_random_state(0)({"image": image, "label": image > 5})
        >>> patch["image"].shape, bool((patch["label"] == (patch["image"] > 5)).all())
        (torch.Size([1, 2, 2]), True)
    """

    def __init__(self, keys: Hashable | Iterable[Hashable], size: Sequence[int], has_turns: bool = True) -> None:
        MapTransform.__init__(self, keys)
        self.size = tuple(size)
        for length in self.size:
            require_whole("RandPatchd", "size", length, 1)
        if len(self.size) < 2 or (has_turns and self.size[-1] != self.size[-2]):
            raise ConfigError(f"RandPatchd: size is {list(size)}; patches are turned, so give two equal last sizes")
        self.has_turns = has_turns

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with patches under the keys: views of the images where they are not turned."""
        tensors = {key: data[key] for key in self.key_iterator(data)}
        spatial = {tuple(tensor.shape[1:]) for tensor in tensors.values()}
        whole = next(iter(spatial))
        if (
            len(spatial) > 1
            or len(whole) != len(self.size)
            or any(a < b for a, b in zip(whole, self.size, strict=True))
        ):
            sizes = " and ".join("x".join(map(str, shape)) for shape in sorted(spatial))
            patch = "x".join(map(str, self.size))
            raise ConfigError(f"image of size {sizes}: no patch of {patch} fits into it; choose a smaller one")
        starts = [int(self.R.randint(a - b + 1)) for a, b in zip(whole, self.size, strict=True)]
        place = (..., *(slice(start, start + length) for start, length in zip(starts, self.size, strict=True)))
        side = int(self.R.randint(8)) if self.has_turns else 0
        return {**data, **{key: _seen_from(tensor[place], side) for key, tensor in tensors.items()}}


def _seen_from(patch: Tensor, side: int) -> Tensor:
    mirrored = patch.flip(-1) if side >= 4 else patch
    return torch.rot90(mirrored, side % 4, (-2, -1)) if side % 4 else mirrored
