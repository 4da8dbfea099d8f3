"""From 4-D NIfTI files and an atlas to ROI series: every region of the atlas, always, in ascending label order.

A voxel has weight 1 where it is finite in all volumes and changes over the scan, and inside the mask if there is one,
else 0: scans after brain extraction are zero outside the brain, with or without a mask. Signal and weights are brought
onto the grid of the atlas by linear interpolation, nilearn's `NiftiLabelsMasker` averages both over each region, and
their ratio is the region's mean over valid voxels. Bringing the atlas onto the coarser grid of the scan instead would
lose small regions; averaging without weights would count background and NaN as zero.
"""

import csv
import logging
import re
import shutil
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.atlas import write_regions
from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.data.abide.sliding import constant_columns
from monai_fedskew.data.abide.timeseries import write_series
from monai_fedskew.data.manifest import Region
from monai_fedskew.errors import DataError

__all__ = ["Extracted", "extract", "region_means"]

Progress = Callable[[int, int, str], None]
Floats = npt.NDArray[np.float64]
_VOLUMES = 16  # brought onto the atlas's grid at once
_NIFTI = re.compile(r"\.nii(\.gz)?$")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Extracted:
    """Names of the `files` written, and the labels of a file whose column is `flat`: no valid voxel, or no signal."""

    folder: Path
    files: tuple[str, ...]
    flat: dict[str, tuple[str, ...]]


