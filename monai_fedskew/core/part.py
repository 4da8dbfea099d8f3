"""What a method adds at a site (Bound) and at the server (merge, tell): the one extension point of training."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import State

__all__ = ["EXCLUSIVE", "STAGES", "Bound", "Deployment", "Part", "SiteView", "adapt_network"]

# In this order within a training step; within a stage, parts act in order of their names.
STAGES = ("normalise", "mix", "normalise_eval", "replace", "add", "perturb", "correct", "clip")
EXCLUSIVE = ("normalise", "normalise_eval", "replace")  # two parts there cannot both be right


class SiteView(Protocol):
    """What a part sees of a site."""

    name: str
    samples: int
    groups: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_function: Callable[..., Tensor]

    def add(self, part: "Part", stage: str, function: Callable[..., Any]) -> None:
        """Put ``function`` into a stage the part declares.

        normalise, mix, normalise_eval: ``(inputs, targets, generator) -> (inputs, targets)`` of a batch, on its device.
        replace, add: ``output -> loss``; ``output`` maps "image", "label", "pred", "loss" to tensors.
        perturb, correct, clip: ``() -> None`` once before each step; change its whole, unscaled gradient in place.
        """

    def loss(self) -> Tensor:
        """Compute the whole loss of the current batch again (inside ``replay``)."""

    def examples(self) -> Iterator[Tensor]:
        """Yield batches (B, C, ...) of clean training inputs in a fixed order."""

    def labelled_examples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of ``examples`` with their labels (B, ...)."""

    def example_groups(self) -> Tensor | None:
        """Return the number of each example's subject, in the order of ``examples``; None if the data name none."""

    def stream(self, part: "Part") -> torch.Generator:
        """Return the part's own source of randomness (CPU), seeded from (seed, site, round, part) in every round."""

    def replay(self, part: "Part") -> AbstractContextManager[None]:
        """Allow extra passes, in the trainer's precision: random state of the part's own, running statistics frozen."""


@dataclass(frozen=True)
class Deployment:
    """What a plain MONAI evaluator needs to repeat a part's ``normalise_eval`` stage without us in the loop.

    Args:
        target: dotted path of a ``prepare_batch`` callable that takes ``file``, a safetensors file of ``tensors``.
        tensors: what it reads from there.
    """

    target: str
    tensors: State


class Bound:
    """One part at one site: the only thing that may change. Every method is optional.

    ``receive`` comes after the weights are loaded and randomness is seeded, before every fit and every evaluate.
    """

    def survey(self) -> State:
        """Measure once, before the first round; what is returned goes to the server."""
        return {}

    def receive(self, cast: Broadcast) -> None:
        """Take what the server tells before training or evaluation."""

    def end_round(self) -> State:
        """Report after the local epochs; goes to the server with the update."""
        return {}

    def private(self) -> State:
        """Return what must survive a rebuilt site; never leaves it."""
        return {}

    def restore(self, state: State) -> None:
        """Take back what ``private`` returned."""

    def deploy(self) -> Deployment | None:
        """Return what an exported model needs to treat its inputs as this part does, if anything."""
        return None


class Part:
    """An immutable, picklable piece of a method, shared by all sites. Subclasses are frozen dataclasses."""

    name: ClassVar[str]
    stages: ClassVar[tuple[str, ...]] = ()
    reports: ClassVar[bool] = False  # every update must carry what ``end_round`` returns
    differentiates: ClassVar[bool] = False  # takes gradients while the loss is made, which no loss scaling covers

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        """Change the network before anything takes its parameters; ``seed`` is the same at all sites."""
        return model

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site."""
        return Bound()

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Return the server's new memory from the old one and the sites' reports (surveys and accepted updates)."""
        return memory

    def tell(self, memory: State) -> State:
        """Return what of the memory every broadcast carries."""
        return memory


def adapt_network(network: nn.Module, parts: Sequence[Part], seed: int) -> nn.Module:
    """Let every part change the network, each from its own seed, so that all sites get the same first weights."""
    for part in parts:
        own = derive(seed, part=f"adapt:{part.name}")
        torch.manual_seed(own)
        network = part.adapt(network, own)
    return network
