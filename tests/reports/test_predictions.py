import shutil
from pathlib import Path

import pytest

from monai_fedskew.data.predictions import read_predictions, subject_votes
from monai_fedskew.errors import DataError
from monai_fedskew.reports import write_report
from monai_fedskew.reports.certainty import compare_to_first
from monai_fedskew.reports.predictions import largest_class, n_classes, tally
from monai_fedskew.reports.results import read_results


def test_majority_of_windows_equals_the_summary(comparison: Path) -> None:
    """Subject accuracy recomputed from every predictions.csv is the one in summary.json."""
    for run in read_results(comparison).runs.values():
        for site, score in run.scores["subject"].items():
            votes = subject_votes(read_predictions(run.folder / "sites" / site / "predictions.csv"))
            assert (votes["label"] == votes["prediction"]).mean() == pytest.approx(score.of("accuracy"))
            assert len(votes) == score.samples


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
        tally([run], "NORTH")
    with pytest.raises(DataError, match=r"SOUTH.predictions.csv: absent"):
        n_classes(run, "SOUTH")


@pytest.mark.parametrize("damage", ["binary", "folder", "text"])
def test_damaged_predictions_stop_the_report(comparison: Path, tmp_path: Path, damage: str) -> None:
    """They are not passed over like absent ones: the file is named, and no page is written."""
    folder = shutil.copytree(comparison / "runs" / "local" / "seed0", tmp_path / "run")
    file = folder / "sites" / "NORTH" / "predictions.csv"
    file.unlink()
    if damage == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"\x89PNG\x00\xff" * 50 if damage == "binary" else b"subject,label,prediction\na,b\n")

    with pytest.raises(DataError, match=r"NORTH.predictions.csv.*remove this run's folder and run it again"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_absent_predictions_leave_out_what_needs_them(comparison: Path, tmp_path: Path) -> None:
    """A bundle need not write any: no bootstrap, with the reason, and all else."""
    folder = shutil.copytree(comparison, tmp_path / "compare")
    for file in folder.glob("runs/fedavg/*/sites/SOUTH/predictions.csv"):
        file.unlink()

    differences = compare_to_first(read_results(folder), draws=10)

    assert differences[0].note == "no bootstrap: a run of either method has no predictions.csv of site SOUTH"
    assert differences[0].mean is not None
    assert differences[1].subjects_interval is not None
