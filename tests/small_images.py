"""Small images of every format, for tests."""

from pathlib import Path

import nibabel
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

__all__ = ["gradient", "nifti", "picture", "series"]


def gradient(height: int = 6, width: int = 8, *, seed: int = 0) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """An image of 8 bits that no other seed gives."""
    return np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.uint8)


def picture(path: Path, values: ArrayLike) -> Path:
    """Write a PNG, JPEG or TIFF."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values)).save(path)
    return path


def nifti(path: Path, values: ArrayLike, spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Path:
    """Write a NIfTI file of axes right, anterior, superior."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.asarray(values), np.diag([*spacing, 1.0])), path)
    return path


def series(folder: Path, volume: ArrayLike, **changes: object) -> Path:
    """Write (slices, rows, columns) as DICOM: 2 mm apart, rows 0.5 mm, columns 0.25 mm, first pixel at (-10, -20, 5).

    Files are named against the order of their positions. ``positions`` gives other ones along z.
    """
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    stack = np.asarray(volume, np.int16)
    folder.mkdir(parents=True, exist_ok=True)
    uid = changes.pop("series_uid", None) or generate_uid()
    positions = changes.pop("positions", None) or [5.0 + 2.0 * k for k in range(len(stack))]
    for number, (plane, z) in enumerate(zip(stack, positions, strict=True)):  # type: ignore[call-overload]
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        path = folder / f"slice_{len(stack) - number:02}.dcm"
        one = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        one.SOPClassUID, one.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        one.SeriesInstanceUID, one.Modality = uid, "CT"
        one.Rows, one.Columns = plane.shape
        one.PixelSpacing, one.ImageOrientationPatient = [0.5, 0.25], [1, 0, 0, 0, 1, 0]
        one.ImagePositionPatient = [-10, -20, float(z)]
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 1
        one.RescaleSlope, one.RescaleIntercept = 2, -1000
        one.PixelData = plane.tobytes()
        for name, value in changes.items():
            setattr(one, name, value)
        one.save_as(path, enforce_file_format=True)
    return folder
