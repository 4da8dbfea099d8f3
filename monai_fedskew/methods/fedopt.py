"""What methods with a step at the server share: the pseudo-gradient's momentum, and the adaptive step."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monai_fedskew.core.aggregate import Weights, weighted_mean
from monai_fedskew.core.messages import Update
from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.state import State, nest

__all__ = ["AdaptiveServer", "heavy_ball", "mean_of", "moved", "require_adaptive"]

SecondMoment = Callable[[Tensor, Tensor], Tensor]  # (v, d) -> new v


@dataclass(frozen=True)
class AdaptiveServer:
    """Step from the current model by Adam's rule, the sites' mean movement d taken for a negative gradient.

    m <- beta1 m + (1 - beta1) d;  v <- second(v, d);  x <- x + lr m / (sqrt(v) + tau), for parameters alone. Running
    statistics are averaged: a step that divides by sqrt(v) could make a variance negative. m starts at 0, v at tau^2,
    and there is no correction of the bias, all as in the paper. The moments are float32, or the parameter's type where
    that is wider.

    Paper: Reddi et al. 2021, Adaptive Federated Optimization, ICLR, arXiv 2003.00295, algorithm 2.

    Args:
        lr: learning rate of the server.
        beta1: decay of m, in [0, 1).
        tau: bounds the step of a parameter whose v is small, above 0.
        second: the rule for v, which is what tells the methods apart.
    """

    lr: float
    beta1: float
    tau: float
    second: SecondMoment

    def init(self, current: State) -> State:
        """Return no memory; the moments begin with the first step."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the moments and the next shared tensors."""
        tensors = mean_of([u.tensors for u in updates], [weights[u.site] for u in updates], current)
        first, second = {}, {}
        for key in _floating(current, parameters):
            x, d = _movement(current[key], tensors[key])
            m = d
            if self.beta1:
                m = first[key] = memory.get(f"m/{key}", torch.zeros_like(d)) * self.beta1 + d * (1 - self.beta1)
            v = second[key] = self.second(memory.get(f"v/{key}", torch.full_like(d, self.tau**2)), d)
            tensors[key] = (x + self.lr * m / (v.sqrt() + self.tau)).to(current[key].dtype)
        return nest({"m": first, "v": second}), tensors


def heavy_ball(
    memory: State, current: State, proposed: State, parameters: frozenset[str], *, lr: float, decay: float
) -> tuple[State, State]:
    """Move to ``current + lr v`` with ``v <- decay v + (proposed - current)``; buffers go to ``proposed``.

    >>> x, to = {"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}
    >>> memory, first = heavy_ball({}, x, to, frozenset({"w"}), lr=1.0, decay=0.5)
    >>> heavy_ball(memory, first, first, frozenset({"w"}), lr=1.0, decay=0.5)[1]["w"].tolist()
    [1.5]
    """
    tensors, kept = dict(proposed), {}
    for key in _floating(current, parameters):
        x, d = _movement(current[key], proposed[key])
        velocity = kept[key] = memory[key] * decay + d if key in memory else d
        tensors[key] = (x + lr * velocity).to(current[key].dtype)
    return kept, tensors


def mean_of(states: Sequence[State], weights: Sequence[float], keys: Iterable[str]) -> dict[str, Tensor]:
    """Return the weighted mean of some entries; see ``weighted_mean``."""
    chosen = sorted(keys)
    return weighted_mean([{key: state[key] for key in chosen} for state in states], weights)


def moved(current: Tensor, target: Tensor, lr: float) -> Tensor:
    """Return ``current + lr (target - current)``, in the type of ``current``; lr = 1 is the target itself.

    >>> moved(torch.tensor([1.0]), torch.tensor([3.0]), 0.25).tolist()
    [1.5]
    """
    if lr == 1 or not current.is_floating_point():
        return target
    x, d = _movement(current, target)
    return (x + lr * d).to(current.dtype)


def require_adaptive(what: str, *, lr: float, tau: float, beta1: float, beta2: float = 0.0) -> None:
    """Raise ConfigError unless lr and tau are above 0 and both betas lie in [0, 1)."""
    require_number(what, "lr", lr, above=0)
    require_number(what, "tau", tau, above=0)
    require_number(what, "beta1", beta1, least=0, below=1)
    require_number(what, "beta2", beta2, least=0, below=1)


def _floating(current: State, parameters: frozenset[str]) -> list[str]:
    return sorted(key for key in parameters if current[key].is_floating_point())


def _movement(current: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The current value and the way to the target, in at least float32."""
    kind = torch.promote_types(current.dtype, torch.float32)
    x = current.to(kind)
    return x, target.to(kind) - x
