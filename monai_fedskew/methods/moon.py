"""MOON: representations are held near the received model's and away from the site's own of last time."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, softplus

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant, require_whole
from monai_fedskew.core.state import State, require_same_keys, snapshot
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.networks.projection import ProjectionHead, with_projection

__all__ = ["Contrastive", "contrast", "moon"]


def moon(mu: float = 1.0, tau: float = 0.5, dim: int = 256, variant: Variant = "paper") -> Method:
    """Contrast the representation with the received model's and with the site's own of the last round it trained in.

    L + mu mean_b -log( e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)) ): z is the projection of the
    live network, z_g that of the network the round started from, z_p that of the site's own network as its local
    training left it last time, before any averaging; both in evaluation mode and without gradient. The last linear
    layer becomes a projection head (in -> in, ReLU, -> dim) with the classifier on z. Where entries stay at the site
    (FedBN), the network the round started from is what was received together with them. ``mu=0`` is FedAvg on the
    network with that head, bit for bit, and keeps nothing. The previous model is private state, as large as the
    network, and never leaves the site.

    In the first round a site trains in, the previous model is the one it received: both cosines are equal, the term is
    mu log 2 and has no gradient, so nothing is computed for it.

    Paper: Li et al. 2021, Model-Contrastive Federated Learning, CVPR, arXiv 2103.16257, section 3 (local objective).

    Args:
        mu: weight of the term, 0 or more; published settings are 0.001 to 10.
        tau: temperature, above 0.
        dim: width of the projection, 2 or more (the cosine of two numbers has no slope).
        variant: "official" has no term at all in a site's first round, as the public code, whose pool of previous
            models is empty then. The steps made are the same; only the value of the loss differs.

    Raises:
        ConfigError: a value out of range; at a site, a network without a linear classifier.

    >>> moon(mu=5).parts
    (Contrastive(mu=5.0, tau=0.5, dim=256, variant='paper'),)
    """
    require_number("method moon", "mu", mu, least=0)
    require_number("method moon", "tau", tau, above=0)
    require_whole("method moon", "dim", dim, 2)
    require_variant("method moon", variant)
    return Method("moon", parts=(Contrastive(float(mu), float(tau), dim, variant),))


def contrast(z: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """Return the mean contrastive loss of representations (B, D), MOON's InfoNCE with one negative.

    -log(e^a / (e^a + e^b)) = log(1 + e^(b - a)), a = cos(z, received) / tau, b = cos(z, previous) / tau.

    >>> one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(contrast(one, one, other, 0.5).item(), 4)  # log(1 + e^-2)
    0.1269
    """
    z, received, previous = (value.float() if value.element_size() < 4 else value for value in (z, received, previous))
    difference = cosine_similarity(z, previous, dim=1) - cosine_similarity(z, received, dim=1)
    return softplus(difference / tau).mean()


@dataclass(frozen=True)
class Contrastive(Part):
    """Add the model-contrastive term to the loss."""

    name: ClassVar[str] = "moon"
    stages: ClassVar[tuple[str, ...]] = ("add",)
    mu: float
    tau: float
    dim: int
    variant: Variant

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        """Give the network a projection head; torch is seeded with ``seed`` already."""
        return with_projection("method moon", model, self.dim)

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; mu = 0 attaches nothing."""
        return _Bound(self, site) if self.mu else Bound()


class _Bound(Bound):
    def __init__(self, part: Contrastive, site: SiteView) -> None:
        self._part, self._site = part, site
        self._start: dict[str, Tensor] = {}  # the network this round started from, on its device
        self._previous: State = {}  # the site's own, as its last local training left it
        self._moved: State | None = None  # the same on the network's device, once a round
        self._live: Tensor | None = None
        self._seen: list[Tensor] | None = None  # where a reference pass leaves its projection
        heads = [module for module in site.model.modules() if isinstance(module, ProjectionHead)]
        if not heads:
            raise ConfigError(f"site {site.name}: moon finds no projection head; let the part adapt the network first")
        heads[-1].project.register_forward_hook(self._keep)
        site.add(part, "add", self._add)

    def receive(self, cast: Broadcast) -> None:
        self._live = self._moved = None
        model = self._site.model
        entries = model.state_dict()
        # A copy, and of all entries: after the first forward pass not even the running statistics are those of now.
        # A layer that is held twice goes by one of its names: functional_call refuses both.
        names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        self._start = {name: entries[name].detach().clone() for name in names if name in entries}

    def end_round(self) -> State:
        model = self._site.model
        self._previous, self._moved, self._start = snapshot(model, model.state_dict()), None, {}
        return {}

    def private(self) -> State:
        return self._previous

    def restore(self, state: State) -> None:
        if state:
            what = f"site {self._site.name}: previous model of moon"
            require_same_keys(what, self._site.model.state_dict(), state)
        self._previous, self._moved = dict(state), None

    def _keep(self, module: nn.Module, args: object, output: Tensor) -> None:
        if self._seen is not None:
            self._seen.append(output)
        elif module.training and torch.is_grad_enabled() and self._live is None:
            self._live = output

    def _add(self, output: Mapping[str, Tensor]) -> Tensor:
        loss, z, self._live = output["loss"], self._live, None
        if not self._previous:
            return loss if self._part.variant == "official" else loss + self._part.mu * math.log(2)
        images = output["image"]
        if z is None or len(z) != len(images):
            raise RoundError(
                f"site {self._site.name}: moon saw {'no' if z is None else len(z)} projections of a batch of "
                f"{len(images)}; the trainer must pass the whole batch through the network at once"
            )
        received, previous = self._references(images)
        return loss + self._part.mu * contrast(z, received, previous, self._part.tau)

    def _references(self, images: Tensor) -> list[Tensor]:
        model = self._site.model
        seen: list[Tensor] = []
        if self._moved is None:
            self._moved = {key: self._previous[key].to(value.device) for key, value in self._start.items()}
        with self._site.replay(self._part), torch.no_grad():
            model.eval()
            self._seen = seen
            try:
                for state in (self._start, self._moved):
                    functional_call(model, dict(state), (images,))
            finally:
                self._seen = None
        if len(seen) != 2:
            raise RoundError(f"site {self._site.name}: moon saw {len(seen)} projections of its two reference models")
        return seen
