"""Read pictures and their masks as MONAI's transforms take them, for images that stay files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_fedskew.data.imaging.examine import read_mask as read_label_map
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


def read_mask(file: str | Path) -> NDArray[np.float32]:
    """Read a label map as class numbers, by the rules of ``fedskew images prepare``.

    Args:
        file: a picture of one channel, of a palette whose numbers count, or grey that is stored as colours.

    Returns:
        Class numbers, shape (1, height, width).

    Raises:
        DataError: no such file, none that can be read, colours, or a volume.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (4, 2), 1).save(f"{folder}/mask.png")
        ...     read_mask(f"{folder}/mask.png").shape, float(read_mask(f"{folder}/mask.png").max())
        ((1, 2, 4), 1.0)
    """
    path = Path(file)
    values = read_label_map(path).values
    if values.ndim != 3:
        raise DataError(f"{path}: a volume of shape {values.shape[1:]}; the mask of a picture is needed")
    return values.astype(np.float32)


def _paths(files: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]
