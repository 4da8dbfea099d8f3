"""Scores from predictions.csv, per window and per subject."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, roc_auc_score

from monai_fedskew.errors import DataError

__all__ = ["score_predictions"]


def score_predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Score a predictions.csv.

    A subject is what most of its windows say (of equal counts, the lower class); its probability is the mean over its
    windows. AUC is None where a site has one class only.

    Args:
        path: file with the columns subject, row, label, prediction, p0, p1, ...

    Returns:
        ``{"window": scores, "subject": scores}`` with accuracy, balanced_accuracy, auc in [0, 1] and samples.

    Raises:
        DataError: no rows.
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise DataError(f"{path}: no predictions")
    columns = sorted(
        (name for name in rows[0] if name[0] == "p" and name[1:].isdigit()), key=lambda name: int(name[1:])
    )
    label = np.array([int(row["label"]) for row in rows])
    predicted = np.array([int(row["prediction"]) for row in rows])
    probability = np.array([[float(row[name]) for name in columns] for row in rows])
    subjects, owner = np.unique([row["subject"] for row in rows], return_inverse=True)
    votes = np.zeros((len(subjects), probability.shape[1]))
    np.add.at(votes, (owner, predicted), 1)
    counts = np.bincount(owner)
    mean = np.stack([np.bincount(owner, column) / counts for column in probability.T], 1)
    first = np.unique(owner, return_index=True)[1]
    return {
        "window": _scores(label, predicted, probability),
        "subject": _scores(label[first], votes.argmax(1), mean),
    }


def _scores(label: NDArray[Any], predicted: NDArray[Any], probability: NDArray[Any]) -> dict[str, Any]:
    present = np.unique(label)
    recalls = [float((predicted[label == value] == value).mean()) for value in present]
    auc = None
    if len(present) == probability.shape[1]:
        both = probability[:, 1] if len(present) == 2 else probability / probability.sum(1, keepdims=True)
        auc = float(roc_auc_score(label, both, multi_class="ovr"))
    return {
        "accuracy": float(accuracy_score(label, predicted)),
        "balanced_accuracy": float(np.mean(recalls)),
        "auc": auc,
        "samples": len(label),
    }
