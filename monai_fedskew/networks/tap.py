"""What went into a stage of a network and what came out, in the forward pass that made a given output."""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["StageTap"]

Read = TypeVar("Read")


class StageTap(Generic[Read]):
    """Read a stage during training passes of the whole network, and find the reading that belongs to an output.

    Several parts may pass batches through one network before the loss is complete; which pass an output came from
    is told by the output itself. Passes in evaluation mode, without gradient, or of the stage alone are not read.

    Args:
        model: the network.
        stage: one of its modules.
        read: ``(inputs, output) -> reading`` of the stage; must keep neither the network nor what belongs to its site,
            so that a network that is let go of is freed at once.

    >>> net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    >>> tap = StageTap(net, net[0], lambda inputs, output: inputs[0].item())
    >>> first, second = net(torch.ones(1)), net(torch.zeros(1))
    >>> tap.take(first), tap.take(second)  # asked once, all are forgotten
    (1.0, None)
    """

    def __init__(self, model: nn.Module, stage: nn.Module, read: Callable[[tuple[Any, ...], Any], Read]) -> None:
        self._read = read
        self._is_open = False
        self._reading: tuple[Read] | None = None
        self._held: list[tuple[weakref.ref[Tensor], Read]] = []
        model.register_forward_pre_hook(self._begin)
        stage.register_forward_hook(self._keep)
        model.register_forward_hook(self._end)

    def take(self, output: Tensor) -> Read | None:
        """Return the reading of the pass that gave ``output``, None if there was none; forget all others."""
        held, self._held = self._held, []
        return next((reading for made, reading in held if made() is output), None)

    def _begin(self, model: nn.Module, inputs: object) -> None:
        self._is_open = model.training and torch.is_grad_enabled()
        self._reading = None
        self._held = [(made, reading) for made, reading in self._held if made() is not None]

    def _keep(self, stage: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._is_open:
            self._reading = (self._read(inputs, output),)

    def _end(self, model: nn.Module, inputs: object, output: Any) -> None:
        if self._reading is not None and isinstance(output, Tensor):
            self._held.append((weakref.ref(output), self._reading[0]))
        self._is_open, self._reading = False, None
