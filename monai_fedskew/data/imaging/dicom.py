"""A DICOM series as one volume in NIfTI's terms: slices by position, physical values, millimetres in RAS+."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.imaging.read import Pixels
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["read_series", "write_nifti"]

_UNEVEN = 0.01  # of the distance of slices, and at least 0.01 mm
_LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def read_series(path: Path) -> Pixels:
    """Read the slices of one series.

    Args:
        path: a folder of slices, or one file.

    Returns:
        Values (1, columns, rows, slices) in float32, ``RescaleSlope`` and ``RescaleIntercept`` applied; a picture
        without position (an X-ray) as (1, rows, columns) without affine.

    Raises:
        ConfigError: pydicom is not installed.
        DataError: files of several series, slices that are missing, doubled or unevenly apart, or no pixels.

    Example:
        >>> read_series(Path("scans/patient_1"))  # doctest: +SKIP
    """
    try:
        return _series(path)
    except (
        TypeError,
        AttributeError,
        KeyError,
    ) as error:  # what pydicom gives for an attribute that is empty or absent
        raise DataError(
            f"{path}: an attribute that is needed is empty or missing ({error}); export it again"
        ) from error


def _series(path: Path) -> Pixels:
    slices = [_read(file) for file in _files(path)]
    if not slices:
        raise DataError(f"{path} is a folder without files; a folder that is an image holds a DICOM series")
    series = sorted({str(one.get("SeriesInstanceUID", "")) for one in slices})
    if len(series) > 1:
        raise DataError(
            f"{path} holds slices of {len(series)} series ({series[0]}, ...); put each in a folder of its own"
        )
    first = slices[0]
    if not all("ImagePositionPatient" in one and "ImageOrientationPatient" in one for one in slices):
        if len(slices) > 1:
            raise DataError(f"{path}: slices without ImagePositionPatient cannot be put in order; convert it to NIfTI")
        return Pixels(_values(first, path)[None])
    _require_alike(path, slices)
    normal = np.cross(*_directions(first))
    depth = [float(np.dot(normal, _position(one))) for one in slices]
    order = np.argsort(depth)
    step = _step(path, np.array(depth)[order], first)
    stack = np.stack([_values(slices[k], path).T for k in order], axis=-1)  # (rows, columns) to (columns, rows)
    return Pixels(stack[None], 0.0, _affine(slices[order[0]], normal * step))


def write_nifti(path: Path, target: Path) -> None:
    """Write a series as a NIfTI file of float32.

    Raises:
        DataError: as `read_series`, or a picture that has no place in space.
    """
    import nibabel

    pixels = read_series(path)
    affine = np.eye(4) if pixels.affine is None else pixels.affine
    values = pixels.values[0] if pixels.affine is not None else pixels.values[0].T[..., None]
    image = nibabel.Nifti1Image(values, affine)
    image.header.set_xyzt_units("mm")
    nibabel.save(image, target)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(
        one for one in path.iterdir() if one.is_file() and not one.name.startswith(".") and one.name != "DICOMDIR"
    )


def _read(path: Path) -> Any:
    try:
        import pydicom
    except ModuleNotFoundError:
        raise ConfigError(f"{path} is DICOM, which needs pydicom: pip install 'monai-fedskew[dicom]'") from None
    try:
        found = pydicom.dcmread(path)
    except pydicom.errors.InvalidDicomError as error:
        raise DataError(f"{path} is no DICOM file; take it out of the folder of the series") from error
    if "PixelData" not in found:
        raise DataError(f"{path} holds no pixels ({found.get('Modality', 'no modality')}); take it out of the folder")
    if int(found.get("SamplesPerPixel", 1)) != 1 or int(found.get("NumberOfFrames", 1)) != 1:
        raise DataError(f"{path} holds colours or several frames; convert it to NIfTI with a tool of your scanner")
    return found


def _require_alike(path: Path, slices: Sequence[Any]) -> None:
    first = slices[0]
    for one in slices:
        for name in ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"):
            if one.get(name) is None:
                raise DataError(f"{path}: {Path(one.filename).name} has no {name}; export the series again")
            here, there = np.array(one[name].value, float), np.array(first[name].value, float)
            if here.shape != there.shape or not np.allclose(here, there, atol=1e-4):
                raise DataError(
                    f"{path}: slices differ in {name}: {one.get(name)} in {Path(one.filename).name}, {first.get(name)} "
                    "in others; put the scout or the other series in a folder of its own"
                )


def _step(path: Path, depth: npt.NDArray[np.float64], first: Any) -> float:
    """Return the distance of slices in mm."""
    if len(depth) == 1:
        return float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
    gaps = np.diff(depth)
    step = float(np.median(gaps))
    worst = int(np.argmax(np.abs(gaps - step)))
    if np.abs(gaps[worst] - step) > max(_UNEVEN * step, _UNEVEN) or step <= _UNEVEN:
        kind = "two slices lie at one place" if gaps.min() <= _UNEVEN else "a slice is missing, or spacing is uneven"
        raise DataError(
            f"{path}: {kind}: slices {worst + 1} and {worst + 2} of {len(depth)} by position are {gaps[worst]:.4g} mm "
            f"apart, others {step:.4g} mm; complete the series or resample it"
        )
    return float((depth[-1] - depth[0]) / (len(depth) - 1))


def _affine(lowest: Any, step: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return voxel (column, row, slice) to RAS millimetres; DICOM C.7.6.2.1.1 with x and y turned to RAS."""
    along_row, along_column = _directions(lowest)
    row_distance, column_distance = (float(x) for x in lowest.PixelSpacing)  # distance of rows first
    affine = np.eye(4)
    affine[:3, 0] = along_row * column_distance
    affine[:3, 1] = along_column * row_distance
    affine[:3, 2] = step
    affine[:3, 3] = _position(lowest)
    turned: npt.NDArray[np.float64] = _LPS_TO_RAS @ affine
    return turned


def _directions(one: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    cosines = np.array(one.ImageOrientationPatient, np.float64)
    return cosines[:3], cosines[3:]


def _position(one: Any) -> npt.NDArray[np.float64]:
    return np.array(one.ImagePositionPatient, np.float64)


def _values(one: Any, path: Path) -> npt.NDArray[np.float32]:
    try:
        stored = one.pixel_array
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        raise DataError(
            f"{path}: pixels are compressed in a way that is not read here ({error}); decompress them, or convert "
            "to NIfTI"
        ) from error
    slope, intercept = float(one.get("RescaleSlope", 1)), float(one.get("RescaleIntercept", 0))
    return np.asarray(stored.astype(np.float64) * slope + intercept, np.float32)
