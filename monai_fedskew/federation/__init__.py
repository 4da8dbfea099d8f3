"""Rounds between a server and its sites; knows no algorithm and no transport."""

from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.sampling import sample_sites
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

__all__ = ["Client", "Server", "Settings", "SiteSource", "sample_sites"]
