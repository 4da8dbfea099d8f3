"""Test predictions of a run: one row a window, one vote a subject."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from monai_fedskew.errors import DataError
from monai_fedskew.reports.results import Run

__all__ = ["Tally", "largest_class", "n_classes", "read_predictions", "subject_votes", "tally"]


@dataclass(frozen=True)
class Tally:
    """Test outcome of one method at one site, per subject over all its runs; the four arrays have shape (subjects,).

    ``windows_right / windows`` is a subject's window accuracy, ``votes_right / votes`` its subject-level accuracy (one
    vote for each run that tested it).
    """

    subjects: tuple[str, ...]
    windows: npt.NDArray[np.float64]
    windows_right: npt.NDArray[np.float64]
    votes: npt.NDArray[np.float64]
    votes_right: npt.NDArray[np.float64]


def read_predictions(run: Run, site: str) -> pd.DataFrame:
    """Read a site's predictions.csv: columns ``subject`` (text), ``label`` and ``prediction`` (class numbers).

    Raises:
        DataError: the file is absent or lacks a column.
    """
    file = run.folder / "sites" / site / "predictions.csv"
    columns = ["subject", "label", "prediction"]
    try:
        return pd.read_csv(file, usecols=columns, dtype={"subject": str, "label": int, "prediction": int})
    except FileNotFoundError as error:
        raise DataError(f"{file}: absent; run it again") from error
    except ValueError as error:
        raise DataError(f"{file}: must have whole numbers in the columns {columns}; {error}") from error


def n_classes(run: Run, site: str) -> int:
    """Count the classes of a run by the probability columns of a site's predictions.csv."""
    file = run.folder / "sites" / site / "predictions.csv"
    if not file.is_file():
        raise DataError(f"{file}: absent; run it again")
    with file.open(encoding="utf-8") as lines:
        header = lines.readline().strip().split(",")
    return sum(name[:1] == "p" and name[1:].isdigit() for name in header)


def subject_votes(predictions: pd.DataFrame) -> pd.DataFrame:
    """Let the windows of each subject vote: the most frequent prediction wins, the lower class number at a tie.

    With two classes that is "class 1 when more than half of the windows say 1".

    Args:
        predictions: columns ``subject``, ``label``, ``prediction``, one row a window.

    Returns:
        One row a subject (index), sorted: ``label``, ``prediction``, ``windows``, ``windows_right``.

    Example:
        >>> windows = pd.DataFrame({"subject": ["a", "a", "b"], "label": [1, 1, 0], "prediction": [1, 0, 0]})
        >>> subject_votes(windows)["prediction"].tolist()
        [0, 0]
    """
    marked = predictions.assign(windows_right=predictions["label"] == predictions["prediction"])
    by_subject = marked.groupby("subject", sort=True)
    counts = pd.crosstab(predictions["subject"], predictions["prediction"]).sort_index().sort_index(axis=1)
    return pd.DataFrame(
        {
            "label": by_subject["label"].first(),
            "prediction": counts.idxmax(axis=1),  # the first of equal maxima: the lower class
            "windows": by_subject.size(),
            "windows_right": by_subject["windows_right"].sum(),
        }
    )


def tally(runs: Sequence[Run], site: str) -> Tally:
    """Pool the test predictions of runs (seeds) at one site by subject.

    Raises:
        DataError: a predictions.csv is absent or cannot be read.
    """
    votes = pd.concat([subject_votes(read_predictions(run, site)) for run in runs])
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
    votes = pd.concat([subject_votes(read_predictions(run, site)) for run in runs])
    return float(votes["label"].value_counts(normalize=True).max())
