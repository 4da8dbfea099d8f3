"""Test predictions of a run: one row a window, one vote a subject."""

from pathlib import Path

import numpy as np
import pandas as pd

from monai_fedskew.errors import DataError

__all__ = ["probability_columns", "read_predictions", "subject_votes"]

_COLUMNS = ["subject", "label", "prediction"]


def read_predictions(path: Path) -> pd.DataFrame:
    """Read a predictions.csv.

    Args:
        path: file with the columns subject, label, prediction and, if known, the probabilities p0, p1, ...

    Returns:
        One row a window: ``subject`` (text), ``label`` and ``prediction`` (class numbers), probabilities in [0, 1].

    Raises:
        DataError: the file is absent, lacks a column, has no row, or a probability is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "predictions.csv"
        ...     _ = path.write_text("subject,row,label,prediction,p0,p1\\n0000001,7,1,0,0.6,0.4\\n")
        ...     read_predictions(path).to_dict("records")
        [{'subject': '0000001', 'label': 1, 'prediction': 0, 'p0': 0.6, 'p1': 0.4}]
    """
    try:
        with path.open(encoding="utf-8") as lines:
            names = [name for name in lines.readline().strip().split(",") if name[:1] == "p" and name[1:].isdigit()]
        columns = [*_COLUMNS, *sorted(names, key=lambda name: int(name[1:]))]
        kinds: dict[str, type] = {"subject": str, "label": int, "prediction": int, **dict.fromkeys(names, float)}
        empty = dict.fromkeys(names, ["", "nan"])  # of probabilities only: a subject may be called NA
        # without index_col, lines that are longer than the first shift all columns
        found = pd.read_csv(
            path, usecols=columns, dtype=kinds, index_col=False, keep_default_na=False, na_values=empty
        )[columns]
    except FileNotFoundError as error:
        raise DataError(f"{path}: absent; run it again") from error
    except ValueError as error:
        raise DataError(f"{path}: must have whole numbers in the columns {_COLUMNS}; {error}") from error
    if not len(found):
        raise DataError(f"{path}: no predictions in it; run it again")
    values = found[columns[3:]].to_numpy(np.float64)
    is_wrong = ~((values >= 0) & (values <= 1))  # true for NaN
    if is_wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(is_wrong))
        raise DataError(
            f"{path}, line {row + 2}: {columns[3 + column]} is {values[row, column]}, no probability "
            f"({int(is_wrong.any(axis=1).sum())} such rows); the model's output was not finite, look at its training"
        )
    return found


def probability_columns(predictions: pd.DataFrame) -> list[str]:
    """Names of the columns of probabilities, by class."""
    return [str(name) for name in predictions.columns if str(name)[:1] == "p" and str(name)[1:].isdigit()]


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
