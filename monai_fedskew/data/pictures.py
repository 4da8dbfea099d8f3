"""Read pictures and their masks as MONAI's transforms take them, for images that stay files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_fedskew.data.imaging.read import read_pixels
from monai_fedskew.errors import DataError

__all__ = ["read_mask", "read_picture"]


def read_picture(files: str | Path | Sequence[str | Path]) -> NDArray[np.float32]:
    """Read a picture of 8 or 16 bits, black 0 and white 1, as ``fedskew images prepare`` does.

    MONAI's ``LoadImage`` swaps the axes of pictures and leaves palettes, transparency and 16 bits to what follows; as
    the function of a ``Lambdad`` this takes its place.

    Args:
        files: an image file; several are its channels, in order.

    Returns:
        Grey (1, height, width) or colours (3, height, width), in 0 .. 1.

    Raises:
        DataError: no such file, none that can be read, values of no known range, or other than 1 or 3 channels.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGBA", (4, 2), (255, 0, 51, 9)).save(f"{folder}/cell.png")
        ...     read_picture(f"{folder}/cell.png")[:, 1, 3].tolist()
        [1.0, 0.0, 0.20000000298023224]
    """
    paths = _paths(files)
    pixels = read_pixels(paths)
    values = pixels.values
    if values.ndim != 3 or len(values) not in (1, 3):
        raise DataError(f"{paths[0]}: pixels of shape {values.shape}; a grey or coloured picture is needed")
    if not pixels.white:
        raise DataError(f"{paths[0]}: {values.dtype} without a largest value; convert it to a picture of 8 or 16 bits")
    return values.astype(np.float32) / np.float32(pixels.white)


def read_mask(files: str | Path) -> NDArray[np.float32]:
    """Read a label map as class numbers, shape (1, height, width).

    Raises:
        DataError: no such file, none that can be read, or more than one channel.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (4, 2), 1).save(f"{folder}/mask.png")
        ...     read_mask(f"{folder}/mask.png").shape, float(read_mask(f"{folder}/mask.png").max())
        ((1, 2, 4), 1.0)
    """
    path = Path(files)
    values = read_pixels([path], is_mask=True).values
    if values.ndim != 3 or len(values) != 1:
        raise DataError(f"{path}: pixels of shape {values.shape}; a mask has one channel of class numbers")
    return values.astype(np.float32)


def _paths(files: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
