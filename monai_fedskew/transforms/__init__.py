"""Site statistics and normalisation by them: of use with no federation."""

from monai_fedskew.transforms.normalise import NormaliseBatch, SiteNormaliser
from monai_fedskew.transforms.statistics import (
    SiteStatistics,
    StdMode,
    measure,
    require_comparable,
    require_definition,
)
from monai_fedskew.transforms.table import read_statistics, read_table, write_statistics

__all__ = [
    "NormaliseBatch",
    "SiteNormaliser",
    "SiteStatistics",
    "StdMode",
    "measure",
    "read_statistics",
    "read_table",
    "require_comparable",
    "require_definition",
    "write_statistics",
]
