"""The most probable class of each image, in words."""

import logging
from collections.abc import Sequence
from typing import Any

from ignite.engine import Engine, Events

from monai_fedskew.errors import ConfigError

__all__ = ["ClassLog"]

logger = logging.getLogger(__name__)


class ClassLog:
    """Log one INFO line an image: its name, its most probable class and how probable that is.

    For a handful of images, such as the one of ``--image``.

    Args:
        dataset: the dataset of the evaluator's loader, in its order, with ``subject_ids``, the name of each image.
        class_names: name of each class, in the order of the network's outputs.

    Raises:
        ConfigError: when the network tells apart another number of classes.

    Example:
        >>> import types, torch
        >>> engine = Engine(lambda engine, batch: {"pred": batch})
        >>> ClassLog(types.SimpleNamespace(subject_ids=["photo"]), ["mug", "bike"]).attach(engine)
        >>> engine.run([torch.zeros(1, 2)]).iteration
        1
    """

    def __init__(self, dataset: Any, class_names: Sequence[str]) -> None:
        self.dataset, self.class_names = dataset, [str(name) for name in class_names]
        self._told = 0

    def attach(self, engine: Engine) -> None:
        """Listen to an evaluator whose output is a dictionary with the batched logits under ``pred``."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._tell)

    def _start(self) -> None:
        self._told = 0

    def _tell(self, engine: Engine) -> None:
        for probabilities in engine.state.output["pred"].detach().softmax(dim=1).cpu():
            if len(probabilities) != len(self.class_names):
                raise ConfigError(
                    f"class_names has {len(self.class_names)} names, the network {len(probabilities)} outputs; give "
                    "one name an output"
                )
            chosen = int(probabilities.argmax())
            name, share = self.class_names[chosen], float(probabilities[chosen])
            logger.info("%s: %s, probability %.3f", self.dataset.subject_ids[self._told], name, share)
            self._told += 1
