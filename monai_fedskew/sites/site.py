"""A site: one network with its trainer, evaluator and data, and the seams parts may use."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from monai.data.utils import set_rnd
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import LrScheduleHandler
from monai.utils import CommonKeys
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.core.part import Part
from monai_fedskew.core.seeding import derive
from monai_fedskew.data.batches import ShuffledBatches
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.sites.examples import stacked
from monai_fedskew.sites.optimizer import OptimizerState
from monai_fedskew.sites.seams import Seams

__all__ = ["Site"]


class Site:
    """A hospital's end of a federation, around a MONAI trainer and evaluator that share one network.

    Args:
        name: name of the site.
        trainer: makes the local steps.
        evaluator: scores, on the very same network object, so that it uses the site's own norm state.
        schedules: the learning rate handlers among the trainer's handlers.
        survey_data: clean training examples in a fixed order; by default the trainer's dataset.

    Raises:
        ConfigError: two networks, no training data, or something that carries hidden state across rounds.
    """

    def __init__(
        self,
        name: str,
        trainer: SupervisedTrainer,
        evaluator: SupervisedEvaluator,
        *,
        schedules: Sequence[LrScheduleHandler] = (),
        survey_data: Any = None,
    ) -> None:
        if trainer.network is not evaluator.network:
            raise ConfigError(f"site {name}: trainer and evaluator hold two networks; give both `@network`")
        loader = trainer.data_loader
        if getattr(loader, "persistent_workers", False):
            raise ConfigError(f"site {name}: persistent_workers keep random state across rounds; set it to false")
        self.name, self.trainer, self.evaluator = name, trainer, evaluator
        self.model: nn.Module = trainer.network
        self.optimizer: torch.optim.Optimizer = trainer.optimizer
        self.loss_function: Callable[..., Tensor] = trainer.loss_function
        self.schedules = tuple(schedules)
        self.optimizer_state = OptimizerState(name, trainer.optimizer, schedules)
        self.samples = len(loader.dataset)
        if not self.samples:
            raise ConfigError(f"site {name}: no training examples; look at the split and the fold")
        groups = getattr(loader.dataset, "groups", None)
        self.has_groups = groups is not None
        self.groups = self.samples if groups is None else len(np.unique(groups))
        _require_trainable_batches(name, loader, self.model)
        self._is_random = set_rnd(loader.dataset, 0) != 0
        self._survey_data = loader.dataset if survey_data is None else survey_data
        self._seams = Seams(name, trainer, evaluator)

    @property
    def has_evaluation_data(self) -> bool:
        """Whether the evaluator has anything to score."""
        return len(self.evaluator.data_loader.dataset) > 0

    @property
    def steps(self) -> int:
        """Steps the optimizer has made in this round so far."""
        return self._seams.steps

    def add(self, part: Part, stage: str, function: Callable[..., Any]) -> None:
        """Put ``function`` into a stage; see SiteView."""
        self._seams.add(part, stage, function)

    def loss(self) -> Tensor:
        """Compute the whole loss of the current batch again; see SiteView."""
        return self._seams.loss()

    def replay(self, part: Part) -> AbstractContextManager[None]:
        """Allow extra passes; see SiteView."""
        return self._seams.replay(part)

    def stream(self, part: Part) -> torch.Generator:
        """Return the part's own source of randomness; see SiteView."""
        return self._seams.stream(part)

    def examples(self) -> Iterator[Tensor]:
        """Yield clean training inputs, (B, C, ...) of one size and at most 16 million values, in a fixed order."""
        return (images for (images,) in self._clean(CommonKeys.IMAGE))

    def labelled_examples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of ``examples`` with their labels (B, ...)."""
        return ((images, labels) for images, labels in self._clean(CommonKeys.IMAGE, CommonKeys.LABEL))

    def example_groups(self) -> Tensor | None:
        """Return the number of each example's subject, (examples,) int64; None where the training data name none.

        Raises:
            ConfigError: the training data name subjects, but the clean examples do not.
        """
        groups = getattr(self._survey_data, "groups", None)
        if groups is None and self.has_groups:
            raise ConfigError(
                f"site {self.name}: the training data have `groups` (one subject index a sample), `survey#dataset` has "
                "not; give it that attribute, so that examples of one subject are known as such"
            )
        return None if groups is None else torch.from_numpy(np.unique(groups, return_inverse=True)[1])

    def close(self) -> None:
        """Let go of network, data and engines at once; the site is of no use afterwards.

        Engines, handlers and seams refer to each other in circles, which Python would only free much later: without
        this, hundreds of sites rebuilt one after the other would take the memory of many live ones.
        """
        for part in (self.trainer, self.evaluator, self._seams, self):
            vars(part).clear()

    def seed(self, seed: int, round: int) -> None:
        """Make everything random at this site a function of (seed, site, round, part)."""
        value = derive(seed, self.name, round)
        torch.manual_seed(value)
        np.random.seed(value % 2**32)
        random.seed(value)
        loader = self.trainer.data_loader
        if self._is_random:
            set_rnd(loader.dataset, value % 2**31)
        for holder in (loader, loader.sampler, loader.batch_sampler):
            generator = getattr(holder, "generator", None)
            if generator is not None:
                generator.manual_seed(value)
        for name, generator in self._seams.generators.items():
            generator.manual_seed(derive(seed, self.name, round, name))

    def train(self, round: int, epochs: int, *, keep_optimizer: bool) -> tuple[int, float]:
        """Train for ``epochs`` local epochs; return the optimizer's steps and the mean task loss over examples seen.

        Raises:
            RoundError: no step was made, as happens when a run that failed is used again, or where half precision
                overflows in every step.
        """
        state, seams = self.trainer.state, self._seams
        length, before = state.epoch_length, (round - 1) * epochs
        self.optimizer_state.begin(before, length, keep=keep_optimizer)
        state.epoch, state.max_epochs, state.iteration = before, round * epochs, before * length
        seams.task_loss, seams.seen, seams.steps = 0.0, 0, 0
        self.trainer.run()
        if state.iteration == before * length:
            raise RoundError(f"site {self.name}: no training step was made in round {round}; rebuild the client")
        if not seams.steps:
            raise RoundError(
                f"site {self.name}: every step of round {round} was skipped, as gradients overflowed in half "
                "precision (amp: true); lower the learning rate, look at the data, or set amp: false in the bundle"
            )
        return seams.steps, float(seams.task_loss) / seams.seen

    def evaluate(self, round: int) -> tuple[int, dict[str, float | None]]:
        """Run the evaluator; return the number of examples and its metrics, the key metric first.

        A metric that is not finite, such as an AUC of one class, is None.
        """
        self.evaluator.run(max(round, 1))
        values = {name: float(value) for name, value in self.evaluator.state.metrics.items()}
        metrics = {name: value if math.isfinite(value) else None for name, value in values.items()}
        key = self.evaluator.state.key_metric_name
        ordered = {key: metrics[key], **metrics} if key in metrics else metrics
        return len(self.evaluator.data_loader.dataset), ordered

    def _clean(self, *keys: str) -> Iterator[tuple[Tensor, ...]]:
        data = self._survey_data
        if data is self.trainer.data_loader.dataset and self._is_random:
            raise ConfigError(
                f"site {self.name}: the training data has random transforms; give the bundle a `survey#dataset` "
                "without them, so that statistics are those of clean examples"
            )
        return stacked(data, keys)


def _require_trainable_batches(name: str, loader: Any, model: nn.Module) -> None:
    """Refuse a last batch of one vector, on which batch norm cannot train; every round would fail."""
    size, samples = getattr(loader.batch_sampler, "batch_size", None), len(loader.dataset)
    is_merged = isinstance(loader.batch_sampler, ShuffledBatches) and size != 1
    if size is None or samples % size != (0 if size == 1 else 1) or is_merged:
        return
    if size > 1 and getattr(loader.batch_sampler, "drop_last", False):
        return
    has_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
    first = loader.dataset[0] if has_norm else {}
    image = (first[0] if isinstance(first, list) else first).get(CommonKeys.IMAGE, [[]])
    if has_norm and torch.as_tensor(image).ndim == 1:
        raise ConfigError(
            f"site {name}: {samples} training samples at batch size {size} leave a batch of one, on which batch norm "
            "cannot train; set drop_last: true, another batch size, or use monai_fedskew.data.batches.ShuffledBatches"
        )
