"""simulate and compare, from the command line to the files they leave."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.cli.main import main
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.sites.locate import find_bundle

FEATURES = 66


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prepared sites of 66 edges for the shipped bundle."""
    return write_synthetic_study(tmp_path_factory.mktemp("prepared") / "data", sites=("EAST", "WEST"))


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of fedrdn+fedbn on the shipped bundle."""
    out = tmp_path_factory.mktemp("runs") / "run"
    call = ["simulate", "abide_connectome", "--data", str(prepared), "--method", "fedrdn+fedbn", "--rounds", "3"]
    main([*call, "--set", f"in_features={FEATURES}", "--set", "batch_size=16", "--out", str(out)])
    return out


def test_a_run_leaves_what_the_contract_says(run: Path) -> None:
    """run.json, history.jsonl, two checkpoints (and the best), a site folder each, summary.json."""
    about = json.loads((run / "run.json").read_text())
    assert (about["method"], about["seed"], about["settings"]["rounds"]) == ("fedrdn+fedbn", 0, 3)
    assert about["overrides"] == {"in_features": FEATURES, "batch_size": 16, "fold": 0}
    assert set(about["sites"]) == {"EAST", "WEST"}
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == sorted(row["round"] for row in rows)
    scored = {(row["round"], row["site"]) for row in rows if row.get("split") == "validation"}
    assert scored == {(round, site) for round in range(4) for site in ("EAST", "WEST")}
    summary = json.loads((run / "summary.json").read_text())
    accuracies = [summary["sites"][site]["window"]["accuracy"] for site in ("EAST", "WEST")]
    assert summary["mean"]["window"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert summary["worst"]["window"]["accuracy"] == min(accuracies)
    assert (summary["shared_keys"], summary["private_keys"]) == (6, 10)


def test_test_windows_belong_to_the_seeds_fold_only(run: Path, prepared: Path) -> None:
    """predictions.csv holds all windows of the fold's subjects and of no other."""
    from monai_fedskew.data.manifest import read_manifest
    from monai_fedskew.data.splits import split

    manifest = read_manifest(prepared / "EAST")
    test = set(split(manifest, fold=0, folds=5, validation_fraction=0.1, seed=0).test)
    lines = (run / "sites" / "EAST" / "predictions.csv").read_text().splitlines()[1:]
    assert {line.split(",")[0] for line in lines} == test
    assert len(lines) == sum(s.stop - s.start for s in manifest.subjects if s.id in test)


def test_an_exported_site_runs_alone_and_predicts_the_same(run: Path, tmp_path: Path) -> None:
    """The folder of a fedrdn+fedbn site, moved elsewhere: plain monai.bundle inference equals predictions.csv."""
    for site in ("EAST", "WEST"):
        moved = tmp_path / f"moved_{site}"
        shutil.copytree(run / "sites" / site, moved)
        expected = (moved / "predictions.csv").read_text()
        (moved / "predictions.csv").unlink()
        call = ["-m", "monai.bundle", "run", "--config_file", str(moved / "configs" / "inference.yaml")]
        subprocess.run([sys.executable, *call], check=True, capture_output=True, cwd=tmp_path)
        assert (moved / "output" / "predictions.csv").read_text() == expected


def test_without_its_normalisation_the_exported_site_predicts_otherwise(run: Path, tmp_path: Path) -> None:
    """The comparison above can fail: with the other site's statistics the probabilities change."""
    moved = tmp_path / "moved"
    shutil.copytree(run / "sites" / "EAST", moved)
    shutil.copy(run / "sites" / "WEST" / "normalisation.safetensors", moved)
    call = ["-m", "monai.bundle", "run", "--config_file", str(moved / "configs" / "inference.yaml")]
    subprocess.run([sys.executable, *call], check=True, capture_output=True, cwd=tmp_path)
    assert (moved / "output" / "predictions.csv").read_text() != (moved / "predictions.csv").read_text()


