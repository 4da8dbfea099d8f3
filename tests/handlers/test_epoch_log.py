import logging

import pytest
import torch
from ignite.engine import Engine

from monai_fedskew.handlers.epoch_log import EpochLog


def test_one_line_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Each epoch says its number, the metrics and the last loss; nothing when INFO is off."""
    engine = Engine(lambda engine, batch: {"loss": torch.tensor(batch)})
    EpochLog("site NYU").attach(engine)
    with caplog.at_level(logging.INFO, "monai_fedskew"):
        engine.run([1.0, 0.5], max_epochs=2)
    assert caplog.messages == [f"site NYU: epoch {n}, loss of the last batch 0.5000" for n in (1, 2)]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "monai_fedskew"):
        engine.run([1.0], max_epochs=3)
    assert caplog.messages == []
