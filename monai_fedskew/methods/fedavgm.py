"""FedAvgM: the server keeps a momentum over rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from monai_fedskew.core.aggregate import WeightedMean, Weights
from monai_fedskew.core.messages import Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.state import State
from monai_fedskew.methods.fedopt import heavy_ball, mean_of

__all__ = ["MomentumServer", "fedavgm"]


def fedavgm(lr: float = 1.0, momentum: float = 0.9) -> Method:
    """Add up the rounds' mean movements with a momentum, at the server.

    d = sum_k p_k w_k - x;  v <- momentum v + d;  x <- x + lr v, for parameters; running statistics are averaged.
    ``lr=1, momentum=0`` is FedAvg bit for bit.

    Paper: Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, arXiv 1909.06335.

    Args:
        lr: learning rate of the server, above 0. The paper's rule has 1; in the long run momentum multiplies the way
            by 1 / (1 - momentum), so less may be needed.
        momentum: decay of v, in [0, 1).

    Raises:
        ConfigError: a value out of range.

    >>> fedavgm().aggregate
    MomentumServer(lr=1.0, momentum=0.9)
    """
    require_number("method fedavgm", "lr", lr, above=0)
    require_number("method fedavgm", "momentum", momentum, least=0, below=1)
    is_neutral = lr == 1 and not momentum
    return Method("fedavgm", aggregate=WeightedMean() if is_neutral else MomentumServer(float(lr), float(momentum)))


@dataclass(frozen=True)
class MomentumServer:
    """Move by a velocity that remembers the rounds before; see ``fedavgm``."""

    lr: float
    momentum: float

    def init(self, current: State) -> State:
        """Return no memory; the velocity begins with the first step."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the velocity and the next shared tensors."""
        mean = mean_of([u.tensors for u in updates], [weights[u.site] for u in updates], current)
        return heavy_ball(memory, current, mean, parameters, lr=self.lr, decay=self.momentum)
