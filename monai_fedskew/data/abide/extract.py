"""From 4-D NIfTI files and an atlas to ROI series: every region of the atlas, always, in ascending label order.

A voxel has weight 1 where it is finite in all volumes and changes over the scan, and inside the mask if there is one,
else 0: scans after brain extraction are zero outside the brain, with or without a mask. Signal and weights are brought
onto the grid of the atlas by linear interpolation, nilearn's `NiftiLabelsMasker` averages both over each region, and
their ratio is the region's mean over valid voxels. Bringing the atlas onto the coarser grid of the scan instead would
lose small regions; averaging without weights would count background and NaN as zero.
"""

import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.atlas import write_regions
from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.data.abide.images import image_values, label_values, load_image, load_mask, load_scan
from monai_fedskew.data.abide.parcellation import atlas_regions
from monai_fedskew.data.abide.sliding import constant_columns
from monai_fedskew.data.abide.timeseries import write_series
from monai_fedskew.errors import DataError

__all__ = ["Extracted", "extract", "region_means"]

Progress = Callable[[int, int, str], None]
Floats = npt.NDArray[np.float64]
_VOLUMES = 16  # brought onto the atlas's grid at once
_NIFTI = re.compile(r"\.nii(\.gz)?$")


@dataclass(frozen=True)
class Extracted:
    """What was written.

    Args:
        folder: where it is.
        files: names of the files written.
        flat: by file, the labels whose column is flat: no valid voxel, or no signal.
        unnamed: labels of the atlas that the table does not name, and that are left out.
    """

    folder: Path
    files: tuple[str, ...]
    flat: dict[str, tuple[str, ...]]
    unnamed: tuple[int, ...] = ()


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
        DataError: no scan, a scan that is not 4D or has fewer than 3 volumes, an atlas, mask or table that cannot be
            read or used, or a label that the atlas lacks or the table has twice.

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
        load_scan(path)  # the header only: a scan that is none stops the work before it begins
    atlas_image = load_image(Path(atlas), 3)
    regions, unnamed = atlas_regions(Path(atlas), atlas_image, Path(labels))
    mask_image = load_mask(Path(mask)) if mask else None
    tag = re.sub(r"[^A-Za-z0-9]", "", _NIFTI.sub("", Path(atlas).name)) or "atlas"
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
    return Extracted(out, tuple(flat), {name: still for name, still in flat.items() if still}, unnamed)


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
        DataError: the file is no 4D image of at least 3 volumes, or cannot be read.
    """
    import nibabel
    from nilearn.image import resample_to_img
    from nilearn.maskers import NiftiLabelsMasker

    image = load_scan(path)
    data = image_values(path, image).astype(np.float32, copy=False)
    is_valid = np.isfinite(data).all(axis=3) & (data != data[..., :1]).any(axis=3)
    weights: npt.NDArray[np.float32] = np.asarray(is_valid, np.float32)
    if mask is not None:
        first = nibabel.Nifti1Image(weights, image.affine)
        weights[~(np.asarray(_resample(resample_to_img, mask, first, "nearest").dataobj) > 0)] = 0
    wanted = label_values(path, atlas)
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
