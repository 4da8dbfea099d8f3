"""FedNova: what a site moved is divided by how far its local steps would take anybody."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from monai_fedskew.core.aggregate import Weights
from monai_fedskew.core.messages import Broadcast, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.handlers.proximal import ProximalDistance, anchored
from monai_fedskew.methods.fedopt import heavy_ball, mean_of
from monai_fedskew.methods.local_sgd import require_sgd

__all__ = ["LocalProgress", "NormalisedMean", "UnitWalk", "fednova"]


def fednova(mu: float = 0.0, gmf: float = 0.0) -> Method:
    """Normalise each site's movement by its number of local steps before averaging.

    x <- x - t sum_k p_k (x - y_k) / a_k,  t = sum_k p_k t_k, for parameters; running statistics are averaged. a_k is
    how far the site's optimizer would go against a gradient of 1 in every step (the L1 norm of the paper's vector a_k,
    times the learning rate): tau_k lr for plain SGD; c <- momentum c + 1, a += lr c with momentum; a <- (1 - lr mu) a +
    lr with a proximal term; and by the same linearity all of these together, Nesterov's form and a learning rate that
    changes within the round. t_k is a_k without the proximal term. Sites of equal a_k give FedAvg bit for bit (mu=0).

    Momentum buffers start at zero in every round, also where the run keeps optimizer state, since a_k counts from
    there. Weight decay counts as a part of the gradient.

    Paper: Wang et al. 2020, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
    NeurIPS, arXiv 2007.07481, section 5. The public code lets the proximal term slip into the momentum buffer, which
    its a_k leaves out of account, and with mu > 0 takes the number of steps for t_k even with momentum; without
    momentum there is no difference.

    Args:
        mu: weight of a proximal term mu/2 ||w - x||^2 that is added to the loss, 0 or more.
        gmf: momentum of the server over rounds, in [0, 1).

    Raises:
        ConfigError: a value out of range; or, at a site, an optimizer other than torch's SGD or with ``dampening``,
            ``maximize`` or a momentum that differs between parameter groups.

    >>> fednova(mu=0.1).parts
    (LocalProgress(mu=0.1),)
    """
    require_number("method fednova", "mu", mu, least=0)
    require_number("method fednova", "gmf", gmf, least=0, below=1)
    refuses = {"fedprox": "fednova's normalisation must know the weight of the proximal term; write fednova:mu=..."}
    return Method("fednova", parts=(LocalProgress(float(mu)),), aggregate=NormalisedMean(float(gmf)), refuses=refuses)


@dataclass(frozen=True)
class LocalProgress(Part):
    """Count how far the local steps go, and add the proximal term."""

    name: ClassVar[str] = "fednova"
    stages: ClassVar[tuple[str, ...]] = ("add", "clip")
    reports: ClassVar[bool] = True
    mu: float

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return _Bound(self, site)

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Remember nothing, but see that what is reported can be divided by.

        Raises:
            StateError: a report that is no pair of finite numbers above 0.
        """
        for site, report in reports.items():
            for entry in ("a", "tau"):
                value = report.get(entry)
                is_number = value is not None and value.shape == () and value.dtype == torch.float64
                if value is None or not is_number or not 0 < value.item() < math.inf:
                    raise StateError(
                        f"site {site}: fednova's {entry} is {'absent' if value is None else value.tolist()}, but must "
                        "be one float64 above 0; use one version everywhere"
                    )
        return memory


class UnitWalk:
    """How far SGD goes in one weight whose loss has the slope 1 and a proximal term.

    >>> walk = UnitWalk(mu=0.0)
    >>> for _ in range(3): walk.step(lr=1.0, momentum=0.5, is_nesterov=False)
    >>> walk.way  # 1 + 1.5 + 1.75
    4.25
    """

    def __init__(self, mu: float) -> None:
        self._mu, self._buffer, self.way = mu, 0.0, 0.0

    def step(self, lr: float, momentum: float, is_nesterov: bool) -> None:
        """Make the step torch's SGD would make."""
        gradient = 1.0 - self._mu * self.way
        self._buffer = momentum * self._buffer + gradient
        self.way += lr * (gradient + momentum * self._buffer if is_nesterov else self._buffer)


