"""Optimizer and schedulers at the start of a round: learning rate from the round, tensors fresh or kept."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from monai.handlers import LrScheduleHandler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from monai_fedskew.core.state import State, own
from monai_fedskew.errors import ConfigError

__all__ = ["OptimizerState"]


class OptimizerState:
    """Brings an optimizer to where a round starts, whatever it did before.

    Schedulers are stepped afresh to the round, so that all sites agree on the learning rate; they are never carried.

    Args:
        site: name of the site, for errors.
        optimizer: the trainer's optimizer.
        handlers: the trainer's learning rate handlers.

    Raises:
        ConfigError: a scheduler that is no function of the round (ReduceLROnPlateau).
    """

    def __init__(self, site: str, optimizer: torch.optim.Optimizer, handlers: Sequence[LrScheduleHandler]) -> None:
        self.optimizer = optimizer
        self._schedulers = [(handler.lr_scheduler, bool(handler.epoch_level)) for handler in handlers]
        if any(isinstance(scheduler, ReduceLROnPlateau) for scheduler, _ in self._schedulers):
            raise ConfigError(
                f"site {site}: ReduceLROnPlateau looks at one site's scores, so sites would disagree on the learning "
                "rate; use a scheduler that depends on the epoch only"
            )
        self._fresh = copy.deepcopy(optimizer.state_dict())
        self._fresh_schedules = [copy.deepcopy(scheduler.state_dict()) for scheduler, _ in self._schedulers]

    def begin(self, epochs: int, steps: int, *, keep: bool) -> None:
        """Set learning rates to where ``epochs`` epochs of ``steps`` steps lead; forget tensors unless ``keep``."""
        groups = copy.deepcopy(self._fresh)
        if keep:
            groups["state"] = self.optimizer.state_dict()["state"]
        self.optimizer.load_state_dict(groups)
        # a gradient of zeros, left from the last round, lets momentum move what this step does not use; none does not
        self.optimizer.zero_grad(set_to_none=True)
        # torch warns of a scheduler that steps before its optimizer: the point here, and what becomes of skipped steps
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # set by torch on the instance
        for (scheduler, is_epoch_level), fresh in zip(self._schedulers, self._fresh_schedules, strict=True):
            scheduler.load_state_dict(copy.deepcopy(fresh))
            for _ in range(epochs if is_epoch_level else epochs * steps):
                scheduler.step()

    def private(self) -> State:
        """Return the optimizer's tensors (momentum and the like), named by parameter index."""
        entries = self.optimizer.state_dict()["state"].items()
        return {
            f"{index}.{name}": own(torch.as_tensor(value))
            for index, values in entries
            for name, value in values.items()
            if value is not None
        }

    def restore(self, state: State) -> None:
        """Take back what ``private`` returned."""
        values: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            index, name = key.split(".", 1)
            values.setdefault(int(index), {})[name] = value.clone()
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": values})
