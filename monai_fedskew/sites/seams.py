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
from monai_fedskew.errors import ConfigError

__all__ = ["Seams"]

_BATCH, _LOSS, _GRADIENT = ("normalise", "mix"), ("replace", "add"), ("perturb", "correct", "clip")


class Seams:
    """Wraps ``prepare_batch`` of both engines and listens to loss and gradients of the trainer.

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
        if stage in _GRADIENT and (self.trainer.accumulation_steps > 1 or self.trainer.amp):
            raise ConfigError(
                f"site {self.site}: {part.name} changes gradients, which are partial or scaled with "
                "accumulation_steps > 1 or amp: true; turn these off in the bundle"
            )
        if stage in EXCLUSIVE and chain:
            raise ConfigError(f"site {self.site}: {part.name} and {next(iter(chain))} both take the stage {stage!r}")
        self.chains[stage] = dict(sorted({**chain, part.name: function}.items()))
        self.stream(part)

    def stream(self, part: Part) -> torch.Generator:
        """Return the part's own source of randomness, seeded at the start of every round."""
        return self.generators.setdefault(part.name, torch.Generator(device="cpu"))

    def loss(self) -> Tensor:
        """Compute the whole loss of the current batch again."""
        trainer, output = self.trainer, dict(self.trainer.state.output)
        args, kwargs = self._extra
        network = trainer.network
        output[CommonKeys.PRED] = trainer.inferer(output[CommonKeys.IMAGE], network, *args, **kwargs)
        loss = trainer.loss_function(output[CommonKeys.PRED], output[CommonKeys.LABEL]).mean()
        output[CommonKeys.LOSS] = loss
        for stage in _LOSS:
            self._change_loss(stage, output)
        total: Tensor = output[CommonKeys.LOSS]
        return total

    @contextmanager
    def replay(self, part: Part) -> Iterator[None]:
        """Allow extra passes that leave no trace: random state forked and drawn from the part's own stream."""
        network: nn.Module = self.trainer.network
        modes = [(module, module.training) for module in network.modules()]
        tracking = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        devices = sorted({value.device.index for value in network.parameters() if value.is_cuda})
        with torch.random.fork_rng(devices=devices):
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
            inputs, targets, *rest = inner(batch, device, non_blocking, **kwargs)
            for stage in stages:
                for name, function in self.chains[stage].items():
                    inputs, targets = function(inputs, targets, self.generators[name])
            self._extra = (tuple(rest[0]), dict(rest[1])) if rest else ((), {})
            return (inputs, targets, *rest)

        engine.prepare_batch = prepare

    def _on_loss(self) -> None:
        output = self.trainer.state.output
        self._change_loss("replace", output)
        size = len(output[CommonKeys.IMAGE])
        self.task_loss, self.seen = self.task_loss + output[CommonKeys.LOSS].detach() * size, self.seen + size
        self._change_loss("add", output)

    def _change_loss(self, stage: str, output: dict[str, Tensor]) -> None:
        for function in self.chains[stage].values():
            output[CommonKeys.LOSS] = function(output)

    def _on_gradient(self) -> None:
        for stage in _GRADIENT:
            for function in self.chains[stage].values():
                function()