class _Bound(Bound):
    def __init__(self, part: LocalProgress, site: SiteView) -> None:
        self._part, self._site = part, site
        self._distance: Callable[[], Tensor] | None = None
        require_sgd(part.name, site, without=("dampening", "maximize"), why="it counts how often a gradient is added")
        _common_momentum(site)
        self._begin()
        site.add(part, "clip", self._count)
        if part.mu:
            site.add(part, "add", self._add)

    def receive(self, cast: Broadcast) -> None:
        self._begin()
        if self._part.mu:
            pairs = anchored(self._site.model, cast.tensors)
            self._distance = ProximalDistance(self._part.mu, "paper", pairs) if pairs else None

    def end_round(self) -> State:
        self._site.optimizer.state.clear()  # here too: what is cleared at the start need not be kept until then
        told = {"a": self._with_term.way, "tau": self._without.way}
        if not all(0 < way < math.inf for way in told.values()):
            raise RoundError(
                f"site {self._site.name}: fednova cannot normalise a round that goes as far as {told['a']:g}; the "
                "learning rate must be above 0 in some step, and mu times it well below 2"
            )
        return {name: torch.tensor(way, dtype=torch.float64) for name, way in told.items()}

    def _begin(self) -> None:
        self._site.optimizer.state.clear()
        self._with_term, self._without = UnitWalk(self._part.mu), UnitWalk(0.0)
        self._shares: list[float] | None = None

    def _add(self, output: Mapping[str, Tensor]) -> Tensor:
        loss = output["loss"]
        return loss if self._distance is None else loss + self._distance()

    def _count(self) -> None:
        momentum, is_nesterov = _common_momentum(self._site)
        lr = self._learning_rate()
        self._with_term.step(lr, momentum, is_nesterov)
        self._without.step(lr, momentum, is_nesterov)

    def _learning_rate(self) -> float:
        """The mean over parameter groups, for all of them as long as their proportions stay."""
        rates = [float(group["lr"]) for group in self._site.optimizer.param_groups]
        total = sum(rates)
        if len(rates) > 1 and total:
            shares = [rate / total for rate in rates]
            fixed = [1 / len(rates)] * len(rates) if self._part.mu else self._shares or shares
            if not all(math.isclose(s, f, rel_tol=1e-6, abs_tol=1e-12) for s, f in zip(shares, fixed, strict=True)):
                need = "be equal with mu > 0" if self._part.mu else "keep their proportions within a round"
                raise RoundError(
                    f"site {self._site.name}: the learning rates of the parameter groups are {rates}; for fednova "
                    f"they must {need}"
                )
            self._shares = fixed
        return total / len(rates)


@dataclass(frozen=True)
class NormalisedMean:
    """Average the sites' directions and go as far as they would together; see ``fednova``."""

    gmf: float

    def init(self, current: State) -> State:
        """Return no memory."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the server's momentum, if any, and the next shared tensors.

        Raises:
            StateError: an update that does not tell how far its steps go.
        """
        states, shares = [u.tensors for u in updates], [weights[u.site] for u in updates]
        a, tau = ([_told(update, entry) for update in updates] for entry in ("a", "tau"))
        if len({*a, *tau}) == 1:
            tensors = mean_of(states, shares, current)
        else:
            # x - t sum p (x - y) / a is a mean of x and all y, with weights that sum to 1 but may be negative
            together = sum(p * t for p, t in zip(shares, tau, strict=True))
            own = [together * p / n for p, n in zip(shares, a, strict=True)]
            tensors = mean_of(states, shares, current.keys() - parameters)
            tensors |= mean_of([current, *states], [1 - sum(own), *own], parameters)
        if not self.gmf:
            return memory, tensors
        return heavy_ball(memory, current, tensors, parameters, lr=1.0, decay=self.gmf)


def _told(update: Update, entry: str) -> float:
    report = update.aux.get(LocalProgress.name, {})
    if entry not in report:
        raise StateError(f"site {update.site}: its update lacks fednova's {entry}; use the same method everywhere")
    return float(report[entry])


def _common_momentum(site: SiteView) -> tuple[float, bool]:
    found = {(float(group["momentum"]), bool(group["nesterov"])) for group in site.optimizer.param_groups}
    if len(found) > 1:
        told = ", ".join(f"momentum={m:g} nesterov={n}" for m, n in sorted(found))
        raise ConfigError(f"site {site.name}: fednova needs one momentum in all parameter groups, not {told}")
    return found.pop()
