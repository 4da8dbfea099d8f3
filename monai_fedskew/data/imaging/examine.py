"""Look at one image once: whether it can be used, and what a summary needs to know of it."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.store import Moments
from monai_fedskew.data.imaging.read import Pixels, read_pixels
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import DataError

__all__ = ["Facts", "examine", "examine_pixels", "file_digest", "read_mask"]

_BLOCK = 2**20
_SAMPLE = 4096
_TOLERANCE = 0.05  # of mean 0 and standard deviation 1, for an image to count as normalised


@dataclass(frozen=True)
class Facts:
    """What one look at an image found.

    Args:
        channels: of the image.
        size: spatial size.
        spacing: of voxels in mm; empty where it is unknown.
        orientation: such as ``RAS``; empty where it is unknown.
        moments: of all values.
        sample: some values, evenly spread, for percentiles.
        is_constant: whether all values are one.
        is_normalised: whether its values, or those other than 0, have mean 0 and standard deviation 1 already.
        mask_values: whole numbers in its mask.
        digests: SHA-256 of each file.
    """

    channels: int
    size: tuple[int, ...]
    spacing: tuple[float, ...]
    orientation: str
    moments: Moments
    sample: npt.NDArray[np.float32]
    is_constant: bool
    is_normalised: bool
    mask_values: tuple[int, ...]
    digests: Mapping[Path, str]


def examine(source: ImageSource) -> tuple[Facts, Pixels]:
    """Read an image and its mask, and check both.

    Raises:
        DataError: unreadable, not finite, or a mask that does not fit. Names site and file.
    """
    where = f"site {source.site}: "
    try:
        pixels = read_pixels(source.files)
        values = () if source.mask is None else _mask_values(source.mask, read_mask(source.mask), pixels)
        digests = {path: file_digest(path) for path in (*source.files, *([source.mask] if source.mask else []))}
        return examine_pixels(pixels, str(source.files[0]), mask_values=values, digests=digests), pixels
    except DataError as error:
        raise DataError(f"{where}{error}") from error


def examine_pixels(
    pixels: Pixels, where: str, *, mask_values: Sequence[int] = (), digests: Mapping[Path, str] | None = None
) -> Facts:
    """Measure an image in pieces, so that a volume needs no second copy.

    Raises:
        DataError: values that are not finite.

    Example:
        >>> facts = examine_pixels(Pixels(np.arange(8, dtype=np.float32).reshape(1, 2, 4)), "a.nii")
        >>> facts.moments.mean, facts.is_constant
        (3.5, False)
    """
    flat = pixels.values.reshape(-1)
    total = squares = 0.0
    filled = broken = 0
    low, high = math.inf, -math.inf
    for piece in _pieces(flat):
        broken += int((~np.isfinite(piece)).sum())
        total, squares = total + float(piece.sum()), squares + float(piece @ piece)
        filled += int(np.count_nonzero(piece))
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    if broken:
        raise DataError(f"{where} has {broken} values of {flat.size} that are not finite; correct it or leave it out")
    moments = Moments(flat.size, total, squares)
    inside = Moments(filled, total, squares)
    normalised = pixels.white == 0 and low < 0 and any(_is_standard(one) for one in (moments, inside))
    step = max(1, flat.size // _SAMPLE)
    return Facts(
        channels=len(pixels.values),
        size=pixels.size,
        spacing=pixels.spacing,
        orientation=pixels.orientation,
        moments=moments,
        sample=flat[::step][:_SAMPLE].astype(np.float32),
        is_constant=low == high,
        is_normalised=normalised,
        mask_values=tuple(mask_values),
        digests=dict(digests or {}),
    )


def read_mask(path: Path) -> Pixels:
    """Read a label map, of one channel.

    Raises:
        DataError: it is a picture in colours, or cannot be read.
    """
    pixels = read_pixels([path], is_mask=True)
    if len(pixels.values) == 3 and not np.any(pixels.values != pixels.values[:1]):  # grey, stored as colours
        return Pixels(pixels.values[:1], pixels.white, pixels.affine)
    if len(pixels.values) != 1:
        raise DataError(f"{path}: a mask of {len(pixels.values)} channels; a mask has one, the number of the label")
    return pixels


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder, that of its files' one after the other."""
    if path.is_dir():
        inside = sorted(one for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
        return hashlib.sha256("".join(file_digest(one) for one in inside).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mask_values(path: Path, mask: Pixels, image: Pixels) -> tuple[int, ...]:
    if mask.size != image.size:
        raise DataError(f"{path}: a mask of {_times(mask.size)} for an image of {_times(image.size)}; they must match")
    if mask.affine is not None and image.affine is not None:
        apart = float(np.abs(mask.affine - image.affine).max())
        if not np.allclose(mask.affine, image.affine, rtol=1e-3, atol=1e-2):
            raise DataError(
                f"{path}: the mask's affine differs from the image's by up to {apart:.3g}: it lies elsewhere or its "
                "axes point another way; resample it onto the image"
            )
    found: set[float] = set()
    for piece in _pieces(mask.values.reshape(-1)):
        found |= set(np.unique(piece).tolist())
    wrong = next((value for value in sorted(found) if not value.is_integer() or value < 0), None)
    if wrong is not None:
        raise DataError(f"{path}: a mask with value {wrong:g}; labels are whole numbers from 0 (0 is background)")
    return tuple(sorted(int(value) for value in found))


def _pieces(flat: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.float64]]:
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK].astype(np.float64)


def _is_standard(moments: Moments) -> bool:
    return abs(moments.mean) < _TOLERANCE and abs(moments.std - 1) < _TOLERANCE


def _times(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
