"""Ignite handlers, of use in any MONAI trainer."""

from monai_fedskew.handlers.aggregate_shared import AggregateShared
from monai_fedskew.handlers.epoch_log import EpochLog
from monai_fedskew.handlers.predictions import PredictionsWriter
from monai_fedskew.handlers.proximal import ProximalTerm

__all__ = ["AggregateShared", "EpochLog", "PredictionsWriter", "ProximalTerm"]
