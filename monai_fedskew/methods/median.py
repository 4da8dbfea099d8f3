"""Median: every coordinate takes the middle of the sites' values."""

from collections.abc import Sequence
from dataclasses import dataclass

from monai_fedskew.core.aggregate import Weights
from monai_fedskew.core.messages import Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State
from monai_fedskew.methods.trimmed_mean import mean_between

__all__ = ["Median", "median"]


def median() -> Method:
    """Take the median of the sites' values, coordinate by coordinate.

    Of an even number of updates the mean of the two in the middle. Sites count alike, whatever the run's weights: a
    weight a site tells of itself is one more thing it could lie about. Running statistics are treated as weights are;
    counters take the maximum. With two sites this is their plain mean, which does not stand a hostile one.

    Paper: Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML,
    arXiv 1803.01498, definition 1.

    >>> median().aggregate
    Median()
    """
    return Method("median", aggregate=Median())


@dataclass(frozen=True)
class Median:
    """Take the middle of each coordinate; see ``median``."""

    def init(self, current: State) -> State:
        """Return no memory."""
        return {}

    def step(
        self, memory: State, current: State, updates: Sequence[Update], weights: Weights, parameters: frozenset[str]
    ) -> tuple[State, State]:
        """Return the median."""
        return memory, mean_between([u.tensors for u in updates], (len(updates) - 1) // 2)
