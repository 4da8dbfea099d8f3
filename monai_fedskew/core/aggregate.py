"""From the sites' updates to the next model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from monai_fedskew.core.messages import Update
from monai_fedskew.core.state import State

__all__ = ["Aggregator", "WeightedMean", "Weights", "weighted_mean"]

Weights = Mapping[str, float]  # site -> weight; over this round's participants they sum to 1
_CHUNK = 1 << 16  # elements summed at once, so that the float64 sums stay in the processor's cache


class Aggregator(Protocol):
    """Pure server half of a method: state in, new state out."""

    def init(self, current: State) -> State:
        """Return the memory before round 1."""

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the new memory and the next shared tensors.

        Args:
            memory: what the last step returned.
            current: the shared tensors the round started from.
            updates: this round's accepted updates, sorted by site.
            weights: weight of each of them, summing to 1.
            parameters: the shared keys that are trained; the others are buffers.
        """


@dataclass(frozen=True)
class WeightedMean:
    """FedAvg's aggregate: w = sum_k p_k w_k over parameters and running statistics; counters take the maximum.

    McMahan et al. 2017, arXiv 1602.05629, algorithm 1.
    """

    def init(self, current: State) -> State:
        """Return no memory."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the weighted mean."""
        return memory, weighted_mean([u.tensors for u in updates], [weights[u.site] for u in updates])


def weighted_mean(states: Sequence[State], weights: Sequence[float]) -> dict[str, Tensor]:
    """Average floating tensors in float64 and cast back; take the maximum of integer and boolean ones.

    Args:
        states: one state a site, all of the same keys and shapes, in a fixed order.
        weights: as many numbers, summing to 1.

    >>> weighted_mean([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}], [0.25, 0.75])["w"].tolist()
    [2.5]
    """
    return {key: _mean([state[key] for state in states], weights) for key in states[0]}


def _mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point():
        return torch.stack(list(tensors)).amax(0)
    out = torch.empty_like(first, memory_format=torch.contiguous_format)
    flat, parts = out.view(-1), [t.reshape(-1) for t in tensors]
    total = torch.empty(min(_CHUNK, flat.numel()), dtype=torch.float64)
    for start in range(0, flat.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        chunk = total[: flat[piece].numel()]
        chunk.copy_(parts[0][piece]).mul_(weights[0])
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            chunk.add_(part[piece], alpha=weight)
        flat[piece].copy_(chunk)
    return out
