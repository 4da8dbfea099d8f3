"""Regions of the Harvard-Oxford parcellation as the Preprocessed Connectomes Project (PCP) labels them.

`regions_ho.csv` lists the 110 labels with anatomical names and centres in MNI millimetres, rounded to 1 mm. A centre is
the mean voxel position of the region in the FSL Harvard-Oxford maximum-probability atlases (threshold 25 %, 2 mm, split
by hemisphere). Labels 10 to 58 are the subcortical ones of FreeSurfer. A cortical label is 100 k + side: k numbers the
regions in FSL's order, side is 1 on the right and 2 on the left, since the stray label 3455 lies on the right and is
the sum of 54 (right amygdala) and 3401.

PCP's `rois_ho` files have an 111th column, label 3455: two voxels where the two maps were added. It is no region.
"""

import csv
from functools import cache
from importlib.resources import files
from pathlib import Path

from monai_fedskew.data.abide.csv_tables import read_csv
from monai_fedskew.data.manifest import Region
from monai_fedskew.errors import DataError

__all__ = ["STRAY_LABEL", "harvard_oxford", "read_regions", "write_regions"]

STRAY_LABEL = "3455"
_COLUMNS = ["label", "name", "x", "y", "z"]


@cache
def harvard_oxford() -> tuple[Region, ...]:
    """Return the 110 regions in ascending label order.

    Example:
        >>> regions = harvard_oxford()
        >>> len(regions), regions[0].name, regions[0].xyz
        (110, 'Left Thalamus', (-10.0, -19.0, 6.0))
    """
    with (files("monai_fedskew.data.abide") / "regions_ho.csv").open(encoding="utf-8") as file:
        return tuple(_region(row) for row in csv.DictReader(file))


def read_regions(path: Path) -> tuple[Region, ...]:
    """Read a table of regions as `fedskew abide extract` writes it: columns label, name and, if known, x, y, z in mm.

    Raises:
        DataError: the file is no CSV in UTF-8, the column `label` is missing, a value is no number, or a label appears
            twice.
    """
    table = read_csv(path, once=("label",))
    if "label" not in table.columns:
        raise DataError(f"{path}: column 'label' is missing; found {', '.join(table.columns) or 'nothing'}")
    try:
        regions = tuple(_region(row) for _, row in table.rows)
    except ValueError as error:
        raise DataError(f"{path}: x, y and z must be numbers ({error})") from error
    labels = [region.label for region in regions]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice or not labels:
        raise DataError(f"{path}: " + (f"label {twice[0]} appears twice" if twice else "no region in it"))
    if "" in labels:
        raise DataError(f"{path}, line {table.rows[labels.index('')][0]}: the label is empty; every region needs one")
    return regions


def write_regions(path: Path, regions: tuple[Region, ...]) -> None:
    """Write a table of regions, centres rounded to 0.1 mm."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for region in regions:
            writer.writerow([region.label, region.name, *(f"{value:.1f}" for value in region.xyz or ())])


def _region(row: dict[str, str]) -> Region:
    place = [row.get(axis) or "" for axis in "xyz"]
    xyz = (float(place[0]), float(place[1]), float(place[2])) if all(place) else None
    return Region(row["label"].strip(), (row.get("name") or "").strip(), xyz)
