"""What the law tests share: the methods they run over, and bit-for-bit comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from monai_fedskew.core.method import Method, parse
from monai_fedskew.core.part import Part
from monai_fedskew.engines.simulator import Outcome
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS
from monai_fedskew.sites.pool import PooledSites

FEDERATED = sorted(name for name, factory in METHODS.items() if factory().scope == "federated")
EVERY = [
    *sorted(METHODS),
    "fedrdn+fedbn+fedprox:mu=0.2",
    "sitenorm+silobn",
    "fedrdn+local",
    "fedprox:variant=official",
    "fixbn:warmup=1",
]

SENDING = [text for text in EVERY if "pooled" not in text]  # the pooled baseline sends no messages between sites

# A setting that must change no bit of FedAvg on the same adapted network.
NEUTRAL = {
    "fedprox": "fedprox:mu=0",
    "fedavgm": "fedavgm:lr=1,momentum=0",
    "fedfa": "fedfa:p=0",
    "moon": "moon:mu=0",
    "gradaug": "gradaug:mu=0",
    "mixup": "mixup:gamma=0",
    "fedalign": "fedalign:mu=0",
    "stochdepth": "stochdepth:keep=1",
    "fedmix": "fedmix:lam=0",
    "harmofl": "harmofl:alpha=0,amplitude=off",
    "fedwon": "fedwon:clip=none",
}

# One site alone equals its local parts without messages: bit for bit, but for these, to this tolerance; None: the
# server makes a step of its own, so that even one site's model is not what it sent.
ALONE: dict[str, float | None] = {"scaffold": 1e-6, **dict.fromkeys(("fedavgm", "fedadam", "fedyogi", "fedadagrad"))}

_CHOSEN: dict[tuple[str, ...], str] = {}  # method and names of the studies -> study: to try is to build a site


def method(text: str) -> Method:
    """Build a method from the table."""
    return parse(text, METHODS)


def sites_for(text: str, labs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The training sites of a method: on vectors, or on images where it refuses vectors; for pooled one site of all."""
    sources = dict(labs[_lab(text, labs)])
    return {"pooled": PooledSites(tuple(sources.values()))} if "pooled" in text else sources


def make_labs(vectors: Mapping[str, Any], images: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The small studies a method is tried on, in this order; plain SGD where momentum is refused."""
    labs = {}
    for name, sources in (("vectors", vectors), ("images", images)):
        labs[name] = dict(sources)
        labs[f"{name} without momentum"] = {
            site: replace(source, overrides={"momentum": 0.0}) for site, source in sources.items()
        }
    return labs


def without_parts(built: Method) -> Method:
    """FedAvg on the network as the parts of a method change it."""
    return Method("fedavg", parts=tuple(_AdaptOnly(part.name, part) for part in built.parts))


@dataclass(frozen=True)
class _AdaptOnly(Part):
    name: str  # type: ignore[misc]  # that of the part, which its seed depends on
    part: Part

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        return self.part.adapt(model, seed)


def _lab(text: str, labs: Mapping[str, Mapping[str, Any]]) -> str:
    key, reasons = (text, *labs), []
    if key in _CHOSEN:
        return _CHOSEN[key]
    for name, sources in labs.items():
        try:
            Client(method(text), next(iter(sources.values())), Settings(rounds=1))
        except ConfigError as error:
            reasons.append(str(error))
        else:
            _CHOSEN[key] = name
            return name
    raise AssertionError(f"no small study suits {text}: {reasons}")


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
