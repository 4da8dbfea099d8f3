"""The class of each image, in words."""

import logging
import types

import pytest
import torch
from ignite.engine import Engine

from monai_fedskew.errors import ConfigError
from monai_fedskew.handlers.class_log import ClassLog

LOGITS = torch.tensor([[0.0, 1.0986123], [1.0986123, 0.0], [0.0, 0.0]])  # ln 3: odds of three to one


def engine_of(names: list[str]) -> Engine:
    """An evaluator that passes logits of three photos on, and is listened to."""
    engine = Engine(lambda engine, batch: {"pred": batch})
    ClassLog(types.SimpleNamespace(subject_ids=["a", "b", "c"]), names).attach(engine)
    return engine


def test_one_line_an_image(caplog: pytest.LogCaptureFixture) -> None:
    """Names go with their rows over batches, and start anew with each run; 3 / (1 + 3) is 0.750."""
    engine = engine_of(["mug", "bike"])
    with caplog.at_level(logging.INFO, logger="monai_fedskew"):
        engine.run([LOGITS[:2], LOGITS[2:]])
        engine.run([LOGITS[:1]])
    first = ["a: bike, probability 0.750", "b: mug, probability 0.750", "c: mug, probability 0.500"]
    assert caplog.messages == [*first, first[0]]


def test_a_name_short_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """The wrong name would be told else."""
    caplog.set_level(logging.CRITICAL, logger="ignite")
    with pytest.raises(ConfigError, match="class_names has 1 names, the network 2 outputs"):
        engine_of(["mug"]).run([LOGITS])
