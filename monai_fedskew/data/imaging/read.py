"""Read one image, of whatever format, into one form: channels first, with what is known of its geometry."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.imaging.found import DICOM, NIFTI
from monai_fedskew.errors import DataError, FedSkewError

__all__ = ["Pixels", "read_pixels"]

_WHITE = {"1": 1.0, "L": 255.0, "RGB": 255.0, "I;16": 65535.0}
_BROKEN = (OSError, EOFError, SyntaxError, ValueError, struct.error, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class Pixels:
    """An image in memory.

    Args:
        values: (channels, *spatial) as stored: uint8 or uint16 of picture formats, else float32.
        white: the largest value that the format can hold, 255 or 65535; 0 where values are physical or of any range.
        affine: voxel to millimetres, RAS+; None of pictures.
    """

    values: npt.NDArray[Any]
    white: float = 0.0
    affine: npt.NDArray[np.float64] | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """Spatial size."""
        return self.values.shape[1:]

    @property
    def spacing(self) -> tuple[float, ...]:
        """Distance of voxels along each axis in mm; empty where it is unknown."""
        if self.affine is None:
            return ()
        return tuple(float(x) for x in np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)))

    @property
    def orientation(self) -> str:
        """Where the axes point, such as ``RAS``; empty where it is unknown."""
        if self.affine is None:
            return ""
        from nibabel.orientations import aff2axcodes

        return "".join(code or "?" for code in aff2axcodes(self.affine))


def read_pixels(files: Sequence[Path], *, is_mask: bool = False) -> Pixels:
    """Read an image; several files become its channels, in order.

    Pictures lose their transparency; a palette becomes colours, or in a mask stays the numbers that it is. Values of
    NIfTI and DICOM are the physical ones (slope and intercept applied), with the fourth axis of NIfTI as channels.

    Args:
        files: image files of one size; a folder is a DICOM series.
        is_mask: whether the numbers of a palette are what counts.

    Raises:
        DataError: a file is damaged, of an unknown kind, or the files do not fit each other. Names the file.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     path = Path(tmp, "a.png"); Image.new("RGBA", (4, 3)).save(path)
        ...     read_pixels([path]).values.shape
        (3, 3, 4)
    """
    parts = [_read(path, is_mask) for path in files]
    first = parts[0]
    if len(parts) == 1:
        return first
    for path, part in zip(files, parts, strict=True):
        if part.size != first.size or part.white != first.white or not _is_same_place(part.affine, first.affine):
            raise DataError(
                f"{path}: a channel of {_words(part)} beside {files[0].name} of {_words(first)}; the channels of one "
                "image must lie on one grid"
            )
    return Pixels(np.concatenate([part.values for part in parts]), first.white, first.affine)


def _read(path: Path, is_mask: bool) -> Pixels:
    if not path.exists():
        raise DataError(f"{path} does not exist")
    name = path.name.lower()
    try:
        if path.is_dir() or name.endswith(DICOM):
            from monai_fedskew.data.imaging.dicom import read_series

            return _with_place(path, read_series(path))
        return _with_place(path, _read_nifti(path)) if name.endswith(NIFTI) else _read_picture(path, is_mask)
    except FedSkewError:
        raise
    except _BROKEN as error:
        raise DataError(
            f"{path} cannot be read as an image ({_reason(error)}); get it again or leave it out"
        ) from error
    except MemoryError as error:
        raise DataError(f"{path}: its pixels do not fit into memory; check what its header says, or cut it") from error


def _with_place(path: Path, pixels: Pixels) -> Pixels:
    """Refuse a volume whose axes span no space: its spacing and orientation would be made up."""
    if 0 in pixels.values.shape:
        raise DataError(f"{path} is of size {' x '.join(map(str, pixels.size))}: it holds no value; leave it out")
    affine = pixels.affine
    if affine is not None and not (np.isfinite(affine).all() and np.linalg.det(affine[:3, :3])):
        raise DataError(
            f"{path} has an affine whose axes span no space, {np.round(affine[:3, :3], 3).tolist()}; correct its header"
        )
    return pixels


def _read_picture(path: Path, is_mask: bool) -> Pixels:
    from PIL import Image

    try:
        with Image.open(path) as picture:
            frames = getattr(picture, "n_frames", 1)
            if frames > 1:
                raise DataError(f"{path} holds {frames} pictures; one image a file is read, or a volume as NIfTI")
            mode = _mode(picture.mode, is_mask)
            values = np.array(picture if mode == picture.mode else picture.convert(mode))
    except Image.DecompressionBombError as error:
        raise DataError(f"{path}: {error}; cut it into patches first") from error
    mode = "I;16" if mode.startswith("I") and (mode != "I" or path.suffix.lower() == ".png") else mode
    kind = {"1": "uint8", "L": "uint8", "P": "uint8", "RGB": "uint8", "I;16": "uint16"}.get(mode, "float32")
    values = values.astype(kind)
    return Pixels(np.moveaxis(values, -1, 0) if values.ndim == 3 else values[None], _WHITE.get(mode, 0.0))


def _mode(stored: str, is_mask: bool) -> str:
    """Return the form in which pixels of a stored form are read: no transparency, and colours for a palette."""
    if stored in ("LA", "La"):
        return "L"
    if stored in ("1", "L", "RGB", "F") or stored.startswith("I") or (stored == "P" and is_mask):
        return stored
    return "RGB"


def _read_nifti(path: Path) -> Pixels:
    import nibabel
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError

    try:
        image = nibabel.load(path)
        values = np.asanyarray(image.dataobj)
    except (ImageFileError, HeaderDataError) as error:
        raise DataError(f"{path} cannot be read as NIfTI ({error}); get it again or leave it out") from error
    if values.dtype.kind not in "buif" or not 2 <= values.ndim <= 4:
        raise DataError(
            f"{path} holds {values.dtype} of shape {values.shape}; real numbers in 2, 3 or 4 axes are read (the fourth "
            "is the channels)"
        )
    values = values[..., None] if values.ndim < 4 else values
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(np.moveaxis(values, -1, 0)).astype(np.float32, copy=False)
    return Pixels(values, 0.0, np.asarray(image.affine, np.float64))


def _is_same_place(one: npt.NDArray[np.float64] | None, other: npt.NDArray[np.float64] | None) -> bool:
    return one is None or other is None or np.allclose(one, other, rtol=1e-3, atol=1e-3)


def _words(pixels: Pixels) -> str:
    size = " x ".join(map(str, pixels.size))
    at = "" if pixels.affine is None else f" at {np.round(pixels.affine[:3, 3], 2).tolist()} mm"
    return f"{size} {pixels.values.dtype}{at}"


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:120] if text else type(error).__name__
