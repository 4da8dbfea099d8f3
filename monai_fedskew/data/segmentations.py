"""Test scores of segmentations: one row an image and class."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from monai_fedskew.errors import DataError

__all__ = ["UNITS", "image_scores", "read_examples", "read_segmentations"]

UNITS = ("mm", "pixel")
_KINDS: dict[str, type] = {"subject": str, "row": int, "class": str, "dice": float, "hausdorff95": float, "unit": str}
_PLANES = ("image", "truth", "prediction")
_LARGEST = 100_000_000  # bytes; the writer's take a twentieth of it
_DAMAGED = (
    OSError, ValueError, KeyError, EOFError, TypeError, MemoryError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Example = dict[str, npt.NDArray[np.uint8]]


def read_segmentations(path: Path) -> pd.DataFrame:
    """Read a segmentation.csv.

    Args:
        path: file with the columns subject, row, class (name of a foreground class), dice, hausdorff95 and unit (of the
            distance, ``mm`` or ``pixel``); a score that is not defined is an empty cell.

    Returns:
        One row an image and class, in the order of the file; scores are NaN where they are not defined.

    Raises:
        DataError: the file is absent, lacks a column, has no row, or a score or a unit is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "segmentation.csv"
        ...     _ = path.write_text("subject,row,class,dice,hausdorff95,unit\\na,7,nucleus,0.5,,pixel\\n")
        ...     read_segmentations(path)["dice"].tolist()
        [0.5]
    """
    try:
        empty = {"dice": [""], "hausdorff95": [""]}
        found = pd.read_csv(
            path, usecols=list(_KINDS), dtype=_KINDS, index_col=False, keep_default_na=False, na_values=empty
        )[list(_KINDS)]
    except FileNotFoundError as error:
        raise DataError(f"{path}: absent; run it again") from error
    except ValueError as error:
        raise DataError(f"{path}: must have the columns {', '.join(_KINDS)}; {error}") from error
    if not len(found):
        raise DataError(f"{path}: no scores in it; run it again")
    dice, distance = found["dice"], found["hausdorff95"]
    for name, is_wrong, wanted in (
        ("dice", ~(dice.between(0, 1) | dice.isna()), "a number from 0 to 1 or empty"),
        ("hausdorff95", ~(((distance >= 0) & np.isfinite(distance)) | distance.isna()), "a distance or empty"),
        ("unit", ~found["unit"].isin(UNITS), " or ".join(UNITS)),
    ):
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            raise DataError(
                f"{path}, line {row + 2}: {name} is {found[name].iloc[row]}, must be {wanted}; run it again"
            )
    if found["unit"].nunique() > 1:
        raise DataError(
            f"{path}: distances in mm and in pixels; give all images of the site a voxel size, or none (the writer's "
            "`spacing` sets it)"
        )
    return found


def image_scores(segmentations: pd.DataFrame) -> pd.DataFrame:
    """Take the mean over the classes of each image, of those that have a value, as MONAI's metrics do.

    Args:
        segmentations: of `read_segmentations`.

    Returns:
        One row an image (index: its subject and row): ``dice`` and ``hausdorff95``, NaN where no class has a value.

    Example:
        >>> rows = pd.DataFrame({"subject": "a", "row": [0, 0], "dice": [0.5, 1.0], "hausdorff95": [2.0, np.nan]})
        >>> image_scores(rows).to_dict("records")
        [{'dice': 0.75, 'hausdorff95': 2.0}]
    """
    return segmentations.groupby(["subject", "row"], sort=False)[["dice", "hausdorff95"]].mean()


def read_examples(path: Path) -> dict[str, Example]:
    """Read an examples.npz: slices of a few images with what is there and what was predicted.

    Returns:
        By subject: ``image`` (H, W) or (H, W, 3), ``truth`` and ``prediction`` (H, W) class numbers; uint8.

    Raises:
        DataError: the file cannot be read, or holds something else.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > _LARGEST:
            raise DataError(f"{path}: unpacks to {size / 1e6:.0f} MB, more than examples take; run it again")
        with np.load(path, allow_pickle=False) as held:
            names = [str(name) for name in held["subjects"]]
            found = {name: {plane: held[f"{plane}_{k}"] for plane in _PLANES} for k, name in enumerate(names)}
    except _DAMAGED as error:
        raise DataError(f"{path}: cannot be read as examples ({error}); run it again") from error
    for name, planes in found.items():
        size = planes["truth"].shape
        is_fit = (
            len(size) == 2
            and 0 not in size
            and planes["prediction"].shape == size
            and planes["image"].shape in (size, (*size, 3))
        )
        if not is_fit or any(plane.dtype != np.uint8 for plane in planes.values()):
            raise DataError(f"{path}: the slices of {name} do not fit one another; run it again")
    return found
