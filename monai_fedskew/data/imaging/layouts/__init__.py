"""Layouts of images on disk: generic ones, and those of known data sets."""

from collections.abc import Mapping
from pathlib import Path

from monai_fedskew.data.imaging.layouts.camelyon17 import NAMES as CAMELYON
from monai_fedskew.data.imaging.layouts.camelyon17 import find_camelyon17
from monai_fedskew.data.imaging.layouts.decathlon import decathlon_names, find_decathlon
from monai_fedskew.data.imaging.layouts.digits_five import find_digits_five
from monai_fedskew.data.imaging.layouts.domainnet import find_domainnet, find_domainnet10
from monai_fedskew.data.imaging.layouts.folders import find_folders
from monai_fedskew.data.imaging.layouts.layout import Layout
from monai_fedskew.data.imaging.layouts.masks import find_masks
from monai_fedskew.data.imaging.layouts.office import find_office
from monai_fedskew.data.imaging.layouts.prostate import NAMES as PROSTATE
from monai_fedskew.data.imaging.layouts.prostate import find_prostate
from monai_fedskew.data.imaging.layouts.table import find_named_table, named_table_names
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["LAYOUTS", "Layout", "find_images"]

# `auto` takes the first that fits, the particular before the general
LAYOUTS: Mapping[str, Layout] = {
    "office_caltech10": Layout(
        "amazon|caltech|dslr|webcam/CLASS/image, in images/ or office_caltech_10/.",
        find_office,
        note="FedBN's lists are pickles, which are not opened: give them as --splits CSV (path,split).",
    ),
    "domainnet": Layout(
        "clipart|infograph|painting|quickdraw|real|sketch/CLASS/image with DOMAIN_train.txt, DOMAIN_test.txt.",
        find_domainnet,
    ),
    "domainnet10": Layout("The same, and only the ten classes of the FedBN paper.", find_domainnet10, is_guessed=False),
    "digits_five": Layout(
        "MNIST|MNIST_M|SVHN|SynthDigits|USPS/CLASS/image or SOURCE/train|test/CLASS/image.",
        find_digits_five,
        note="FedBN's pickles and the .mat files are not opened.",
    ),
    "prostate_mri": Layout(
        "BIDMC|HK|I2CVB|ISBI|ISBI_1.5|UCL/CaseNN.nii.gz with CaseNN_segmentation.nii.gz; a case is a patient.",
        find_prostate,
        label_names=lambda root: PROSTATE,
        binary_masks=True,
        note="Labels 1 and 2 of two sites both become prostate, as in HarmoFL; --label-maps keeps them.",
    ),
    "camelyon17": Layout(
        "metadata.csv and patches/ of WILDS; a site a hospital, no split cuts a patient.",
        find_camelyon17,
        label_names=lambda root: CAMELYON,
        note="WILDS's own split, by hospital, is not used.",
    ),
    "decathlon": Layout(
        "SITE/dataset.json as the Medical Segmentation Decathlon and MONAI have it, or one for one site.",
        find_decathlon,
        label_names=decathlon_names,
    ),
    "table": Layout(
        "A line an image in images.csv or --labels CSV: image, and label or mask; subject, split, site.",
        find_named_table,
        label_names=named_table_names,
    ),
    "masks": Layout("SITE/images/x with SITE/labels/x (or masks/x), or SITE/x beside SITE/x_mask.", find_masks),
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
