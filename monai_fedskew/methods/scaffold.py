"""SCAFFOLD: each site's gradient is corrected by how it differs from that of all sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from monai_fedskew.core.aggregate import Weights
from monai_fedskew.core.messages import Broadcast, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.state import State, nest, own, unnest
from monai_fedskew.errors import RoundError, StateError
from monai_fedskew.methods.fedopt import mean_of, moved
from monai_fedskew.methods.local_sgd import require_sgd

__all__ = ["ControlVariates", "ControlledMean", "scaffold"]

_SHAPE, _DELTA, _SUM, _COUNT = "shape", "delta", "sum", "count"  # groups of what is reported and remembered


def scaffold(lr: float = 1.0) -> Method:
    """Correct every local gradient by the difference of the sites' mean gradient and the site's own.

    y <- y - eta (g - c_k + c);  c_k <- c_k - c + (x - y) / sum(eta)  (option II, for learning rates that may change
    within the round);  x <- x + lr mean_k (y_k - x);  c <- c + (1 / N) sum_k (change of c_k), N all known sites. For
    trained and shared parameters; running statistics are averaged with the run's weights, which parameters do not use:
    the paper's mean is over the round's sites alike. Since c_k comes from the way made, it also holds what weight
    decay, clipping and the terms of other parts (fedprox, moon) did. A site that joins late has c_k = 0.

    c_k stays at its site. What crosses is as large as the parameters again, in both directions, and once their shapes.

    Paper: Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML,
    arXiv 1910.06378, algorithm 1.

    Args:
        lr: learning rate of the server, above 0.

    Raises:
        ConfigError: lr is out of range; or, at a site, an optimizer other than torch's SGD, or with ``momentum``,
            ``nesterov`` or ``maximize``.

    >>> scaffold().parts
    (ControlVariates(),)
    """
    require_number("method scaffold", "lr", lr, above=0)
    return Method("scaffold", parts=(ControlVariates(),), aggregate=ControlledMean(float(lr)))


@dataclass(frozen=True)
class ControlVariates(Part):
    """Keep c_k at the site and c at the server."""

    name: ClassVar[str] = "scaffold"
    stages: ClassVar[tuple[str, ...]] = ("correct",)
    reports: ClassVar[bool] = True

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return _Bound(self, site)

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Add the changes of c_k to their sum; surveys tell the shapes to expect.

        Raises:
            StateError: a report that has other names, shapes or types.
        """
        known = unnest(memory)
        shapes, sums = dict(known.get(_SHAPE, {})), dict(known.get(_SUM, {}))
        for site, report in sorted(reports.items()):
            if strange := sorted(name for name in report if not name.startswith((f"{_SHAPE}/", f"{_DELTA}/"))):
                raise StateError(f"site {site}: scaffold report has {strange[0]}; use one version everywhere")
            told = unnest(report)
            # A private entry may have other shapes elsewhere; of shared ones the server has seen that they agree.
            shapes = {**told.get(_SHAPE, {}), **shapes}
            for key, delta in told.get(_DELTA, {}).items():
                if key not in shapes or [*delta.shape] != shapes[key].tolist() or not delta.is_floating_point():
                    raise StateError(
                        f"site {site}: scaffold's change of {key} is {delta.dtype} {[*delta.shape]}, surveyed was "
                        f"{shapes[key].tolist() if key in shapes else 'nothing'}; use one network everywhere"
                    )
                sums[key] = sums[key] + delta if key in sums else delta
        return nest({_SHAPE: shapes, _SUM: sums, _COUNT: {"sites": torch.tensor(n_sites)}})

    def tell(self, memory: State) -> State:
        """Return c, the mean of c_k over all sites known by now."""
        known = unnest(memory)
        return {key: total / known[_COUNT]["sites"] for key, total in known.get(_SUM, {}).items()}


@dataclass(frozen=True)
class _Controlled:
    """A parameter with what a round needs of it."""

    key: str
    live: nn.Parameter
    start: Tensor  # of the message, which nobody changes
    group: int  # of the optimizer


