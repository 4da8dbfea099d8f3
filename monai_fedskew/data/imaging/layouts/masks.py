"""Labels by mask: SITE/images/x with SITE/labels/x, or x and x_mask side by side."""

import re
from pathlib import Path

from monai_fedskew.data.imaging.found import folders_in, images_in, stem
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import DataError

__all__ = ["SUFFIX", "find_masks", "pair"]

_IMAGES = ("images", "image", "imgs", "imagestr")
_MASKS = ("labels", "masks", "label", "mask", "segmentations", "annotations", "labelstr")
SUFFIX = re.compile(r"_(mask|seg|segmentation|label|labels)$", re.IGNORECASE)


def find_masks(root: Path) -> list[ImageSource] | None:
    """Find images with a mask each.

    Either ``SITE/images/x`` with ``SITE/labels/x`` or ``SITE/masks/x`` (which may have a suffix such as ``_mask``), or
    ``SITE/x`` with ``SITE/x_mask``, ``x_seg``, ``x_segmentation`` or ``x_label`` beside it. A folder of DICOM files is
    one image. Nothing says which images are of one subject: see ``--subject-pattern``, or give a table.
    """
    found: list[ImageSource] = []
    for folder in folders_in(root):
        places = _places(folder)
        if places is not None:
            found += pair(folder.name, *places)
    return found or None


def pair(site: str, images: list[Path], masks: list[Path]) -> list[ImageSource]:
    """Bring images and masks together by their names.

    Raises:
        DataError: an image without mask, or with two.
    """
    known: dict[str, Path] = {}
    for mask in masks:
        for name in {stem(mask), SUFFIX.sub("", stem(mask))}:
            other = known.setdefault(name, mask)
            if other != mask:
                raise DataError(f"site {site}: {other} and {mask} would both be the mask of {name!r}; keep one")
    alone = next((image for image in images if stem(image) not in known), None)
    if alone is not None:
        raise DataError(f"site {site}: {alone} has no mask; add it, or take the image out of the folder")
    return [ImageSource(site, stem(image), (image,), mask=known[stem(image)]) for image in images]


def _places(folder: Path) -> tuple[list[Path], list[Path]] | None:
    inside = {path.name.lower(): path for path in folders_in(folder)}
    images = next((inside[name] for name in _IMAGES if name in inside), None)
    masks = next((inside[name] for name in _MASKS if name in inside), None)
    if images is not None and masks is not None:
        return images_in(images), images_in(masks)
    flat = images_in(folder)
    is_mask = {path: bool(SUFFIX.search(stem(path))) for path in flat}
    if not any(is_mask.values()):
        return None
    return [path for path in flat if not is_mask[path]], [path for path in flat if is_mask[path]]
