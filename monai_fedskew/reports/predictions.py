"""Test predictions of several runs, pooled by subject."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from monai_fedskew.data.predictions import probability_columns, read_predictions, subject_votes
from monai_fedskew.errors import DataError
from monai_fedskew.reports.fields import RUN_AGAIN
from monai_fedskew.reports.run import Run

__all__ = ["Tally", "has_predictions", "largest_class", "n_classes", "tally"]


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


def has_predictions(runs: Sequence[Run], site: str) -> bool:
    """Tell whether all runs left test predictions of a site; a bundle need not write any."""
    return all(_file(run, site).exists() for run in runs)


def n_classes(run: Run, site: str) -> int:
    """Count the classes of a run by the probability columns of a site's predictions.csv.

    Raises:
        DataError: the file is absent or cannot be read.
    """
    return len(probability_columns(_read(run, site)))


def tally(runs: Sequence[Run], *sites: str) -> Tally:
    """Pool the test predictions of runs (seeds) at a site, or at several clients that share out the rows, by subject.

    Raises:
        DataError: a predictions.csv is absent or cannot be read.
    """
    votes = pd.concat([subject_votes(_read(run, site)) for run in runs for site in sites])
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
    votes = pd.concat([subject_votes(_read(run, site)) for run in runs])
    return float(votes["label"].value_counts(normalize=True).max())


def _read(run: Run, site: str) -> pd.DataFrame:
    file = _file(run, site)
    try:
        return read_predictions(file)
    except DataError as error:
        raise DataError(f"{error}; {RUN_AGAIN}") from error
    except (OSError, ValueError) as error:  # a folder, or bytes that pandas cannot take for text
        raise DataError(f"{file}: cannot be read ({error}); {RUN_AGAIN}") from error


def _file(run: Run, site: str) -> Path:
    return run.folder / "sites" / site / "predictions.csv"
