"""FedProx's proximal term: its mathematics, and the handler that adds it to any MONAI trainer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from monai_fedskew.core.keys import KeyFilter
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError
from monai_fedskew.handlers.trainer import network_of

if TYPE_CHECKING:
    from ignite.engine import Engine

__all__ = ["ProximalDistance", "ProximalTerm", "anchored"]


class ProximalDistance:
    """Compute ``mu/2 ||w - w_g||^2`` ("paper") or ``mu/2 ||w - w_g||`` ("official") and its gradient.

    Args:
        mu: weight of the term, 0 or more.
        form: "paper" (Li et al. 2020) squares the norm; "official" does not, as FedBN's Office script.
        pairs: trained parameters, each with the value it is drawn to (copied here).

    >>> w = nn.Parameter(torch.tensor([3.0]))
    >>> term = ProximalDistance(0.5, "paper", [(w, torch.tensor([1.0]))])()
    >>> term.backward(); term.item(), w.grad.tolist()
    (1.0, [1.0])
    """

    def __init__(self, mu: float, form: Variant, pairs: list[tuple[nn.Parameter, Tensor]]) -> None:
        self._mu, self._form = mu, form
        self._parameters = [parameter for parameter, _ in pairs]
        # A copy: a list of live parameters would make the distance zero for ever.
        self._anchors = [anchor.detach().to(parameter.device, copy=True) for parameter, anchor in pairs]

    def __call__(self) -> Tensor:
        """Return the term, a scalar tied to the parameters."""
        if not self._parameters:
            return torch.zeros(())
        is_squared = self._form == "paper"
        value: Tensor = _Distance.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._mu, is_squared, self._anchors, *self._parameters
        )
        return value


class ProximalTerm:
    """Add FedProx's proximal term to the loss of a MONAI trainer.

    ``loss + mu/2 ||w - w_g||^2`` with w_g the trained parameters at the start of the round, that is every ``every``
    epochs. Beside ``AggregateShared`` give both the same ``every`` and ``share``: w_g is then the last average.

    Paper: Li et al. 2020, Federated Optimization in Heterogeneous Networks, arXiv 1812.06127, eq. 2.

    Args:
        mu: weight of the term, 0 or more; 0 adds nothing at all.
        every: local epochs a round, 1 or more.
        share: which entries are shared; the term covers the trained parameters among them. None covers all.
        variant: "official" takes the norm without the square, and nothing in the first round and in the first step of
            an epoch, as FedBN's Office script.

    Raises:
        ConfigError: a parameter out of range, or an engine without ``network``.

    >>> ProximalTerm(mu=0.2).mu
    0.2
    """

    def __init__(
        self, mu: float = 0.01, *, every: int = 1, share: KeyFilter | None = None, variant: Variant = "paper"
    ) -> None:
        require_number("ProximalTerm", "mu", mu, least=0)
        require_variant("ProximalTerm", variant)
        if every < 1:
            raise ConfigError(f"ProximalTerm: every={every!r} must be 1 or more local epochs")
        self.mu, self.every, self.share, self.variant = mu, every, share, variant
        self._distance: ProximalDistance | None = None

    def attach(self, engine: "Engine") -> None:
        """Register the handler."""
        from ignite.engine import (
            Events,  # here: a server that parses a method has no use for MONAI, which takes seconds
        )
        from monai.engines import Workflow
        from monai.engines.utils import IterationEvents

        if not isinstance(engine, Workflow):
            raise ConfigError(f"ProximalTerm: {type(engine).__name__} has no loss event; attach it to a MONAI trainer")
        if self.mu > 0:
            engine.add_event_handler(Events.EPOCH_STARTED, self._take_anchor)
            engine.add_event_handler(IterationEvents.LOSS_COMPLETED, self._add)

    def _take_anchor(self, engine: Any) -> None:
        if (engine.state.epoch - 1) % self.every == 0:
            network = network_of(engine, "ProximalTerm")
            entries = network.state_dict()
            shared = entries if self.share is None else {key: entries[key] for key in self.share(network)}
            self._distance = ProximalDistance(self.mu, self.variant, anchored(network, shared))

    def _add(self, engine: Any) -> None:
        if self._distance is None:
            raise ConfigError("ProximalTerm: no epoch was started; run the trainer through run()")
        if self.variant == "official":
            is_first_step = (engine.state.iteration - 1) % engine.state.epoch_length == 0
            if engine.state.epoch <= self.every or is_first_step:
                return
        engine.state.output["loss"] = engine.state.output["loss"] + self._distance()


def anchored(model: nn.Module, shared: State) -> list[tuple[nn.Parameter, Tensor]]:
    """Return the parameters that are shared and trained, each with its shared value."""
    parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
    return [(p, shared[key]) for key, p in parameters.items() if key in shared and p.requires_grad]


class _Distance(torch.autograd.Function):
    """Forward and backward over all tensors at once; left to autograd it would cost a third of a small step."""

    @staticmethod
    def forward(ctx: Any, mu: float, is_squared: bool, anchors: list[Tensor], *parameters: Tensor) -> Tensor:
        difference = torch._foreach_sub(parameters, anchors)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(difference)))
        ctx.difference, ctx.mu, ctx.norm = difference, mu, None if is_squared else norm
        return norm.square().mul_(mu / 2) if is_squared else norm * (mu / 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.norm is None:
            scale = grads[0] * ctx.mu
        else:  # at distance 0 the norm has no gradient: 0 is taken
            scale = torch.where(ctx.norm > 0, grads[0] * (ctx.mu / 2) / ctx.norm, 0.0)
        return None, None, None, *torch._foreach_mul(ctx.difference, scale)
