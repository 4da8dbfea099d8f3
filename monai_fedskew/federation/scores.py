"""Scores from predictions.csv, per window and per subject."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from monai_fedskew.data.predictions import probability_columns, read_predictions, subject_votes
from monai_fedskew.errors import DataError

__all__ = ["score_predictions"]


def score_predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Score a predictions.csv.

    A subject is what most of its windows say (of equal counts, the lower class); its probability is the mean over its
    windows. Balanced accuracy is the mean recall of the classes among the labels; it is None where there is one class
    only, for it would be the accuracy under another name. AUC is None where a class is in nobody's label.

    Args:
        path: file with the columns subject, row, label, prediction, p0, p1, ...

    Returns:
        ``{"window": scores, "subject": scores}`` with accuracy, balanced_accuracy, auc in [0, 1] and samples.

    Raises:
        DataError: no rows, no probabilities, or one that is not finite.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "predictions.csv"
        ...     _ = path.write_text("subject,row,label,prediction,p0,p1\\na,0,1,1,0.4,0.6\\na,1,1,0,0.9,0.1\\n")
        ...     {level: scores["accuracy"] for level, scores in score_predictions(path).items()}
        {'window': 0.5, 'subject': 0.0}
    """
    windows = read_predictions(path)
    columns = probability_columns(windows)
    if not columns:
        raise DataError(f"{path}: no column of probabilities (p0, p1, ...)")
    votes = subject_votes(windows)
    mean = windows.groupby("subject", sort=True)[columns].mean()
    return {"window": _scores(windows, windows[columns]), "subject": _scores(votes, mean)}


def _scores(classes: pd.DataFrame, probabilities: pd.DataFrame) -> dict[str, Any]:
    label, predicted = classes["label"].to_numpy(), classes["prediction"].to_numpy()
    probability, present = probabilities.to_numpy(), np.unique(label)
    auc, balanced = None, None
    if len(present) > 1:
        balanced = float(recall_score(label, predicted, labels=present, average="macro", zero_division=0))
    if len(present) == probability.shape[1]:
        both = probability[:, 1] if len(present) == 2 else probability / probability.sum(1, keepdims=True)
        auc = float(roc_auc_score(label, both, multi_class="ovr"))
    return {
        "accuracy": float(accuracy_score(label, predicted)),
        "balanced_accuracy": balanced,
        "auc": auc,
        "samples": len(label),
    }
