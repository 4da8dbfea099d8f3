"""One file, one method; ``METHODS`` is the table of them."""

from monai_fedskew.core.method import Factory, Method, parse
from monai_fedskew.methods.fedadagrad import fedadagrad
from monai_fedskew.methods.fedadam import fedadam
from monai_fedskew.methods.fedalign import fedalign
from monai_fedskew.methods.fedavg import fedavg
from monai_fedskew.methods.fedavgm import fedavgm
from monai_fedskew.methods.fedbn import fedbn
from monai_fedskew.methods.fedfa import fedfa
from monai_fedskew.methods.fedmix import fedmix
from monai_fedskew.methods.fednova import fednova
from monai_fedskew.methods.fedprox import fedprox
from monai_fedskew.methods.fedrdn import fedrdn
from monai_fedskew.methods.fedwon import fedwon
from monai_fedskew.methods.fedyogi import fedyogi
from monai_fedskew.methods.fixbn import fixbn
from monai_fedskew.methods.gradaug import gradaug
from monai_fedskew.methods.harmofl import harmofl
from monai_fedskew.methods.hbn import hbn
from monai_fedskew.methods.local import local
from monai_fedskew.methods.median import median
from monai_fedskew.methods.mixup import mixup
from monai_fedskew.methods.moon import moon
from monai_fedskew.methods.pooled import pooled
from monai_fedskew.methods.scaffold import scaffold
from monai_fedskew.methods.silobn import silobn
from monai_fedskew.methods.sitenorm import sitenorm
from monai_fedskew.methods.stochdepth import stochdepth
from monai_fedskew.methods.trimmed_mean import trimmed_mean

__all__ = [
    "METHODS",
    "fedadagrad",
    "fedadam",
    "fedalign",
    "fedavg",
    "fedavgm",
    "fedbn",
    "fedfa",
    "fedmix",
    "fednova",
    "fedprox",
    "fedrdn",
    "fedwon",
    "fedyogi",
    "fixbn",
    "gradaug",
    "harmofl",
    "hbn",
    "local",
    "median",
    "mixup",
    "moon",
    "parse_method",
    "pooled",
    "scaffold",
    "silobn",
    "sitenorm",
    "stochdepth",
    "trimmed_mean",
]

METHODS: dict[str, Factory] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedbn": fedbn,
    "silobn": silobn,
    "sitenorm": sitenorm,
    "fedrdn": fedrdn,
    "moon": moon,
    "mixup": mixup,
    "fednova": fednova,
    "scaffold": scaffold,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "fedfa": fedfa,
    "fedmix": fedmix,
    "fedalign": fedalign,
    "stochdepth": stochdepth,
    "gradaug": gradaug,
    "harmofl": harmofl,
    "fixbn": fixbn,
    "hbn": hbn,
    "fedwon": fedwon,
    "pooled": pooled,
}


def parse_method(text: str) -> Method:
    """Build a method from text, e.g. ``fedrdn+fedbn+fedprox:mu=0.2``; see `core.method.parse`.

    Raises:
        ConfigError: an unknown method or parameter, a value out of range, or pieces that cannot work together.

    >>> parse_method("fedbn+fedprox:mu=0.2").name
    'fedbn+fedprox:mu=0.2'
    """
    return parse(text, METHODS)
