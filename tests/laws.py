"""What the law tests share: the methods they run over, and bit-for-bit comparison."""

from collections.abc import Mapping
from typing import Any

import torch

from monai_fedskew.core.method import Method, parse
from monai_fedskew.engines.simulator import Outcome
from monai_fedskew.methods import METHODS

FEDERATED = sorted(name for name, factory in METHODS.items() if factory().scope == "federated")
EVERY = [*sorted(METHODS), "fedrdn+fedbn+fedprox:mu=0.2", "sitenorm+silobn", "fedrdn+local", "fedprox:variant=official"]


def method(text: str) -> Method:
    """Build a method from the table."""
    return parse(text, METHODS)


def difference(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> str:
    """Say how two states differ, bit for bit; empty if they do not."""
    if set(first) != set(second):
        return f"keys {sorted(set(first) ^ set(second))}"
    bad = [key for key in first if first[key].dtype != second[key].dtype or not torch.equal(first[key], second[key])]
    return f"{len(bad)} of {len(first)} differ: {bad[:3]}" if bad else ""


def assert_same(first: Outcome, second: Outcome) -> None:
    """Require equal server state, private state and history, bit for bit."""
    assert difference(first.last, second.last) == ""
    assert set(first.last_private) == set(second.last_private)
    for site, state in first.last_private.items():
        assert difference(state, second.last_private[site]) == "", site
    assert plain(first) == plain(second)


def plain(outcome: Outcome) -> tuple[Any, Any]:
    """History as comparable values."""
    scores = [(s.round, s.site, s.split, s.samples, dict(s.metrics)) for s in outcome.history.scores]
    return scores, outcome.history.events
