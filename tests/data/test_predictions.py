from pathlib import Path

import pandas as pd
import pytest

from monai_fedskew.data.predictions import probability_columns, read_predictions, subject_votes
from monai_fedskew.errors import DataError

HEADER = "subject,row,label,prediction,p0,p1\n"


@pytest.mark.parametrize(
    ("predictions", "vote"),
    [([1, 1, 0], 1), ([1, 0, 0, 1], 0), ([2, 0, 2], 2), ([2, 1, 2, 1, 0], 1), ([0], 0)],
)
def test_the_most_frequent_class_wins_and_the_lower_one_at_a_tie(predictions: list[int], vote: int) -> None:
    """More than half must say 1 for a 1; among many classes the most frequent counts."""
    n = len(predictions)
    windows = pd.DataFrame({"subject": ["s"] * n, "label": [2] * n, "prediction": predictions})
    found = subject_votes(windows).loc["s"].to_dict()
    assert found == {"label": 2, "prediction": vote, "windows": n, "windows_right": predictions.count(2)}


def test_ids_keep_their_zeros_and_classes_their_order(tmp_path: Path) -> None:
    """Subjects are text; p10 comes after p9."""
    path = tmp_path / "predictions.csv"
    names = [f"p{k}" for k in range(11)]
    path.write_text(f"subject,row,label,prediction,{','.join(names[::-1])}\n0000001,3,1,0,{','.join(['0.1'] * 11)}\n")
    found = read_predictions(path)
    assert found["subject"].tolist() == ["0000001"]
    assert probability_columns(found) == names


def test_a_subject_may_be_called_na_and_lines_may_be_longer(tmp_path: Path) -> None:
    """Neither is left out of the votes, nor is the row taken for the label."""
    (tmp_path / "predictions.csv").write_text(HEADER + "NA,0,1,1,0,1,0\nnull,1,1,0,1,0,0\n")
    votes = subject_votes(read_predictions(tmp_path / "predictions.csv"))
    assert votes["prediction"].to_dict() == {"NA": 1, "null": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "a,0,0,0,0.5,0.5\na,1,0,0,nan,nan\na,2,0,0,nan,nan\n", r"line 3: p0 is nan, .* \(2 such rows\)"),
        (HEADER + "a,0,0,0,0.5,inf\n", "line 2: p1 is inf, no probability"),
        (HEADER + "a,0,0,0,0.5,\n", "line 2: p1 is nan"),
        (HEADER + "a,0,0,0,-0.5,1.5\n", "line 2: p0 is -0.5"),
        (HEADER, "no predictions in it"),
        ("", "must have whole numbers in the columns"),
        (HEADER + "a,0,x,0,0.5,0.5\n", "must have whole numbers in the columns"),
    ],
)
def test_what_is_no_prediction_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """A diverged model is not scored in silence; an empty or foreign file is named."""
    (tmp_path / "predictions.csv").write_text(text)
    with pytest.raises(DataError, match=f"predictions.csv.*{message}"):
        read_predictions(tmp_path / "predictions.csv")
