import shutil
from pathlib import Path

import pandas as pd
import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.reports.predictions import largest_class, n_classes, read_predictions, subject_votes, tally
from monai_fedskew.reports.results import read_results


def test_majority_of_windows_equals_the_summary(comparison: Path) -> None:
    """Subject accuracy recomputed from every predictions.csv is the one in summary.json."""
    for run in read_results(comparison).runs.values():
        for site, score in run.scores["subject"].items():
            votes = subject_votes(read_predictions(run, site))
            assert (votes["label"] == votes["prediction"]).mean() == pytest.approx(score.accuracy)
            assert len(votes) == score.samples


def test_a_tie_goes_to_the_lower_class() -> None:
    """Two windows against two: class 1 has not more than half, so class 0."""
    windows = pd.DataFrame({"subject": ["s"] * 4, "label": [1] * 4, "prediction": [1, 0, 0, 1]})

    assert subject_votes(windows)["prediction"].tolist() == [0]


def test_more_than_two_classes_take_the_most_frequent() -> None:
    """Of 2, 2, 0 the vote is 2."""
    windows = pd.DataFrame({"subject": ["s"] * 3, "label": [2] * 3, "prediction": [2, 0, 2]})

    assert subject_votes(windows).loc["s"].to_dict() == {"label": 2, "prediction": 2, "windows": 3, "windows_right": 2}


def test_tally_pools_seeds_by_subject(comparison: Path) -> None:
    """Three folds of ten subjects test six of them, each with four windows; ids keep their zeros."""
    results = read_results(comparison)

    pooled = tally(results.of("local"), "NORTH")

    assert len(pooled.subjects) == 6
    assert all(len(subject) == 7 for subject in pooled.subjects)
    assert pooled.windows.tolist() == [4] * 6
    assert pooled.votes.tolist() == [1] * 6
    assert largest_class(results.of("local"), "NORTH") == 0.5
    assert n_classes(results.of("local")[0], "NORTH") == 2


def test_absent_and_broken_predictions_are_named(comparison: Path, tmp_path: Path) -> None:
    """An absent file and a missing column are errors that name the file."""
    folder = shutil.copytree(comparison / "runs" / "local" / "seed0", tmp_path / "run")
    run = next(iter(read_results(folder).runs.values()))
    (folder / "sites" / "NORTH" / "predictions.csv").write_text("subject,label\n1,0\n")
    (folder / "sites" / "SOUTH" / "predictions.csv").unlink()

    with pytest.raises(DataError, match=r"NORTH.predictions.csv: must have whole numbers in the columns"):
        read_predictions(run, "NORTH")
    with pytest.raises(DataError, match=r"SOUTH.predictions.csv: absent"):
        read_predictions(run, "SOUTH")
