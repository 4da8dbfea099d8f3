"""Office-Caltech10 (Gong et al. 2012): four domains, ten classes, the image benchmark of FedBN and FedRDN."""

from dataclasses import replace
from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in
from monai_fedskew.data.imaging.layouts.folders import of_site
from monai_fedskew.data.imaging.source import ImageSource

__all__ = ["find_office"]

_DOMAINS = frozenset({"amazon", "caltech", "caltech10", "dslr", "webcam"})
_ALIASES = {"back_pack": "backpack", "laptop_computer": "laptop"}  # names that Office-31 has for Caltech's classes
_PLACES = (".", "images", "office_caltech_10")


def find_office(root: Path) -> list[ImageSource] | None:
    """Find ``amazon``, ``caltech`` (or ``caltech10``), ``dslr``, ``webcam`` with their classes, two domains at least.

    They may lie in the folder itself, in ``images``, or in ``office_caltech_10`` as FedBN's archive has them.
    """
    for place in _PLACES:
        inside = folders_in(root / place) if (root / place).is_dir() else []
        domains = [path for path in inside if path.name in _DOMAINS]
        if len(domains) > 1:
            found = [source for path in domains for source in of_site(path)]
            return [replace(one, label=_ALIASES.get(str(one.label), one.label)) for one in found]
    return None
