from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ignite.engine import Engine

from monai_fedskew.errors import StateError
from monai_fedskew.handlers.predictions import PredictionsWriter, write_predictions


@pytest.fixture
def data() -> SimpleNamespace:
    """Three samples of two subjects."""
    return SimpleNamespace(
        rows=np.array([3, 4, 9]), labels=np.array([0, 0, 1]), subject_ids=np.array(["0000001", "0000001", "0000002"])
    )


def test_table_has_one_line_a_sample(tmp_path: Path, data: SimpleNamespace) -> None:
    """Columns are those of the contract, probabilities have six digits, the prediction is the largest."""
    path = write_predictions(
        tmp_path / "new" / "predictions.csv", data, np.array([[0.25, 0.75], [1, 0], [1 / 3, 2 / 3]])
    )
    assert path.read_text() == (
        "subject,row,label,prediction,p0,p1\n"
        "0000001,3,0,1,0.250000,0.750000\n"
        "0000001,4,0,0,1.000000,0.000000\n"
        "0000002,9,1,1,0.333333,0.666667\n"
    )


def test_handler_writes_what_the_function_writes(tmp_path: Path, data: SimpleNamespace) -> None:
    """An evaluator in batches gives the same file as softmax of all logits at once, also when run twice."""
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    engine = Engine(lambda _, batch: {"pred": batch})
    PredictionsWriter(tmp_path / "a.csv", data).attach(engine)
    for _ in range(2):
        engine.run([logits[:2], logits[2:]])
    write_predictions(tmp_path / "b.csv", data, logits.softmax(1).numpy())
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_wrong_number_of_samples_is_refused(tmp_path: Path, data: SimpleNamespace) -> None:
    """Fewer predictions than samples write nothing."""
    with pytest.raises(StateError, match=r"shape \(2, 2\) for 3 samples"):
        write_predictions(tmp_path / "predictions.csv", data, np.zeros((2, 2)))
    assert not list(tmp_path.iterdir())
