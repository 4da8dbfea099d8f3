"""Find the scan of every subject and decide, by rule, whether it can be used."""

import filecmp
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.atlas import STRAY_LABEL, harvard_oxford, read_regions
from monai_fedskew.data.abide.phenotypes import Person
from monai_fedskew.data.abide.sliding import constant_columns, constant_in_windows, n_windows
from monai_fedskew.data.abide.timeseries import count_volumes, read_series
from monai_fedskew.data.manifest import Excluded, Region
from monai_fedskew.errors import DataError

__all__ = ["ConstantRoi", "Exclude", "Rules", "Scan", "find_scans", "find_regions", "read_scan", "usual_volumes"]

ConstantRoi = Literal["exclude", "zero"]
Exclude = Literal["dead-roi", "fed-abide"]
Floats = npt.NDArray[np.float64]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What makes a scan usable.

    Args:
        window: volumes in a window; a shorter scan has none.
        stride: volumes from one window to the next.
        constant_roi: `exclude` a subject with a region that stands still over the scan or within a window, or keep it
            and set the edges of that region to `zero` there.
        exclude: `dead-roi` looks at the regions of the atlas; `fed-abide` is the rule of Li et al. 2020: any column of
            the file that stands still, the stray one included, or another length than the site's usual.
    """

    window: int = 32
    stride: int = 1
    constant_roi: ConstantRoi = "exclude"
    exclude: Exclude = "dead-roi"


@dataclass(frozen=True)
class Scan:
    """A usable scan: `values` is (volumes, regions); `flags` names regions whose edges are zero."""

    values: Floats
    sha256: str
    flags: str = ""


def find_regions(folder: Path) -> tuple[tuple[Region, ...], bool]:
    """Return the regions of a folder's series, and whether they are PCP's Harvard-Oxford ones.

    A `regions.csv` in the folder, as `fedskew abide extract` writes it, names them; otherwise they are PCP's.
    """
    table = folder / "regions.csv"
    return (read_regions(table), False) if table.is_file() else (harvard_oxford(), True)


def find_scans(folder: Path, *, is_pcp: bool) -> dict[str, Path]:
    """Find the series below a folder, flat or in a folder a subject, by FILE_ID.

    Args:
        folder: where to look.
        is_pcp: whether to take `<FILE_ID>_rois_ho.1D` only; otherwise any `.1D`.

    Raises:
        DataError: there is none, or two of one name differ.
    """
    pattern = "*_rois_ho.1D" if is_pcp else "*.1D"
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob(pattern), key=lambda path: (len(path.parts), path)):
        name = re.sub(r"(_rois_[^_]+)?\.1D$", "", path.name)
        if name in found and not filecmp.cmp(found[name], path, shallow=False):
            raise DataError(f"{path} and {found[name]} have one name but differ; remove one")
        found.setdefault(name, path)
    if not found:
        raise DataError(f"{folder}: no ROI series ({pattern}) in it; `fedskew abide fetch {folder}` gets them")
    return found


def usual_volumes(paths: Iterable[Path]) -> int:
    """Return the commonest number of volumes; of equally common ones the largest."""
    counts = Counter(count_volumes(path) for path in paths)
    return max(counts, key=lambda volumes: (counts[volumes], volumes))


def read_scan(
    person: Person, path: Path, regions: Sequence[Region], rules: Rules, *, is_pcp: bool, usual: int | None = None
) -> Scan | Excluded:
    """Read a subject's scan and apply the rules.

    Args:
        person: whose it is.
        path: the `.1D` file.
        regions: the atlas; the order of the columns returned.
        rules: what makes it usable.
        is_pcp: whether the file may have PCP's stray column, which is dropped by its label.
        usual: the site's usual number of volumes, for `exclude="fed-abide"`.

    Raises:
        DataError: the file is damaged or of another atlas.
    """
    labels = [region.label for region in regions]
    series = read_series(path, labels, optional=(STRAY_LABEL,) if is_pcp else ())
    values = series.columns(labels)
    volumes = len(values)
    if n_windows(volumes, rules.window, rules.stride) == 0:
        return Excluded(person.id, f"{volumes} volumes, shorter than the window of {rules.window}")
    if rules.exclude == "fed-abide":
        if usual is not None and volumes != usual:
            return Excluded(person.id, f"{volumes} volumes where the site has {usual}")
        dead = [name for name, still in zip(series.labels, constant_columns(series.values), strict=True) if still]
        if dead:
            return Excluded(person.id, f"constant ROI {', '.join(dead)}")
    flags = _still(values, labels, rules)
    if flags and rules.constant_roi == "exclude":
        return Excluded(person.id, flags)
    return Scan(values, series.sha256, flags)


def _still(values: Floats, labels: Sequence[str], rules: Rules) -> str:
    dead = constant_columns(values)
    if dead.any():
        return f"constant ROI {', '.join(labels[column] for column in np.flatnonzero(dead).tolist())}"
    still = constant_in_windows(values, rules.window)[:: rules.stride].any(axis=0)
    if still.any():
        return f"constant ROI {', '.join(labels[column] for column in np.flatnonzero(still).tolist())} within a window"
    return ""


def without_files(people: Iterable[Person], scans: Mapping[str, Path]) -> tuple[list[Person], list[Excluded]]:
    """Divide subjects into those with a scan and those left out by the table or for want of a file."""
    usable, excluded = [], []
    for person in people:
        reason = person.problem or ("" if person.file_id in scans else f"no file for FILE_ID {person.file_id}")
        if reason:
            excluded.append(Excluded(person.id, reason))
        else:
            usable.append(person)
    return usable, excluded
