"""FedProx: local training is held near the model the round started from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.handlers.proximal import ProximalDistance, anchored

__all__ = ["Proximal", "fedprox"]


def fedprox(mu: float = 0.01, variant: Variant = "paper") -> Method:
    """Hold local training near the round's first model by a squared distance.

    L_k(w) + mu/2 ||w - w_g||^2 over the trained parameters that are shared, w_g a copy of what was received.
    ``mu=0`` is FedAvg bit for bit.

    Paper: Li et al. 2020, Federated Optimization in Heterogeneous Networks, arXiv 1812.06127, eq. 2.

    Args:
        mu: weight of the term, 0 or more. FedBN's ABIDE experiment uses 0.2.
        variant: "official" follows FedBN's Office script: mu/2 ||w - w_g|| without the square, and no term in the
            first round. The script also leaves the term out in the first step of every local epoch; here the first
            step of a round adds nothing, because w is w_g, while with more local epochs the first steps of the later
            ones keep it (``ProximalTerm``, which sees the trainer, leaves them out too).

    Raises:
        ConfigError: mu is negative or not finite, or the variant is unknown.

    >>> fedprox(mu=0.2).parts
    (Proximal(mu=0.2, variant='paper'),)
    """
    require_number("method fedprox", "mu", mu, least=0)
    require_variant("method fedprox", variant)
    return Method("fedprox", parts=(Proximal(float(mu), variant),))


@dataclass(frozen=True)
class Proximal(Part):
    """Add the proximal term to the loss."""

    name: ClassVar[str] = "proximal"
    stages: ClassVar[tuple[str, ...]] = ("add",)
    mu: float
    variant: Variant

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; mu = 0 attaches nothing."""
        return _Bound(self, site) if self.mu else Bound()


class _Bound(Bound):
    def __init__(self, part: Proximal, site: SiteView) -> None:
        self._part, self._site = part, site
        self._distance: Callable[[], Tensor] | None = None
        site.add(part, "add", self._add)

    def receive(self, cast: Broadcast) -> None:
        is_first = self._part.variant == "official" and cast.round <= 1
        pairs = anchored(self._site.model, cast.tensors)
        self._distance = ProximalDistance(self._part.mu, self._part.variant, pairs) if pairs and not is_first else None

    def _add(self, output: Mapping[str, Tensor]) -> Tensor:
        loss = output["loss"]
        return loss if self._distance is None else loss + self._distance()
