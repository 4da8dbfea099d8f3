"""Site statistics and normalisation by them: of use with no federation.

MONAI's transforms among them are loaded when first used: a server has torch, not MONAI.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from monai_fedskew.transforms.site_normalize import RandSiteNormalize, SiteNormalize
    from monai_fedskew.transforms.site_normalized import (
        RandSiteNormalizeD,
        RandSiteNormalized,
        RandSiteNormalizeDict,
        SiteNormalizeD,
        SiteNormalized,
        SiteNormalizeDict,
    )

__all__ = [
    "AmplitudeBatch",
    "AmplitudeNormaliser",
    "GaussianRelease",
    "NormaliseBatch",
    "RandSiteNormalize",
    "RandSiteNormalizeD",
    "RandSiteNormalizeDict",
    "RandSiteNormalized",
    "Region",
    "SiteNormaliser",
    "SiteNormalize",
    "SiteNormalizeD",
    "SiteNormalizeDict",
    "SiteNormalized",
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

_HOME = {
    "RandSiteNormalize": "site_normalize",
    "RandSiteNormalizeD": "site_normalized",
    "RandSiteNormalizeDict": "site_normalized",
    "RandSiteNormalized": "site_normalized",
    "SiteNormalize": "site_normalize",
    "SiteNormalizeD": "site_normalized",
    "SiteNormalizeDict": "site_normalized",
    "SiteNormalized": "site_normalized",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"monai_fedskew.transforms.{_HOME[name]}"), name)
    raise AttributeError(f"module 'monai_fedskew.transforms' has no attribute {name!r}")
