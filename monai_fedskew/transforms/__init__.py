"""Site statistics and normalisation by them: of use with no federation."""

from monai_fedskew.transforms.amplitude import AmplitudeBatch, AmplitudeNormaliser, mean_amplitude
from monai_fedskew.transforms.normalise import NormaliseBatch, SiteNormaliser
from monai_fedskew.transforms.private_statistics import GaussianRelease, privacy_cost
from monai_fedskew.transforms.statistics import (
    SiteStatistics,
    StdMode,
    measure,
    require_comparable,
    require_definition,
)
from monai_fedskew.transforms.table import read_statistics, read_table, write_statistics

__all__ = [
    "AmplitudeBatch",
    "AmplitudeNormaliser",
    "GaussianRelease",
    "NormaliseBatch",
    "SiteNormaliser",
    "SiteStatistics",
    "StdMode",
    "mean_amplitude",
    "measure",
    "privacy_cost",
    "read_statistics",
    "read_table",
    "require_comparable",
    "require_definition",
    "write_statistics",
]
