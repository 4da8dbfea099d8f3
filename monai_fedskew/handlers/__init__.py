"""Ignite handlers, of use in any MONAI trainer.

Loaded when first used: a server that only parses a method needs neither ignite nor MONAI, which take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monai_fedskew.handlers.aggregate_shared import AggregateShared
    from monai_fedskew.handlers.class_log import ClassLog
    from monai_fedskew.handlers.epoch_log import EpochLog
    from monai_fedskew.handlers.mask_file import MaskFile
    from monai_fedskew.handlers.masks import MaskPictures
    from monai_fedskew.handlers.predictions import PredictionsWriter
    from monai_fedskew.handlers.proximal import ProximalTerm
    from monai_fedskew.handlers.segmentation import SegmentationWriter

__all__ = [
    "AggregateShared",
    "ClassLog",
    "EpochLog",
    "MaskFile",
    "MaskPictures",
    "PredictionsWriter",
    "ProximalTerm",
    "SegmentationWriter",
]

_HOME = {
    "AggregateShared": "aggregate_shared",
    "ClassLog": "class_log",
    "EpochLog": "epoch_log",
    "MaskFile": "mask_file",
    "MaskPictures": "masks",
    "PredictionsWriter": "predictions",
    "ProximalTerm": "proximal",
    "SegmentationWriter": "segmentation",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
