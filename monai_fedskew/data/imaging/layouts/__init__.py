"""Layouts of images on disk: generic ones, and those of known data sets."""

from collections.abc import Mapping
from pathlib import Path

from monai_fedskew.data.imaging.layouts.folders import find_folders
from monai_fedskew.data.imaging.layouts.layout import Layout
from monai_fedskew.data.imaging.layouts.masks import find_masks
from monai_fedskew.data.imaging.layouts.office import find_office
from monai_fedskew.data.imaging.layouts.table import find_named_table
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["LAYOUTS", "Layout", "find_images"]

# `auto` takes the first that fits, the particular before the general
LAYOUTS: Mapping[str, Layout] = {
    "office_caltech10": Layout(
        "amazon|caltech|dslr|webcam/CLASS/image, in images/ or office_caltech_10/.", find_office
    ),
    "table": Layout(
        "A line an image in images.csv or --labels CSV: image, label or mask, subject, split, site.", find_named_table
    ),
    "masks": Layout("SITE/images/x with SITE/labels/x (or masks), or SITE/x beside SITE/x_mask.", find_masks),
    "folders": Layout(
        "SITE/CLASS/image, also SITE/train|val|test/CLASS/image and SITE/CLASS/SUBJECT/image.", find_folders
    ),
}


def find_images(root: Path, name: str = "auto") -> tuple[str, list[ImageSource]]:
    """Find the images below a folder.

    Args:
        root: the folder.
        name: a layout in `LAYOUTS`, or ``auto`` for the first that fits.

    Returns:
        The name of the layout, and the images.

    Raises:
        ConfigError: an unknown layout.
        DataError: no layout fits, or not the one asked for.
    """
    if name != "auto" and name not in LAYOUTS:
        raise ConfigError(f"layout {name!r} is unknown; give auto or one of {', '.join(LAYOUTS)}")
    names = [key for key, layout in LAYOUTS.items() if layout.is_guessed] if name == "auto" else [name]
    for key in names:
        found = LAYOUTS[key].find(root)
        if found:
            return key, found
    if name != "auto":
        raise DataError(f"{root} does not have the layout {name}: {LAYOUTS[name].text}")
    raise DataError(
        f"{root} has no layout that is known; the simplest is a folder a site with a folder a class: SITE/CLASS/image "
        "(others: `fedskew images layouts`)"
    )
