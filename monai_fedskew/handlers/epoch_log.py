"""One line an epoch in the log."""

import logging

import torch
from ignite.engine import Engine, Events

__all__ = ["EpochLog"]

logger = logging.getLogger(__name__)


class EpochLog:
    """Log one INFO line an epoch: the loss of the last batch, if the engine has one, and the metrics.

    MONAI's ``StatsHandler`` warns wherever INFO is switched off; this handler then says nothing.

    Args:
        name: who speaks, e.g. the site.

    Example:
        >>> engine = Engine(lambda engine, batch: {"loss": torch.tensor(batch)})
        >>> EpochLog("site NYU").attach(engine)
        >>> engine.run([0.5], max_epochs=2).epoch
        2
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def attach(self, engine: Engine) -> None:
        """Listen to the end of each epoch."""
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._log)

    def _log(self, engine: Engine) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        output, values = engine.state.output, dict(engine.state.metrics)
        if isinstance(output, dict) and isinstance(output.get("loss"), torch.Tensor):
            values["loss of the last batch"] = float(output["loss"].detach().mean())
        said = ", ".join(f"{name} {value:.4f}" for name, value in values.items() if isinstance(value, float))
        logger.info("%s: epoch %d, %s", self.name, engine.state.epoch, said)
