"""One image as it was found on disk: what a layout hands to preparation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ImageSource", "SplitOfList"]

SplitOfList = Literal["", "train", "validation", "test"]


@dataclass(frozen=True)
class ImageSource:
    """One image of one site, and what is known of it.

    Args:
        site: name of the site.
        id: name of the image, unique within the site.
        files: the image's files; several are its channels, in order. A folder is a DICOM series.
        label: name of its class; None where a mask says more.
        mask: label map of the image, whole numbers; None for classification.
        group: what no split may cut, usually the patient; empty for the image itself.
        split: where a published list puts it; empty where there is none.

    Example:
        >>> ImageSource("dslr", "mug/frame_0001", (Path("mug/frame_0001.jpg"),), label="mug").split
        ''
    """

    site: str
    id: str
    files: tuple[Path, ...]
    label: str | None = None
    mask: Path | None = None
    group: str = ""
    split: SplitOfList = ""
