"""Camelyon17 patches as WILDS has them (Koh et al. 2021): 96 x 96 pixels of lymph nodes from five hospitals."""

from pathlib import Path

from monai_fedskew.data.imaging.layouts.table import read_csv
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import DataError

__all__ = ["NAMES", "find_camelyon17"]

_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
_PLACES = (".", "camelyon17_v1.0")
NAMES = ("normal", "tumor")


def find_camelyon17(root: Path) -> list[ImageSource] | None:
    """Find ``metadata.csv`` with ``patches/patient_P_node_N/patch_patient_P_node_N_x_X_y_Y.png``.

    The site is the hospital (``center_0`` to ``center_4``), and no split cuts a patient. WILDS's own split is not
    taken: it puts whole hospitals into the test, and patches of training patients into its validation.

    Raises:
        DataError: a line without its patch, or a label other than 0 and 1.
    """
    above = next((root / place for place in _PLACES if (root / place / "metadata.csv").is_file()), None)
    if above is None:
        return None
    table = above / "metadata.csv"
    frame = read_csv(table)
    if not set(_COLUMNS) <= set(frame.columns):
        return None
    found = []
    lines = zip(*(frame[name] for name in _COLUMNS), strict=True)
    for line, (patient, node, x, y, tumor, center) in enumerate(lines, start=2):
        name = f"patient_{patient}_node_{node}"
        image = f"{name}_x_{x}_y_{y}"
        path = above / "patches" / name / f"patch_{image}.png"
        if tumor not in ("0", "1"):
            raise DataError(f"{table}, line {line}: tumor is {tumor!r}; 0 or 1 is expected")
        if not path.is_file():
            raise DataError(f"{table}, line {line}: {path} does not exist; get it, or take the line out of the table")
        label, group = NAMES[int(tumor)], f"patient_{patient}"
        found.append(ImageSource(f"center_{center}", image, (path,), label=label, group=group))
    return found
