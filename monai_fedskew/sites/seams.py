"""The seams of a MONAI trainer and evaluator that parts may use, as one ordered table of stages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.core.part import EXCLUSIVE, STAGES, Part
from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.precision import set_precision
from monai_fedskew.sites.running_statistics import RunningStatistics

__all__ = ["Seams"]

_BATCH, _LOSS, _GRADIENT = ("normalise", "mix"), ("replace", "add"), ("perturb", "correct", "clip")


class Seams:
    """Wraps ``prepare_batch`` of both engines and listens to loss and gradients of the trainer.

    Parts see a gradient once a step of the optimizer, when it is whole (``accumulation_steps``) and of its own size
    (``amp``); a step that is skipped, as a half-precision gradient overflowed, is none and leaves no trace.

    Args:
        site: name of the site, for errors.
        trainer: its trainer.
        evaluator: its evaluator, on the same network.
    """

    def __init__(self, site: str, trainer: SupervisedTrainer, evaluator: SupervisedEvaluator) -> None:
        self.site, self.trainer = site, trainer
        self.chains: dict[str, dict[str, Callable[..., Any]]] = {stage: {} for stage in STAGES}
        self.generators: dict[str, torch.Generator] = {}
        self.task_loss: Tensor | float = 0.0  # sum over the examples seen since it was last set to zero
        self.seen = 0
        self.steps = 0  # of the optimizer, since it was last set to zero
        require_whole(f"site {site}", "accumulation_steps", trainer.accumulation_steps, 1)
        self.precision = set_precision(site, trainer, evaluator)
        self._statistics = RunningStatistics(trainer.network)
        self._extra: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._wrap(trainer, _BATCH)
        self._wrap(evaluator, ("normalise_eval",))
        trainer.add_event_handler(IterationEvents.LOSS_COMPLETED, self._on_loss)
        trainer.add_event_handler(IterationEvents.BACKWARD_COMPLETED, self._on_gradient)

    def add(self, part: Part, stage: str, function: Callable[..., Any]) -> None:
        """Put a function into a stage, in order of the parts' names."""
        chain = self.chains.get(stage)
        if chain is None or stage not in part.stages:
            raise ConfigError(f"part {part.name} adds to the stage {stage!r} but declares {part.stages}; see STAGES")
        if stage == "perturb" and self.trainer.accumulation_steps > 1:
            raise ConfigError(
                f"site {self.site}: {part.name} takes the gradient of a batch again, and with accumulation_steps "
                f"{self.trainer.accumulation_steps} a step is made of several; set it to 1 in the bundle"
            )
        if self.precision.is_scaled and (stage == "perturb" or part.differentiates):
            raise ConfigError(
                f"site {self.site}: {part.name} takes gradients of its own, which are not scaled as amp: true scales "
                "the loss, and so may become 0 in half precision; set amp: false in the bundle"
            )
        if stage in EXCLUSIVE and chain:
            raise ConfigError(f"site {self.site}: {part.name} and {next(iter(chain))} both take the stage {stage!r}")
        self.chains[stage] = dict(sorted({**chain, part.name: function}.items()))
        self.stream(part)

    def stream(self, part: Part) -> torch.Generator:
        """Return the part's own source of randomness, seeded at the start of every round."""
        return self.generators.setdefault(part.name, torch.Generator(device="cpu"))

    def loss(self) -> Tensor:
        """Compute the whole loss of the current batch again, in the trainer's own precision."""
        trainer, output = self.trainer, dict(self.trainer.state.output)
        args, kwargs = self._extra
        network = trainer.network
        with self.precision():
            output[CommonKeys.PRED] = trainer.inferer(output[CommonKeys.IMAGE], network, *args, **kwargs)
            loss = trainer.loss_function(output[CommonKeys.PRED], output[CommonKeys.LABEL]).mean()
            output[CommonKeys.LOSS] = loss
            for stage in _LOSS:
                self._change_loss(stage, output)
        total: Tensor = output[CommonKeys.LOSS]
        return total

    @contextmanager
    def replay(self, part: Part) -> Iterator[None]:
        """Allow extra passes that leave no trace: random state forked and drawn from the part's own stream.

        They run in the trainer's precision, also in stages where the trainer's own passes are over or yet to come.
        """
        network: nn.Module = self.trainer.network
        modes = [(module, module.training) for module in network.modules()]
        tracking = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        devices = sorted({value.device.index for value in network.parameters() if value.is_cuda})
        with torch.random.fork_rng(devices=devices), self.precision():
            torch.manual_seed(int(torch.randint(2**62, (), generator=self.stream(part))))
            for norm in tracking:
                norm.track_running_stats = False
            try:
                yield
            finally:
                for norm in tracking:
                    norm.track_running_stats = True
                for module, training in modes:
                    module.training = training

    def _wrap(self, engine: SupervisedTrainer | SupervisedEvaluator, stages: tuple[str, ...]) -> None:
        inner = engine.prepare_batch

        def prepare(batch: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> tuple[Any, ...]:
            if engine is self.trainer and self.trainer.scaler is not None and self._window()[0] == 1:
                self._statistics.keep()
            inputs, targets, *rest = inner(batch, device, non_blocking, **kwargs)
            for stage in stages:
                for name, function in self.chains[stage].items():
                    inputs, targets = function(inputs, targets, self.generators[name])
            self._extra = (tuple(rest[0]), dict(rest[1])) if rest else ((), {})
            return (inputs, targets, *rest)

        engine.prepare_batch = prepare

    def _on_loss(self) -> None:
        output = self.trainer.state.output
        with self.precision():
            self._change_loss("replace", output)
            size = len(output[CommonKeys.IMAGE])
            self.task_loss, self.seen = self.task_loss + output[CommonKeys.LOSS].detach() * size, self.seen + size
            self._change_loss("add", output)

    def _change_loss(self, stage: str, output: dict[str, Tensor]) -> None:
        for function in self.chains[stage].values():
            output[CommonKeys.LOSS] = function(output)

    def _window(self) -> tuple[int, bool]:
        """Batches since the last step, this one included, and whether the step comes now, as MONAI counts them."""
        state, most = self.trainer.state, self.trainer.accumulation_steps
        index = (state.iteration - 1) % state.epoch_length
        batches = index % most + 1
        return batches, batches == most or index + 1 == state.epoch_length

    def _on_gradient(self) -> None:
        batches, is_due = self._window()
        if not is_due:
            return
        if self._overflows():  # before any part sees it: the scaler will skip the step
            self._statistics.bring_back()
            return
        if batches < self.trainer.accumulation_steps:
            self._make_whole(self.trainer.accumulation_steps / batches)
        self.steps += 1
        for stage in _GRADIENT:
            for function in self.chains[stage].values():
                function()

    def _overflows(self) -> bool:
        """Give gradients their own size, and see whether any is not finite. The scaler asks the same in its step."""
        scaler, optimizer = self.trainer.scaler, self.trainer.optimizer
        if scaler is None or not scaler.is_enabled():
            return False
        scaler.unscale_(optimizer)
        found = scaler._found_inf_per_device(optimizer)
        return any(bool(value.item()) for value in found.values())

    def _make_whole(self, factor: float) -> None:
        """Make an epoch's last gradient a mean: MONAI divides by ``accumulation_steps``, however few the batches."""
        gradients = [value.grad for value in self.trainer.network.parameters() if value.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, factor)