def test_resume_refuses_another_method_and_goes_on_with_the_same(
    run: Path, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resume cannot mix two runs; more rounds of the same run are welcome."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    call = ["simulate", "abide_connectome", "--data", str(prepared), "--set", f"in_features={FEATURES}"]
    call += ["--set", "batch_size=16", "--out", str(copy), "--resume"]
    with pytest.raises(SystemExit):
        main([*call, "--method", "fedbn", "--rounds", "3"])
    assert "method was 'fedrdn+fedbn', now it is 'fedbn'" in capsys.readouterr().err
    main([*call, "--method", "fedrdn+fedbn", "--rounds", "4"])
    assert json.loads((copy / "summary.json").read_text())["method"] == "fedrdn+fedbn"
    assert (copy / "rounds" / "4").is_dir()


def test_compare_runs_in_parallel_and_prints_the_table(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods x seeds, one RUN folder each; parallel processes give what a single run gives; a resume runs nothing."""
    out = tmp_path / "cmp"
    call = ["compare", "abide_connectome", "--data", str(prepared), "--method", "local", "--method", "fedbn"]
    call += ["--rounds", "2", "--seeds", "2", "--jobs", "2", "--choose", "last", "--set", f"in_features={FEATURES}"]
    main([*call, "--out", str(out)])
    printed = capsys.readouterr().out
    assert "accuracy, window level" in printed
    assert "accuracy minus that of local, subject level" in printed
    assert "no rank test can be significant" in printed
    assert (out / "report.html").stat().st_size > 10_000
    single = ["simulate", "abide_connectome", "--data", str(prepared), "--method", "fedbn", "--seed", "1"]
    single += ["--rounds", "2", "--choose", "last", "--set", f"in_features={FEATURES}"]
    main([*single, "--out", str(tmp_path / "run")])
    path = Path("sites") / "WEST" / "predictions.csv"
    assert (tmp_path / "run" / path).read_text() == (out / "runs" / "fedbn" / "seed1" / path).read_text()
    before = os.stat(out / "runs" / "fedbn" / "seed1" / "summary.json").st_mtime_ns
    main([*call, "--out", str(out), "--resume"])
    assert os.stat(out / "runs" / "fedbn" / "seed1" / "summary.json").st_mtime_ns == before


def test_seeds_test_every_subject_once(prepared: Path) -> None:
    """Folds of five seeds cover all subjects, each once."""
    from monai_fedskew.data.manifest import read_manifest
    from monai_fedskew.data.splits import split

    manifest = read_manifest(prepared / "EAST")
    tested = [id for fold in range(5) for id in split(manifest, fold=fold, validation_fraction=0.0).test]
    assert sorted(tested) == sorted(subject.id for subject in manifest.subjects)


def test_the_class_of_a_subject_is_what_most_of_its_windows_say(tmp_path: Path) -> None:
    """Three windows 1, 1, 0 make the subject 1; two windows 0, 1 are no majority for 1.

    Window accuracy: s1 (label 1) 2 of 3 right, s2 (label 1) 1 of 2: 3/5 = 0.6. Subject: s1 right, s2 wrong: 0.5.
    """
    from monai_fedskew.federation.scores import score_predictions

    rows = ["subject,row,label,prediction,p0,p1"]
    rows += ["s1,0,1,1,0.4,0.6", "s1,1,1,1,0.1,0.9", "s1,2,1,0,0.9,0.1", "s2,3,1,0,0.9,0.1", "s2,4,1,1,0.2,0.8"]
    path = tmp_path / "predictions.csv"
    path.write_text("\n".join(rows) + "\n")
    scores = score_predictions(path)
    assert scores["window"]["accuracy"] == pytest.approx(0.6)
    assert scores["subject"]["accuracy"] == pytest.approx(0.5)
    assert scores["subject"]["samples"] == 2


def test_auc_is_null_with_one_class_and_left_out_of_the_mean_with_a_count(tmp_path: Path) -> None:
    """Case 31: site B has one class; the mean over sites is that of A alone and says so."""
    from monai_fedskew.federation.scores import score_predictions
    from monai_fedskew.federation.summary import overall

    header = "subject,row,label,prediction,p0,p1\n"
    for name, body in (("A", "s1,0,1,1,0.2,0.8\ns2,1,0,0,0.9,0.1\n"), ("B", "s3,0,0,0,0.7,0.3\ns4,1,0,1,0.4,0.6\n")):
        (tmp_path / f"{name}.csv").write_text(header + body)
    scores = {name: score_predictions(tmp_path / f"{name}.csv") for name in "AB"}
    assert scores["B"]["window"]["auc"] is None
    whole = overall(scores)
    assert whole["mean"]["window"]["auc"] == 1.0
    assert whole["mean"]["window"]["auc_sites"] == 1
    assert whole["mean"]["window"]["accuracy"] == pytest.approx(np.mean([1.0, 0.5]))
    assert whole["worst"]["window"] == {"site": "B", "accuracy": 0.5}


def test_the_demo_study_is_in_the_bundle() -> None:
    """What `fedskew demo` runs is a study like any other."""
    from monai_fedskew.cli.study import read_study

    study = read_study(find_bundle("abide_connectome"), "demo")
    assert "fedbn" in study.methods
