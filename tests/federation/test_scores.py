"""Scores from predictions.csv and segmentation.csv, and what they are over sites."""

from pathlib import Path

import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.federation.scores import score_folder, score_predictions, score_segmentations
from monai_fedskew.federation.summary import overall

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


def _segmentation(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "segmentation.csv"
    path.write_text("\n".join(["subject,row,class,dice,hausdorff95,unit", *rows]) + "\n")
    return path


def test_overlaps_by_hand(tmp_path: Path) -> None:
    """Images 0.6 = (0.4 + 0.8) / 2, 1.0 and 0.2: mean 0.6; subjects a (0.6 + 1.0) / 2 = 0.8 and b 0.2: mean 0.5.

    Distances: 3 = (2 + 4) / 2 and 7: mean 5; of the third image no class has one.
    """
    rows = ["a,0,x,0.4,2,mm", "a,0,y,0.8,4,mm", "a,1,x,1.0,7,mm", "a,1,y,,,mm", "b,2,x,0.0,,mm", "b,2,y,0.4,,mm"]
    scores = score_folder(_segmentation(tmp_path, *rows).parent)
    assert scores is not None
    window, subject = scores["window"], scores["subject"]
    assert (window["dice"], window["hausdorff95"]) == (pytest.approx(0.6), 5.0)
    assert (window["samples"], window["dice_undefined"], window["hausdorff95_undefined"]) == (3, 0, 1)
    assert window["hausdorff95_in_mm"] == 2
    assert subject["dice"] == pytest.approx(0.5)
    assert (subject["samples"], subject["hausdorff95"]) == (2, 5.0)


def test_no_image_with_a_value_is_null_and_counted(tmp_path: Path) -> None:
    """Neither there nor predicted in any image: null with a count, not 0 and not 1."""
    scores = score_segmentations(_segmentation(tmp_path, "a,0,x,,,pixel", "b,1,x,,,pixel"))["window"]
    assert scores == {
        **{"dice": None, "hausdorff95": None, "samples": 2, "dice_undefined": 2},
        **{"hausdorff95_undefined": 2, "hausdorff95_in_mm": 0},
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,1,x,1.2,,mm", "line 3: dice is 1.2, must be a number from 0 to 1 or empty"),
        ("b,1,x,0.5,-1,mm", "line 3: hausdorff95 is -1.0"),
        ("b,1,x,0.5,inf,mm", "line 3: hausdorff95 is inf"),
        ("b,1,x,0.5,1,cm", "line 3: unit is cm, must be mm or pixel"),
        ("b,1,x,0.5,1,pixel", "distances in mm and in pixels"),
        ("b,1,x,high,1,mm", "must have the columns subject, row"),
    ],
)
def test_a_score_that_is_none_is_one_error(row: str, message: str, tmp_path: Path) -> None:
    """File, line and value are named."""
    with pytest.raises(DataError, match=message):
        score_segmentations(_segmentation(tmp_path, "a,0,x,0.5,1,mm", row))


def test_a_folder_is_scored_by_what_it_holds(tmp_path: Path) -> None:
    """Nothing: no scores; both tables: one of them is of another run."""
    assert score_folder(tmp_path) is None
    _segmentation(tmp_path, "a,0,x,0.5,1,mm")
    (tmp_path / "predictions.csv").write_text(f"{HEADER}\na,0,1,1,0.4,0.6\n")
    with pytest.raises(DataError, match=r"holds segmentation.csv and predictions.csv"):
        score_folder(tmp_path)


def test_the_worst_site_has_the_lowest_dice_or_the_longest_distance() -> None:
    """Dice 0.8 and 0.6: B, spread 0.1; distances 3 and 7 mm: B, spread 2 mm; one site alone has no spread."""
    sites = {
        "A": {"window": {"dice": 0.8, "hausdorff95": 3.0, "samples": 4, "dice_undefined": 0, "hausdorff95_in_mm": 4}},
        "B": {"window": {"dice": 0.6, "hausdorff95": 7.0, "samples": 4, "dice_undefined": 1, "hausdorff95_in_mm": 4}},
    }
    found = overall(sites)
    assert found["worst"]["window"] == {"site": "B", "dice": 0.6, "hausdorff95_site": "B", "hausdorff95": 7.0}
    assert set(found["mean"]["window"]) == {"dice", "dice_sites", "hausdorff95", "hausdorff95_sites"}
    assert found["std_over_sites"]["window"] == {"dice": pytest.approx(0.1), "hausdorff95": pytest.approx(2.0)}
    alone = overall({"A": sites["A"]})["std_over_sites"]["window"]
    assert alone == {"dice": None, "hausdorff95": None}
