"""The regions of an atlas: which labels of the image its table names, and where their centres are."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from monai_fedskew.data.abide.csv_tables import read_csv
from monai_fedskew.data.abide.images import label_values
from monai_fedskew.data.manifest import Region
from monai_fedskew.errors import DataError

__all__ = ["atlas_regions"]


def atlas_regions(atlas: Path, image: Any, table: Path) -> tuple[tuple[Region, ...], tuple[int, ...]]:
    """Return the regions of an atlas in ascending label order, and the labels that the table does not name.

    Args:
        atlas: the file, for errors.
        image: its nibabel image.
        table: CSV with a column `label` (or `index`) and, if known, `name`.

    Raises:
        DataError: the table cannot be read, has a label twice or one that the atlas lacks, or the atlas holds something
            else than labels.

    Example:
        >>> regions, unnamed = atlas_regions(Path("a.nii"), nibabel.load("a.nii"), Path("a.csv"))  # doctest: +SKIP
    """
    from nibabel.affines import apply_affine

    names = _names(table)
    values = label_values(atlas, image)
    present = {int(value) for value in np.unique(values) if value != 0}
    lost = sorted(set(names) - present)
    if lost:
        raise DataError(
            f"{atlas}: label {lost[0]} of {table} is not in the atlas ({len(lost)} of {len(names)} missing)"
        )
    regions = []
    for label in sorted(names):
        x, y, z = apply_affine(image.affine, np.argwhere(values == label).mean(axis=0))
        regions.append(Region(str(label), names[label], (float(x), float(y), float(z))))
    return tuple(regions), tuple(sorted(present - set(names)))


def _names(path: Path) -> dict[int, str]:
    table = read_csv(path, once=("label", "index", "name"))
    column = next((name for name in ("label", "index") if name in table.columns), None)
    if column is None:
        found = ", ".join(table.columns) or "nothing"
        raise DataError(f"{path}: column 'label' (or 'index') is missing; found {found}")
    names: dict[int, str] = {}
    for line, row in table.rows:
        text = row[column].strip()
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise DataError(f"{path}, line {line}: labels must be whole numbers, found {text[:20]!r}")
        label = int(text)
        if label in names:
            raise DataError(f"{path}: label {label} appears twice (line {line}); keep one")
        names[label] = row.get("name", "").strip()
    names.pop(0, None)
    if not names:
        raise DataError(f"{path}: no label in it")
    return names
