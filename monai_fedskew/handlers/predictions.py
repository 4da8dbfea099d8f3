"""Test predictions as a table: the same file from a federated run and from plain MONAI inference."""

import csv
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from ignite.engine import Engine, Events
from numpy.typing import NDArray

from monai_fedskew.errors import StateError

__all__ = ["PredictionsWriter", "RowsOfSubjects", "write_predictions"]


class RowsOfSubjects(Protocol):
    """A dataset that knows its samples: arrays of shape (n,) in the dataset's own order."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]

    @property
    def subject_ids(self) -> NDArray[np.str_]:
        """Id of the subject of each sample."""


def write_predictions(path: str | Path, dataset: RowsOfSubjects, probabilities: NDArray[np.floating[Any]]) -> Path:
    """Write ``subject,row,label,prediction,p0,p1,...``, one line a sample in the order of the dataset.

    Args:
        path: the file; parent folders are made, an existing file is replaced.
        dataset: what was predicted; ``row`` is the row number in the site's data.
        probabilities: shape (n, classes), written with 6 digits; the prediction is the class of the largest.

    Returns:
        The absolute path.

    Raises:
        StateError: not one line of probabilities a sample.

    Example:
        >>> import tempfile, types
        >>> data = types.SimpleNamespace(rows=np.array([7]), labels=np.array([1]), subject_ids=np.array(["0000001"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = write_predictions(f"{folder}/predictions.csv", data, np.array([[0.25, 0.75]]))
        ...     print(path.read_text().strip())
        subject,row,label,prediction,p0,p1
        0000001,7,1,1,0.250000,0.750000
    """
    target = Path(path).absolute()
    n = len(dataset.rows)
    if probabilities.ndim != 2 or len(probabilities) != n:
        raise StateError(f"{target}: probabilities of shape {probabilities.shape} for {n} samples; one line a sample")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    chosen = probabilities.argmax(axis=1)
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["subject", "row", "label", "prediction", *(f"p{c}" for c in range(probabilities.shape[1]))])
        for known in zip(dataset.subject_ids, dataset.rows, dataset.labels, chosen, probabilities, strict=True):
            writer.writerow([*known[:4], *(f"{p:.6f}" for p in known[4])])
    part.replace(target)
    return target


class PredictionsWriter:
    """Collect the logits of an evaluator and write them as a table when it has completed.

    Args:
        path: the table, see `write_predictions`.
        dataset: the dataset of the evaluator's loader, which must keep its order (no shuffling).

    Raises:
        StateError: when the evaluator has seen another number of samples than the dataset holds.

    Example:
        >>> import tempfile, types
        >>> data = types.SimpleNamespace(rows=np.array([7]), labels=np.array([1]), subject_ids=np.array(["0000001"]))
        >>> engine = Engine(lambda engine, batch: {"pred": batch})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     PredictionsWriter(f"{folder}/predictions.csv", data).attach(engine)
        ...     _ = engine.run([torch.zeros(1, 2)])
        ...     print(Path(folder, "predictions.csv").read_text().splitlines()[1])
        0000001,7,1,0,0.500000,0.500000
    """

    def __init__(self, path: str | Path, dataset: RowsOfSubjects) -> None:
        self.path = Path(path)
        self.dataset = dataset
        self._probabilities: list[torch.Tensor] = []

    def attach(self, engine: Engine) -> None:
        """Listen to an evaluator whose output is a dictionary with the batched logits under ``pred``."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._collect)
        engine.add_event_handler(Events.COMPLETED, self._write)

    def _start(self) -> None:
        self._probabilities = []

    def _collect(self, engine: Engine) -> None:
        self._probabilities.append(engine.state.output["pred"].detach().softmax(dim=1).cpu())

    def _write(self) -> None:
        write_predictions(self.path, self.dataset, torch.cat(self._probabilities).numpy())