class _Bound(Bound):
    def __init__(self, part: ControlVariates, site: SiteView) -> None:
        why = "option II takes (x - y)/(K eta) for the mean gradient, which this breaks"
        require_sgd(part.name, site, without=("momentum", "nesterov", "maximize"), why=why)
        self._part, self._site = part, site
        self._own: State = {}  # c_k
        self._all: State = {}  # c
        self._held: list[_Controlled] = []
        self._correction: list[Tensor] | None = None
        site.add(part, "correct", self._correct)

    def survey(self) -> State:
        groups = _groups(self._site)
        trained = {key: p for key, p in self._site.model.named_parameters() if p.requires_grad and id(p) in groups}
        return nest({_SHAPE: {key: torch.tensor(p.shape, dtype=torch.int64) for key, p in trained.items()}})

    def receive(self, cast: Broadcast) -> None:
        groups, sent = _groups(self._site), cast.tensors
        self._all = cast.aux.get(self._part.name, {})
        self._held = [
            _Controlled(key, p, sent[key], groups[id(p)])
            for key, p in self._site.model.named_parameters()
            if key in sent and p.requires_grad and id(p) in groups
        ]
        self._correction = None
        self._rates = [0.0] * len(self._site.optimizer.param_groups)

    def end_round(self) -> State:
        if not any(self._rates):
            raise RoundError(
                f"site {self._site.name}: the learning rate was 0 in every step, so scaffold cannot tell the gradient"
            )
        deltas = {}
        for held in self._held:
            rate = self._rates[held.group]
            if rate:  # a group that stood still keeps its c_k
                kind = torch.promote_types(held.start.dtype, torch.float32)
                delta = (held.start.to(kind) - held.live.detach().to("cpu", kind)) / rate
                deltas[held.key] = delta - self._all[held.key] if held.key in self._all else delta
        changed = {key: self._own[key] + delta if key in self._own else delta for key, delta in deltas.items()}
        self._own = {**self._own, **changed}
        return nest({_DELTA: deltas})

    def private(self) -> State:
        return self._own

    def restore(self, state: State) -> None:
        self._own = {key: own(value) for key, value in state.items()}

    @torch.no_grad()
    def _correct(self) -> None:
        for index, group in enumerate(self._site.optimizer.param_groups):
            self._rates[index] += float(group["lr"])
        if not self._all and not self._own:
            return
        if self._correction is None:
            self._correction = [self._difference(held) for held in self._held]
        torch._foreach_add_([_gradient(held.live) for held in self._held], self._correction)

    def _difference(self, held: _Controlled) -> Tensor:
        """c - c_k, where and as the parameter is."""
        zero = torch.zeros_like(held.start)
        return (self._all.get(held.key, zero) - self._own.get(held.key, zero)).to(held.live)


@dataclass(frozen=True)
class ControlledMean:
    """Move by the plain mean of the sites' ways; running statistics are averaged by weight. See ``scaffold``."""

    lr: float

    def init(self, current: State) -> State:
        """Return no memory."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the next shared tensors.

        Raises:
            StateError: an update without the change of its control variate.
        """
        if silent := [u.site for u in updates if ControlVariates.name not in u.aux]:
            raise StateError(f"site {silent[0]}: its update lacks scaffold's part; use the same method everywhere")
        states, n = [u.tensors for u in updates], len(updates)
        tensors = mean_of(states, [weights[u.site] for u in updates], current.keys() - parameters)
        for key, mean in mean_of(states, [1 / n] * n, parameters).items():
            tensors[key] = moved(current[key], mean, self.lr)
        return memory, tensors


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # the loss does not use it: a gradient of 0, which is corrected like any other
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _groups(site: SiteView) -> dict[int, int]:
    """Parameter id to the number of its group in the optimizer."""
    groups = site.optimizer.param_groups
    return {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"]}
