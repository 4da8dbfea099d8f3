"""Trimmed mean: the extremes of every coordinate are left out of the average."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monai_fedskew.core.aggregate import Weights
from monai_fedskew.core.messages import Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.state import State
from monai_fedskew.methods.fedopt import mean_of

__all__ = ["TrimmedMean", "mean_between", "trimmed_mean"]

logger = logging.getLogger(__name__)

_CHUNK = 1 << 16  # elements sorted at once, so that they stay in the processor's cache and little is held twice


def trimmed_mean(beta: float = 0.1) -> Method:
    """Average every coordinate without its largest and smallest values.

    Of n updates floor(beta n) are dropped at either end, coordinate by coordinate; the rest are averaged. Sites count
    alike, whatever the run's weights: a weight a site tells of itself is one more thing it could lie about. Running
    statistics are treated as weights are; counters take the maximum. ``beta=0`` is FedAvg with equal weights.

    Paper: Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML,
    arXiv 1803.01498, definition 2.

    Args:
        beta: share dropped at either end, at least 0 and below 0.5. Fewer than 1 / beta updates are averaged whole,
            which is logged as a warning: for four sites to stand one hostile update, beta must be at least 0.25.

    Raises:
        ConfigError: beta is out of range.

    >>> trimmed_mean(beta=0.25).aggregate
    TrimmedMean(beta=0.25)
    """
    require_number("method trimmed_mean", "beta", beta, least=0, below=0.5)
    return Method("trimmed_mean", aggregate=TrimmedMean(float(beta)))


@dataclass(frozen=True)
class TrimmedMean:
    """Average what lies between the extremes; see ``trimmed_mean``."""

    beta: float

    def init(self, current: State) -> State:
        """Return no memory."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the trimmed mean."""
        n = len(updates)
        # 0.29 * 100 is 28.999999999999996: what is meant is 29
        drop = min(math.floor(self.beta * n + 1e-9), (n - 1) // 2)
        if self.beta and not drop:
            logger.warning("trimmed_mean: beta=%g drops none of %d updates; this is the plain mean", self.beta, n)
        return memory, mean_between([u.tensors for u in updates], drop)


def mean_between(states: Sequence[State], drop: int) -> dict[str, Tensor]:
    """Average each coordinate without its ``drop`` largest and smallest values; counters take the maximum.

    Args:
        states: one state a site, all of the same keys and shapes.
        drop: how many go at either end; fewer than half of the states.

    >>> sites = [{"w": torch.tensor([value])} for value in (1.0, 2.0, 3.0, 100.0)]
    >>> mean_between(sites, 1)["w"].tolist()
    [2.5]
    """
    n = len(states)
    if not drop:
        return mean_of(states, [1 / n] * n, states[0])
    return {key: _between([state[key] for state in states], drop) for key in states[0]}


def _between(tensors: Sequence[Tensor], drop: int) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    out = torch.empty_like(first, memory_format=torch.contiguous_format)
    flat, rows = out.view(-1), [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, flat.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        ordered = [row[piece].clone() for row in rows]
        _sort(ordered)
        kept = ordered[drop : len(ordered) - drop]
        total = kept[0].double()
        for row in kept[1:]:
            total += row
        flat[piece].copy_(total.div_(len(kept)))
    return out


def _sort(rows: list[Tensor]) -> None:
    """Order the rows elementwise: odd-even transposition, which for a few rows is ten times as fast as torch.sort."""
    for turn in range(len(rows)):
        for i in range(turn % 2, len(rows) - 1, 2):
            low = torch.minimum(rows[i], rows[i + 1])
            torch.maximum(rows[i], rows[i + 1], out=rows[i + 1])
            rows[i] = low
