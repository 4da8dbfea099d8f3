"""Scores from predictions.csv or segmentation.csv, per window (or image) and per subject."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

from monai_fedskew.data.predictions import probability_columns, read_predictions, subject_votes
from monai_fedskew.data.segmentations import image_scores, read_segmentations
from monai_fedskew.errors import DataError

__all__ = ["score_folder", "score_predictions", "score_segmentations"]

Scores = dict[str, dict[str, Any]]


def score_folder(folder: Path) -> Scores | None:
    """Score what an evaluation left in a folder: segmentation.csv or predictions.csv; None where it left neither.

    Raises:
        DataError: the file cannot be read, or there are both, of which one must be of another run.
    """
    known = {"segmentation.csv": score_segmentations, "predictions.csv": score_predictions}
    found = [name for name in known if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"{folder}: holds {' and '.join(found)}; a bundle writes one of them, remove the other")
    return known[found[0]](folder / found[0]) if found else None


def score_predictions(path: Path) -> Scores:
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


def score_segmentations(path: Path) -> Scores:
    """Score a segmentation.csv.

    The score of an image is the mean over its foreground classes, the score of a site the mean over its images, as
    MONAI's metrics with ``reduction="mean"``; a subject's score is the mean over its images. What has no value is left
    out: Dice where a class is neither there nor predicted, the Hausdorff distance where either lacks it. So a model
    that finds nothing in hard images may have a small distance: look at the count.

    Args:
        path: file with the columns subject, row, class, dice, hausdorff95, unit.

    Returns:
        ``{"window": scores, "subject": scores}``, a window being an image: dice in [0, 1], hausdorff95 (mm or pixels),
        None where no image has one, samples, the number of images (or subjects) without a value of either, and how many
        have their distance in mm.

    Raises:
        DataError: the file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "segmentation.csv"
        ...     _ = path.write_text("subject,row,class,dice,hausdorff95,unit\\na,0,1,0.8,2,mm\\nb,1,1,0.0,,mm\\n")
        ...     score_segmentations(path)["window"]  # doctest: +NORMALIZE_WHITESPACE
        {'dice': 0.4, 'hausdorff95': 2.0, 'samples': 2, 'dice_undefined': 0, 'hausdorff95_undefined': 1,
         'hausdorff95_in_mm': 1}
    """
    read = read_segmentations(path)
    images = image_scores(read)
    subjects = images.groupby(level="subject", sort=False).mean()
    is_in_mm = read["unit"].iloc[0] == "mm"
    return {"window": _overlaps(images, is_in_mm), "subject": _overlaps(subjects, is_in_mm)}


def _overlaps(scores: pd.DataFrame, is_in_mm: bool) -> dict[str, Any]:
    means = {name: float(scores[name].mean()) if scores[name].notna().any() else None for name in scores}
    missing = {f"{name}_undefined": int(scores[name].isna().sum()) for name in scores}
    measured = int(scores["hausdorff95"].notna().sum())
    return {**means, "samples": len(scores), **missing, "hausdorff95_in_mm": measured if is_in_mm else 0}


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
