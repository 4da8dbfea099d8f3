"""Test predictions and segmentations of several runs, pooled by subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from monai_fedskew.data.predictions import probability_columns, read_predictions, subject_votes
from monai_fedskew.data.segmentations import image_scores, read_segmentations
from monai_fedskew.errors import DataError
from monai_fedskew.reports.fields import RUN_AGAIN
from monai_fedskew.reports.run import Run

__all__ = [
    "Tally",
    "has_outcomes",
    "has_predictions",
    "largest_class",
    "n_classes",
    "outcome_file",
    "predictions_at",
    "segmentations_at",
    "tally",
]


@dataclass(frozen=True)
class Tally:
    """Test outcome of one method at one site, per subject over all its runs; the four arrays have shape (subjects,).

    ``windows_right / windows`` is a subject's window accuracy, ``votes_right / votes`` its subject-level accuracy (one
    vote for each run that tested it). Of segmentations a window is an image, what is right is its Dice, and a vote the
    subject's mean; what has no Dice is not counted.
    """

    subjects: tuple[str, ...]
    windows: npt.NDArray[np.float64]
    windows_right: npt.NDArray[np.float64]
    votes: npt.NDArray[np.float64]
    votes_right: npt.NDArray[np.float64]


def has_predictions(runs: Sequence[Run], site: str) -> bool:
    """Tell whether all runs left test predictions of a site; a bundle need not write any."""
    return all(_file(run, site).exists() for run in runs)


def has_outcomes(runs: Sequence[Run], site: str, metric: str) -> bool:
    """Tell whether all runs left at a site what their scores of a metric follow from."""
    name = outcome_file(metric)
    return bool(name) and all(_file(run, site, name).exists() for run in runs)


def outcome_file(metric: str) -> str:
    """Name the file that the scores of single subjects can be read from; empty where there is none.

    Example:
        >>> outcome_file("dice"), outcome_file("f1")
        ('segmentation.csv', '')
    """
    return {"accuracy": "predictions.csv", "dice": "segmentation.csv"}.get(metric, "")


def n_classes(run: Run, site: str) -> int:
    """Count the classes of a run by the probability columns of a site's predictions.csv.

    Raises:
        DataError: the file is absent or cannot be read.
    """
    return len(probability_columns(predictions_at(run, site)))


def tally(runs: Sequence[Run], *sites: str, metric: str = "accuracy") -> Tally:
    """Pool the test outcomes of runs (seeds) at a site, or at several clients that share out the rows, by subject.

    Args:
        runs: of one method.
        sites: one, or the clients.
        metric: ``accuracy``, or ``dice`` of segmentations.

    Raises:
        DataError: a predictions.csv or segmentation.csv is absent or cannot be read.
    """
    if outcome_file(metric) == "segmentation.csv":
        return _overlaps(runs, sites, metric)
    votes = pd.concat([subject_votes(predictions_at(run, site)) for run in runs for site in sites])
    right = (votes["label"] == votes["prediction"]).groupby(level=0, sort=True)
    sums = votes.groupby(level=0, sort=True)[["windows", "windows_right"]].sum()
    return Tally(
        subjects=tuple(str(s) for s in sums.index),
        windows=np.asarray(sums["windows"], np.float64),
        windows_right=np.asarray(sums["windows_right"], np.float64),
        votes=np.asarray(right.size(), np.float64),
        votes_right=np.asarray(right.sum(), np.float64),
    )


def largest_class(runs: Sequence[Run], site: str) -> float:
    """Give the share of the larger class among a site's tested subjects: what always guessing it would score.

    Raises:
        DataError: a predictions.csv is absent or cannot be read.
    """
    votes = pd.concat([subject_votes(predictions_at(run, site)) for run in runs])
    return float(votes["label"].value_counts(normalize=True).max())


def predictions_at(run: Run, site: str) -> pd.DataFrame:
    """Read a site's predictions.csv.

    Raises:
        DataError: the file is absent or cannot be read.
    """
    return _read(read_predictions, _file(run, site))


def segmentations_at(run: Run, site: str) -> pd.DataFrame:
    """Read a site's segmentation.csv.

    Raises:
        DataError: the file is absent or cannot be read.
    """
    return _read(read_segmentations, _file(run, site, "segmentation.csv"))


def _overlaps(runs: Sequence[Run], sites: Sequence[str], metric: str) -> Tally:
    images = pd.concat([image_scores(segmentations_at(run, site))[[metric]].assign(run=k)
                        for k, run in enumerate(runs) for site in sites])  # fmt: skip
    means = images.groupby(["subject", "run"])[metric].mean().groupby(level="subject", sort=True)
    by_subject = images.groupby("subject", sort=True)[metric]
    return Tally(
        subjects=tuple(str(s) for s in by_subject.sum().index),
        windows=np.asarray(by_subject.count(), np.float64),
        windows_right=np.asarray(by_subject.sum(), np.float64),
        votes=np.asarray(means.count(), np.float64),
        votes_right=np.asarray(means.sum(), np.float64),
    )


def _read(reader: Callable[[Path], pd.DataFrame], file: Path) -> pd.DataFrame:
    try:
        return reader(file)
    except DataError as error:
        raise DataError(f"{error}; {RUN_AGAIN}") from error
    except (OSError, ValueError) as error:  # a folder, or bytes that pandas cannot take for text
        raise DataError(f"{file}: cannot be read ({error}); {RUN_AGAIN}") from error


def _file(run: Run, site: str, name: str = "predictions.csv") -> Path:
    return run.folder / "sites" / site / name
