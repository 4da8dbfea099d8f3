"""One file, one method; ``METHODS`` is the table of them."""

from monai_fedskew.core.method import Factory
from monai_fedskew.methods.fedavg import fedavg
from monai_fedskew.methods.fedbn import fedbn
from monai_fedskew.methods.fedprox import fedprox
from monai_fedskew.methods.fedrdn import fedrdn
from monai_fedskew.methods.local import local
from monai_fedskew.methods.pooled import pooled
from monai_fedskew.methods.silobn import silobn
from monai_fedskew.methods.sitenorm import sitenorm

__all__ = ["METHODS", "fedavg", "fedbn", "fedprox", "fedrdn", "local", "pooled", "silobn", "sitenorm"]

METHODS: dict[str, Factory] = {
    "local": local,
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedbn": fedbn,
    "silobn": silobn,
    "sitenorm": sitenorm,
    "fedrdn": fedrdn,
    "pooled": pooled,
}
