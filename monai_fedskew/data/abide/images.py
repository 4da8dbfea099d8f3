"""Open NIfTI files and refuse what cannot be used: no image, of another shape, without a place in space."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.errors import DataError

__all__ = ["image_values", "label_values", "load_image", "load_mask", "load_scan"]

_VOLUMES = 3  # a correlation needs as many
_DIGITS = 0.01  # from a whole number


def load_image(path: Path, dimensions: int) -> Any:
    """Open an image, reading its header only.

    Args:
        path: a NIfTI file.
        dimensions: 3 for (x, y, z) or 4 for (x, y, z, volumes).

    Raises:
        DataError: it is no image, of another shape, or its affine is singular or not finite.

    Example:
        >>> load_image(Path("atlas.nii.gz"), 3).shape  # doctest: +SKIP
        (91, 109, 91)
    """
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a NIfTI file (.nii or .nii.gz)")
    try:
        image: Any = nibabel.load(path)
    except (ImageFileError, OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as NIfTI ({error}); it is none, truncated or damaged") from error
    shape: tuple[int, ...] = getattr(image, "shape", ())
    if len(shape) != dimensions:
        what = "(x, y, z, volumes)" if dimensions == 4 else "(x, y, z)"
        raise DataError(f"{path}: expected a {dimensions}D image {what}, found shape {shape}")
    affine = np.asarray(image.affine, np.float64)
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        fault = "is singular" if np.isfinite(affine).all() else "has values that are not finite"
        raise DataError(f"{path}: the affine {fault}, so voxels have no place in space; correct sform or qform")
    return image


def load_scan(path: Path) -> Any:
    """Open a 4-D scan.

    Raises:
        DataError: as `load_image`, or it has fewer than 3 volumes.
    """
    image = load_image(path, 4)
    volumes = image.shape[3]
    if volumes < _VOLUMES:
        word = "volume" if volumes == 1 else "volumes"
        raise DataError(
            f"{path}: {volumes} {word} in the scan, a series needs at least {_VOLUMES}; give the whole scan"
        )
    return image


def load_mask(path: Path) -> Any:
    """Open a 3-D mask and read it.

    Raises:
        DataError: as `load_image`, or no voxel is above 0.
    """
    image = load_image(path, 3)
    if not (image_values(path, image) > 0).any():
        raise DataError(f"{path}: no voxel of the mask is above 0; give a mask of the brain")
    return image


def image_values(path: Path, image: Any) -> npt.NDArray[Any]:
    """Read the values of an image.

    Raises:
        DataError: the file breaks off, or does not hold a number a voxel.
    """
    try:
        values = np.asarray(image.dataobj)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as NIfTI ({error}); the file is truncated or damaged") from error
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: holds {values.dtype}, expected one real number a voxel")
    return values


def label_values(path: Path, image: Any) -> npt.NDArray[np.int32]:
    """Read the labels of an atlas.

    Raises:
        DataError: as `image_values`, or a value is no whole number of 32 bits.
    """
    values = image_values(path, image)
    limit = np.iinfo(np.int32)
    is_label = (values >= limit.min) & (values <= limit.max)
    if values.dtype.kind == "f":  # a scale in the header may cost the last digits
        is_label &= np.abs(np.rint(values) - np.where(is_label, values, 0)) <= _DIGITS
    if not is_label.all():
        voxel = tuple(int(k[0]) for k in np.nonzero(~is_label))
        raise DataError(
            f"{path}: voxel {voxel} is {values[voxel]} ({int((~is_label).sum())} such voxels); an atlas holds whole "
            "numbers, one a region: give a map of labels, not of probabilities, moved without interpolation"
        )
    labels: npt.NDArray[np.int32] = np.rint(values).astype(np.int32)
    return labels
