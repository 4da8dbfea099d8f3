"""HBN: batch norm becomes a learnable mix of the batch's statistics and unbiased global ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.core.keys import except_modules
from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.hybrid_norm import HybridNorm
from monai_fedskew.networks.replace import replace_modules

__all__ = ["HybridStatistics", "hbn"]


def hbn(momentum: float = 1.0, variant: Variant = "paper") -> Method:
    """Replace every batch norm by a mix of the batch's statistics and those of all sites.

    Training normalises by (1 - a) m + a m_B and (1 - a) v + a v_B, with a learnable a = sigmoid(mix) a channel that
    starts at 1/2 and stays at the site; evaluation by (m, v). The global statistics are updated apart from the
    weights: each site measures (m_k, v_k) with the network it received, not the one it is changing, and
    m = sum_k p_k m_k, v = sum_k p_k (v_k + (m_k - m)^2), which counts what lies between sites. p_k are the run's
    weights. So the statistics a model is evaluated with are those of the model one round before it: this is for rounds
    of few steps. The authors' code measures once more before each test, an exchange of its own that a round does not
    have here. (Measuring with what the local steps leave was tried on one seed: better on ABIDE, with some 40 to
    200 steps a round, and much worse on digits, with fifteen.)

    A site measures during its first local epoch, over the very batches it trains on, as they are normalised: one
    more forward pass a batch. Only the means of a channel leave the site, as with batch norm. A batch of one
    vector can be trained on. Instance and other norms stay.

    Paper: Chen et al. 2025, Hybrid Batch Normalisation: Resolving the Dilemma of Batch Normalisation in Federated
    Learning, ICML, arXiv 2505.21877. Where only its abstract and code could be read, the code was followed: mix per
    channel, per site, through a sigmoid, from 0.

    Args:
        momentum: share of a round's measurement in the global statistics, in (0, 1]; below 1 smooths over rounds, as
            few sites or small batches may need. The public code trains with 0.002 and tests with 1.
        variant: "official" measures as the public code: the first batch of a round only, and the mixed statistics
            instead of the batch's own, which takes the variance between sites for smaller than it is. (There the
            batch is always the same 64 examples, and the divisor is n - 1.)

    Raises:
        ConfigError: momentum is out of range, or the variant unknown; or, when it meets a network, no batch norm.

    >>> hbn(momentum=0.5).parts
    (HybridStatistics(momentum=0.5, variant='paper'),)
    """
    require_number("method hbn", "momentum", momentum, above=0, most=1)
    require_variant("method hbn", variant)
    share = except_modules(types=(HybridNorm,), entries=("mix",))
    return Method("hbn", share=share, parts=(HybridStatistics(float(momentum), variant),), refuses=_REFUSES)


@dataclass(frozen=True)
class HybridStatistics(Part):
    """Put hybrid layers in the place of batch norms and measure their global statistics."""

    name: ClassVar[str] = "hbn"
    stages: ClassVar[tuple[str, ...]] = ("mix",)
    momentum: float
    variant: Variant

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        """Replace the batch norms, with their affine pairs and running statistics.

        Raises:
            ConfigError: there is none.
        """
        if not any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise ConfigError(
                f"method hbn replaces BatchNorm, and {type(model).__name__} has none. Build the network with batch "
                "norm (norm='batch' in MONAI's networks) or leave hbn out"
            )
        return replace_modules(model, lambda m: HybridNorm.like(m) if isinstance(m, _BatchNorm) else m)

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return _Bound(self, site)


class _Bound(Bound):
    def __init__(self, part: HybridStatistics, site: SiteView) -> None:
        self._part, self._site = part, site
        self._layers = {m: _Moments() for m in site.model.modules() if isinstance(m, HybridNorm)}
        self._received: dict[str, Tensor] = {}  # parameters, while there is something left to measure
        self._seen, self._wanted = 0, 1 if part.variant == "official" else site.samples
        site.add(part, "mix", self._measure)

    def receive(self, cast: Broadcast) -> None:
        self._seen, self._received = 0, {}
        for moments in self._layers.values():
            moments.clear()

    def _measure(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._seen < self._wanted:
            model = self._site.model
            if not self._received:  # the first batch of the round: no step was made yet
                self._received = {name: value.detach().clone() for name, value in model.named_parameters()}
            hooks = [layer.register_forward_pre_hook(self._watch(layer)) for layer in self._layers]
            try:
                with self._site.replay(self._part), torch.no_grad():
                    model.train()
                    torch.func.functional_call(model, self._received, (inputs,))
            finally:
                for hook in hooks:
                    hook.remove()
            self._seen += len(inputs)
            if self._seen >= self._wanted:
                self._received = {}
        return inputs, targets

    def _watch(self, layer: HybridNorm) -> Callable[[nn.Module, Any], None]:
        moments, measure = self._layers[layer], layer.mixed if self._part.variant == "official" else layer.batch

        def before(module: nn.Module, args: Any) -> None:
            moments.add(args[0].numel() // layer.features, *measure(args[0]))

        return before

    def end_round(self) -> State:
        for layer, moments in self._layers.items():
            if moments.count:  # a layer that no batch reached keeps what it has
                layer.observe(*moments.whole(), self._part.momentum)
        return {}


class _Moments:
    """Mean and variance of all batches together, from those of each; in float64, like all sums over many values."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)

    def add(self, count: int, mean: Tensor, variance: Tensor) -> None:
        mean, variance = mean.cpu().double(), variance.cpu().double()
        total = self.count + count
        step = (mean - self._mean) * (count / total)  # Chan et al. 1979: stable for means far from 0
        self._squares = self._squares + variance * count + step * (mean - self._mean) * self.count
        self._mean, self.count = self._mean + step, total

    def whole(self) -> tuple[Tensor, Tensor]:
        return self._mean, self._squares / self.count


_WHY = "hbn replaces batch norm by layers with statistics of their own, so that {} would find no batch norm; choose one"
_REFUSES = {
    **{name: _WHY.format(name) for name in ("fedbn", "silobn", "fixbn")},
    "fedalign": "fedalign narrows a stage, and hbn's layers have no statistics to mix at that width; choose one",
}
