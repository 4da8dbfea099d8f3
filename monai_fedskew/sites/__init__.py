"""A hospital's end of a federation: bundle, data, private state."""

from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site

__all__ = ["BundleSite", "Site"]
