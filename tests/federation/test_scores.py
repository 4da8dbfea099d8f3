"""Scores from predictions.csv."""

from pathlib import Path

import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.federation.scores import score_predictions

HEADER = "subject,row,label,prediction,p0,p1"


def _scores(tmp_path: Path, *rows: str, header: str = HEADER) -> dict[str, dict[str, float | None]]:
    path = tmp_path / "predictions.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return score_predictions(path)


def test_window_scores_by_hand(tmp_path: Path) -> None:
    """3 of 4 right: accuracy 0.75; recalls 1/2 and 2/2: balanced 0.75; AUC: of 4 pairs 3 are in order: 0.75."""
    scores = _scores(tmp_path, "a,0,0,0,0.9,0.1", "a,1,0,1,0.3,0.7", "b,2,1,1,0.4,0.6", "b,3,1,1,0.2,0.8")["window"]
    assert scores == {"accuracy": 0.75, "balanced_accuracy": 0.75, "auc": 0.75, "samples": 4}


def test_unbalanced_classes_count_alike(tmp_path: Path) -> None:
    """3 zeros right and 1 one wrong: accuracy 0.75, balanced (1 + 0) / 2 = 0.5."""
    rows = [f"s{k},{k},0,0,0.9,0.1" for k in range(3)]
    scores = _scores(tmp_path, *rows, "s3,3,1,0,0.8,0.2")["window"]
    assert (scores["accuracy"], scores["balanced_accuracy"]) == (0.75, 0.5)


def test_one_class_has_neither_balanced_accuracy_nor_auc(tmp_path: Path) -> None:
    """Case 31: null, not the accuracy under another name; the accuracy is there."""
    scores = _scores(tmp_path, "a,0,0,0,0.9,0.1", "b,1,0,1,0.3,0.7")
    for level in ("window", "subject"):
        assert scores[level] == {"accuracy": 0.5, "balanced_accuracy": None, "auc": None, "samples": 2}


def test_three_classes_and_a_tie(tmp_path: Path) -> None:
    """Subject a has votes 0, 1, 2: the lowest; b has 2, 2, 1: class 2. One of two subjects is right."""
    header = "subject,row,label,prediction,p0,p1,p2"
    rows = [
        *("a,0,1,0,0.5,0.3,0.2", "a,1,1,1,0.2,0.5,0.3", "a,2,1,2,0.1,0.3,0.6"),
        *("b,3,2,2,0.1,0.2,0.7", "b,4,2,2,0.1,0.3,0.6", "b,5,2,1,0.1,0.5,0.4"),
    ]
    scores = _scores(tmp_path, *rows, header=header)
    assert scores["subject"]["accuracy"] == 0.5
    assert scores["window"]["accuracy"] == 0.5
    assert scores["window"]["auc"] is None  # class 0 is in nobody's label


def test_more_than_nine_classes_are_read_in_order(tmp_path: Path) -> None:
    """p10 comes after p9, not after p1: with the columns mixed up the AUC of perfect predictions would not be 1."""
    header = "subject,row,label,prediction," + ",".join(f"p{k}" for k in range(11))
    rows = [
        f"s{k},{k},{k},{k}," + ",".join("0.90" if column == k else "0.01" for column in range(11)) for k in range(11)
    ]
    assert _scores(tmp_path, *rows, header=header)["window"]["auc"] == 1.0


def test_no_rows_is_an_error(tmp_path: Path) -> None:
    """The file is named."""
    with pytest.raises(DataError, match=r"predictions.csv: no predictions"):
        _scores(tmp_path)
