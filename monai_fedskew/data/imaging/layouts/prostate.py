"""ProstateMRI (Liu et al. 2020): T2 volumes of six sites, a volume a patient, with masks beside them."""

import re
from dataclasses import replace
from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in, images_in, stem
from monai_fedskew.data.imaging.layouts.masks import SUFFIX, pair
from monai_fedskew.data.imaging.source import ImageSource

__all__ = ["NAMES", "find_prostate"]

_SITES = frozenset({"BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL"})
NAMES = ("background", "prostate")


def find_prostate(root: Path) -> list[ImageSource] | None:
    """Find ``SITE/CaseNN.nii.gz`` with ``SITE/CaseNN_segmentation.nii.gz``; the case is the patient.

    Raises:
        DataError: a case without its segmentation.
    """
    found: list[ImageSource] = []
    for folder in folders_in(root):
        if folder.name not in _SITES:
            continue
        cases = [path for path in images_in(folder) if re.match(r"case\d+", path.name, re.IGNORECASE)]
        masks = [path for path in cases if SUFFIX.search(stem(path))]
        found += pair(folder.name, [path for path in cases if path not in masks], masks)
    return [replace(source, group=source.id) for source in found] or None
