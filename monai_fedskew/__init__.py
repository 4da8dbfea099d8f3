"""Federated learning under feature skew for MONAI bundles.

The names below are loaded when first used, so that ``import monai_fedskew`` and ``fedskew --help`` are instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monai_fedskew.core.method import Method, compose
    from monai_fedskew.core.part import Bound, Part
    from monai_fedskew.engines.simulator import simulate
    from monai_fedskew.errors import FedSkewError
    from monai_fedskew.federation.client import Client
    from monai_fedskew.federation.exchange import Transport
    from monai_fedskew.federation.server import Server
    from monai_fedskew.federation.settings import Settings
    from monai_fedskew.federation.study import run_study
    from monai_fedskew.methods import METHODS, parse_method
    from monai_fedskew.sites.bundle import BundleSite
    from monai_fedskew.sites.site import Site

__all__ = [
    "METHODS",
    "Bound",
    "BundleSite",
    "Client",
    "FedSkewError",
    "Method",
    "Part",
    "Server",
    "Settings",
    "Site",
    "Transport",
    "compose",
    "parse_method",
    "run_study",
    "simulate",
]

_HOME = {
    "METHODS": "methods",
    "Bound": "core.part",
    "BundleSite": "sites.bundle",
    "Client": "federation.client",
    "FedSkewError": "errors",
    "Method": "core.method",
    "Part": "core.part",
    "Server": "federation.server",
    "Settings": "federation.settings",
    "Site": "sites.site",
    "Transport": "federation.exchange",
    "compose": "core.method",
    "parse_method": "methods",
    "run_study": "federation.study",
    "simulate": "engines.simulator",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"monai_fedskew.{_HOME[name]}"), name)
    raise AttributeError(f"module 'monai_fedskew' has no attribute {name!r}")