def extract(
    data: Path,
    atlas: Path,
    labels: Path,
    out: Path,
    *,
    mask: Path | None = None,
    force: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> Extracted:
    """Extract the ROI series of every 4-D NIfTI file below a folder; `fedskew abide prepare` reads the result.

    Args:
        data: folder with `<FILE_ID>_func_preproc.nii.gz` or `<FILE_ID>.nii[.gz]`; a phenotypic table in it is copied.
        atlas: 3-D NIfTI of integer labels, 0 for background.
        labels: CSV with a column `label` (or `index`) and, if known, `name`: the regions wanted.
        out: folder to write: one `.1D` a scan, and regions.csv with the centres in the atlas's space (mm).
        mask: 3-D NIfTI of the brain; voxels outside do not count. Without it, voxels that never change do not.
        force: whether an earlier `out` may be replaced.
        progress: called with the number of scans done, of all, and the newest name.

    Raises:
        ConfigError: `out` exists.
        DataError: no scan, a scan that is not 4D, an atlas, mask or table that cannot be read, or a label that the
            atlas lacks or the table has twice.

    Example:
        >>> extract(Path("scans"), Path("aal.nii.gz"), Path("aal.csv"), Path("series"))  # doctest: +SKIP
    """
    data, out = Path(data), Path(out)
    check_folders(data, out, force=force, mark="regions.csv")
    scans = _scans(data, {Path(atlas).resolve(), *((Path(mask).resolve(),) if mask else ())}, out)
    names = [re.sub("_func_preproc$", "", _NIFTI.sub("", path.name)) for path in scans]
    for path, name in zip(scans, names, strict=True):
        if names.count(name) > 1:
            raise DataError(f"{path}: another scan below {data} is named {name} too; FILE_IDs must differ")
        _load(path, 4)  # the header only: a scan that is none stops the work before it begins
    atlas_image = _load(Path(atlas), 3)
    regions = _regions(atlas, atlas_image, labels)
    mask_image = _load(Path(mask), 3) if mask else None
    if mask and mask_image is not None:
        _values(Path(mask), mask_image)
    tag = re.sub(r"[^A-Za-z0-9]", "", _NIFTI.sub("", Path(atlas).name))
    flat: dict[str, tuple[str, ...]] = {}
    with whole_or_nothing(out) as folder:
        write_regions(folder / "regions.csv", regions)
        for done, path in enumerate(scans):
            progress(done, len(scans), path.name)
            name = f"{names[done]}_rois_{tag}.1D"
            values, still = region_means(path, atlas_image, [int(region.label) for region in regions], mask_image)
            write_series(folder / name, [region.label for region in regions], values)
            flat[name] = tuple(str(label) for label in still)
        progress(len(scans), len(scans), "")
        for table in (path for path in data.rglob("*.csv") if "pheno" in path.name.lower()):
            shutil.copy(table, folder / table.name)
    return Extracted(out, tuple(flat), {name: still for name, still in flat.items() if still})


def region_means(path: Path, atlas: Any, labels: list[int], mask: Any = None) -> tuple[Floats, list[int]]:
    """Average a scan over regions.

    Args:
        path: a 4-D NIfTI file.
        atlas: nibabel image of integer labels.
        labels: labels wanted, ascending.
        mask: nibabel image of the brain, or None.

    Returns:
        (volumes, labels) means over the valid voxels of each region, 0 where there are none, and the labels whose
        column is flat.

    Raises:
        DataError: the file is no 4D image or cannot be read.
    """
    import nibabel
    from nilearn.image import resample_to_img
    from nilearn.maskers import NiftiLabelsMasker

    image = _load(path, 4)
    data = _values(path, image).astype(np.float32, copy=False)
    is_valid = np.isfinite(data).all(axis=3) & (data != data[..., :1]).any(axis=3)
    weights: npt.NDArray[np.float32] = np.asarray(is_valid, np.float32)
    if mask is not None:
        first = nibabel.Nifti1Image(weights, image.affine)
        weights[~(np.asarray(_resample(resample_to_img, mask, first, "nearest").dataobj) > 0)] = 0
    wanted = np.asarray(atlas.dataobj).astype(np.int32)
    wanted[~np.isin(wanted, labels)] = 0
    grid = nibabel.Nifti1Image(wanted, atlas.affine)
    masker = NiftiLabelsMasker(grid, resampling_target=None, standardize=None, reports=False)
    masker.fit()

    def average(values: npt.NDArray[np.float32]) -> Floats:
        moved = _resample(resample_to_img, nibabel.Nifti1Image(values, image.affine), grid, "linear")
        means = np.asarray(masker.transform(moved), np.float64)
        if means.shape[-1] != len(labels):
            raise DataError(f"{path}: {means.shape[-1]} of {len(labels)} regions came back: atlas and labels disagree")
        return means.reshape(-1, len(labels))

    share = average(weights[..., None])[0]
    data = np.where(weights[..., None] > 0, data, np.float32(0))
    blocks = [average(data[..., k : k + _VOLUMES]) for k in range(0, data.shape[3], _VOLUMES)]
    is_missing = share <= 1e-6
    means = np.where(is_missing, 0.0, np.concatenate(blocks) / np.where(is_missing, 1.0, share))
    return means, [label for label, still in zip(labels, constant_columns(means), strict=True) if still]


def _load(path: Path, dimensions: int) -> Any:
    """Open a NIfTI file, reading its header only."""
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    try:
        image = nibabel.load(path)
    except (ImageFileError, OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as NIfTI ({error}); the file is truncated or damaged") from error
    shape: tuple[int, ...] = getattr(image, "shape", ())
    if len(shape) != dimensions:
        what = "(x, y, z, volumes)" if dimensions == 4 else "(x, y, z)"
        raise DataError(f"{path}: expected a {dimensions}D image {what}, found shape {shape}")
    return image


def _values(path: Path, image: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(image.dataobj)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as NIfTI ({error}); the file is truncated or damaged") from error


def _resample(resample: Callable[..., Any], image: Any, target: Any, interpolation: str) -> Any:
    same = image.shape[:3] == target.shape[:3] and np.allclose(image.affine, target.affine)
    if same:
        return image
    with warnings.catch_warnings():
        # weights are 0 and 1, and meant to become fractions
        warnings.filterwarnings("ignore", message="Resampling binary images", category=UserWarning)
        return resample(image, target, interpolation=interpolation)


def _scans(data: Path, others: set[Path], out: Path) -> list[Path]:
    found = [path for path in sorted(data.rglob("*.nii*")) if _NIFTI.search(path.name)]
    scans = [path for path in found if path.resolve() not in others and out.resolve() not in path.resolve().parents]
    if not scans:
        raise DataError(f"{data}: no NIfTI file (*.nii, *.nii.gz) in it")
    return scans


def _regions(atlas: Path, image: Any, table: Path) -> tuple[Region, ...]:
    from nibabel.affines import apply_affine

    values = _values(Path(atlas), image)
    names = _names(table)
    present = {int(value) for value in np.unique(values) if value != 0}
    lost = sorted(set(names) - present)
    if lost:
        raise DataError(
            f"{atlas}: label {lost[0]} of {table} is not in the atlas ({len(lost)} of {len(names)} missing)"
        )
    extra = sorted(present - set(names))
    if extra:
        _log.info("left out %d labels of the atlas that %s does not name (first: %d)", len(extra), table.name, extra[0])
    regions = []
    for label in sorted(names):
        x, y, z = apply_affine(image.affine, np.argwhere(values == label).mean(axis=0))
        regions.append(Region(str(label), names[label], (float(x), float(y), float(z))))
    return tuple(regions)


def _names(table: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    try:
        with table.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            column = next((name for name in ("label", "index") if name in (reader.fieldnames or ())), None)
            if column is None:
                found = ", ".join(reader.fieldnames or ()) or "nothing"
                raise DataError(f"{table}: column 'label' (or 'index') is missing; found {found}")
            for row in reader:
                label = int(row[column])
                if label in names:
                    raise DataError(f"{table}: label {label} appears twice (line {reader.line_num}); keep one")
                names[label] = (row.get("name") or "").strip()
    except DataError:
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: cannot be read as CSV ({error})") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{table}: labels must be whole numbers ({error})") from error
    names.pop(0, None)
    if not names:
        raise DataError(f"{table}: no label in it")
    return names
