"""Bring an image to the one form that a row of a prepared site has: channels, size, range."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.imaging.read import Pixels
from monai_fedskew.errors import DataError

__all__ = ["as_row", "canonical", "row_shape"]

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow


def row_shape(pixels: Pixels, size: Sequence[int] | None, channels: int | None) -> tuple[int, ...]:
    """Return the shape (channels, *spatial) that an image gets; what is None stays as it is."""
    return (channels or len(pixels.values), *(size or pixels.size))


def canonical(pixels: Pixels) -> Pixels:
    """Turn a volume so that its axes point right, anterior, superior, as far as flips and swaps of axes do."""
    if pixels.affine is None or len(pixels.size) != 3 or pixels.orientation == "RAS":
        return pixels
    import nibabel

    image = nibabel.Nifti1Image(np.moveaxis(pixels.values, 0, -1), pixels.affine)
    turned = nibabel.as_closest_canonical(image)
    return Pixels(np.moveaxis(np.asarray(turned.dataobj), -1, 0), pixels.white, np.asarray(turned.affine))


def as_row(
    pixels: Pixels, shape: Sequence[int], value_range: tuple[float, float] = (0.0, 1.0), *, where: str = "image"
) -> npt.NDArray[np.float32]:
    """Convert an image into one row.

    Colours become grey by 0.299 R + 0.587 G + 0.114 B; grey is repeated. Volumes are turned to right, anterior,
    superior. Pictures of 8 bits are resized by Pillow, bilinear, as torchvision's ``Resize`` does with pictures; all
    else with the same triangle filter in floating point. Then black to white of the format becomes ``value_range``;
    values of NIfTI, DICOM and floating-point TIFF have no such range and stay what they are.

    Args:
        pixels: as `read_pixels` returns it.
        shape: (channels, *spatial) of the row.
        value_range: what 0 and the largest value of the format become.
        where: site and file, for errors.

    Returns:
        float32 of ``shape``.

    Raises:
        DataError: the number of channels or of axes cannot be brought to ``shape``.

    Example:
        >>> as_row(Pixels(np.full((1, 2, 2), 255, np.uint8), 255.0), (3, 4, 4))[:, 0, 0]
        array([1., 1., 1.], dtype=float32)
    """
    pixels = canonical(pixels)
    channels, size = shape[0], tuple(shape[1:])
    values = pixels.values
    if len(size) == 2 and values.ndim == 4 and values.shape[-1] == 1:  # a slice that is stored as a volume
        values = values[..., 0]
    if values.ndim != len(shape):
        raise DataError(
            f"{where} has {values.ndim - 1} spatial axes {values.shape[1:]}, --size gives {len(size)}: {_times(size)}"
        )
    values = _with_channels(values, channels, where)
    if pixels.white == 1:  # black and white only: resized in whole numbers it would stay so
        values = values.astype(np.float32)
    if values.shape[1:] != size:
        values = np.stack([_resized(plane, size) for plane in values])
    row = values.astype(np.float32)
    if pixels.white:
        low, high = value_range
        row = row * np.float32((high - low) / pixels.white) + np.float32(low)
    return np.broadcast_to(row, tuple(shape)) if len(row) < channels else row


def _with_channels(values: npt.NDArray[Any], channels: int, where: str) -> npt.NDArray[Any]:
    if len(values) == channels or len(values) == 1:  # one channel is repeated at the end, which costs nothing
        return values
    if len(values) != 3 or channels != 1:
        raise DataError(
            f"{where} has {len(values)} channels, {channels} are asked for; only grey and colours are turned into each "
            "other (--channels)"
        )
    if values.dtype == np.uint8:
        from PIL import Image

        return np.asarray(Image.fromarray(np.moveaxis(values, 0, -1)).convert("L"))[None]
    weights = np.array(_LUMA, np.float32)
    return np.tensordot(weights, values.astype(np.float32), axes=1)[None]


def _resized(plane: npt.NDArray[Any], size: tuple[int, ...]) -> npt.NDArray[Any]:
    if plane.ndim == 2 and plane.dtype == np.uint8:
        from PIL import Image

        picture = Image.fromarray(np.ascontiguousarray(plane))
        return np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    out = plane.astype(np.float32)
    for axis, length in enumerate(size):
        if out.shape[axis] != length:
            out = np.moveaxis(np.tensordot(_weights(out.shape[axis], length), out, axes=(1, axis)), 0, axis)
    return out


def _weights(old: int, new: int) -> npt.NDArray[np.float32]:
    """Triangle filter from ``old`` to ``new`` places, wide enough not to alias: the rule of Pillow's resize."""
    scale = old / new
    support = max(scale, 1.0)
    matrix = np.zeros((new, old), np.float64)
    for place in range(new):
        centre = (place + 0.5) * scale
        first, last = max(0, math.floor(centre - support + 0.5)), min(old, math.floor(centre + support + 0.5))
        taps = np.arange(first, last)
        heights = np.maximum(0.0, 1 - np.abs((taps - centre + 0.5) / support))
        matrix[place, first:last] = heights / heights.sum()
    return matrix.astype(np.float32)


def _times(size: Sequence[int]) -> str:
    return "x".join(map(str, size))
