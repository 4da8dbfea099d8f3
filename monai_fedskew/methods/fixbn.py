"""FixBN: batch norm statistics are frozen after a warm-up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError

__all__ = ["FrozenStatistics", "fixbn"]


def fixbn(warmup: int = 10) -> Method:
    """Train with the federation's own batch norm statistics once the warm-up is over.

    Rounds 1 to ``warmup`` are FedAvg: a layer normalises by its batch and running statistics are averaged. From then
    on it normalises by the running statistics received, in training as in evaluation, and they no longer change; so
    local gradients no longer depend on what else is in a batch. Scale and shift go on training.

    Paper: Zhong et al. 2023, Making Batch Normalization Great in Federated Deep Learning, arXiv 2303.06530. It also
    keeps momentum from round to round, which is a setting of a run here: optimizer_state=keep. Only the abstract and
    reviews were at hand; half-way is when the comparison in Chen et al. 2025 (arXiv 2505.21877, public code) freezes.

    Args:
        warmup: rounds before the statistics are frozen, 0 or more; half of the run's is usual. 0 suits a network
            that comes with statistics. With as many rounds as the run has, or more, this is FedAvg.

    Raises:
        ConfigError: no whole number, or negative; or, when it meets a network, no running statistics to freeze.

    >>> fixbn(warmup=25).parts
    (FrozenStatistics(warmup=25),)
    """
    require_whole("method fixbn", "warmup", warmup, 0)
    return Method("fixbn", parts=(FrozenStatistics(warmup),), refuses=_REFUSES)


@dataclass(frozen=True)
class FrozenStatistics(Part):
    """Normalise by the shared running statistics after the warm-up, and leave them as they are."""

    name: ClassVar[str] = "fixbn"
    warmup: int

    def bind(self, site: SiteView) -> Bound:
        """Attach to every batch norm.

        Raises:
            ConfigError: the network has none with running statistics.
        """
        norms = [m for m in site.model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
        if not norms:
            raise ConfigError(
                f"site {site.name}: fixbn freezes running statistics of BatchNorm, and {type(site.model).__name__} "
                "has none. Build the network with batch norm (norm='batch' in MONAI's networks) or leave fixbn out"
            )
        return _Bound(self, norms)


class _Bound(Bound):
    def __init__(self, part: FrozenStatistics, norms: list[_BatchNorm]) -> None:
        self._warmup, self._norms = part.warmup, norms
        self._hooks: list[Any] = []

    def receive(self, cast: Broadcast) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        if cast.round > self._warmup:
            for norm in self._norms:
                self._hooks += _hold(norm)


def _hold(norm: _BatchNorm) -> list[Any]:
    """Let a layer see itself in evaluation for the length of each pass: MONAI's trainer calls train() in every step.

    Its mode is given back, so that what looks at it between passes finds that of the network. Functions without an
    owner, since a copy of the network takes them along and must not take a site.
    """
    modes: list[bool] = []

    def before(module: nn.Module, inputs: Any) -> None:
        modes.append(module.training)
        module.training = False

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        module.training = modes.pop()

    free: Callable[..., Any] = norm.register_forward_hook
    return [norm.register_forward_pre_hook(before), free(after, prepend=True, always_call=True)]


_WHY = (
    "fixbn freezes the running statistics that all sites share, and {} keeps them at the site: one that joins late, or "
    "was not sampled before, would train on statistics that nothing was measured for. Leave one of them out"
)
_REFUSES = {
    "fedbn": _WHY.format("fedbn"),
    "silobn": _WHY.format("silobn"),
    "local": _WHY.format("local"),
}
