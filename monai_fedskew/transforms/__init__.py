"""Site statistics and normalisation by them: of use with no federation."""

from monai_fedskew.transforms.amplitude import AmplitudeBatch, AmplitudeNormaliser, mean_amplitude
from monai_fedskew.transforms.calculator import StatisticsCalculator
from monai_fedskew.transforms.measure import measure, measure_files
from monai_fedskew.transforms.normalise import NormaliseBatch, SiteNormaliser
from monai_fedskew.transforms.private_statistics import GaussianRelease, privacy_cost
from monai_fedskew.transforms.statistics import (
    Region,
    SiteStatistics,
    StdMode,
    require_comparable,
    require_definition,
)
from monai_fedskew.transforms.table import read_statistics, read_table, write_statistics

__all__ = [
    "AmplitudeBatch",
    "AmplitudeNormaliser",
    "GaussianRelease",
    "NormaliseBatch",
    "Region",
    "SiteNormaliser",
    "SiteStatistics",
    "StatisticsCalculator",
    "StdMode",
    "mean_amplitude",
    "measure",
    "measure_files",
    "privacy_cost",
    "read_statistics",
    "read_table",
    "require_comparable",
    "require_definition",
    "write_statistics",
]
