import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from bundle_checks import require_monai_checks
from monai.bundle import ConfigWorkflow
from safetensors.torch import load_file

from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.networks import ConnectomeMLP
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.scaffold import copy_bundle, new_bundle

CONFIGS = find_bundle("abide_connectome") / "configs"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prepared synthetic sites under the names of real hospitals."""
    return write_synthetic_study(tmp_path_factory.mktemp("study"), sites=("NYU", "USM"))


@pytest.fixture(scope="module")
def trained(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two hospitals' own bundles, trained at the same time, each started from inside the other's folder."""
    root = tmp_path_factory.mktemp("hospitals")
    own = {s: new_bundle("abide_connectome", site=s, data=study / s, out=root / s) for s in ("NYU", "USM")}
    calls = [
        start(configs(own[site], "train", f"site_{site.lower()}"), "--max_epochs", "2", cwd=own[other])
        for site, other in (("NYU", "USM"), ("USM", "NYU"))
    ]
    for call in calls:
        output, _ = call.communicate(timeout=120)
        assert call.returncode == 0, output
    return own


def configs(bundle: Path, *names: str) -> str:
    """Return the value of --config_file for some configurations of a bundle."""
    return str([str(bundle / "configs" / f"{name}.yaml") for name in names])


def start(config_file: str, *options: str, cwd: Path) -> subprocess.Popen[str]:
    """Start ``python -m monai.bundle run``, on one thread."""
    words = [sys.executable, "-m", "monai.bundle", "run", "--config_file", config_file, *options]
    return subprocess.Popen(
        words, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(call: subprocess.Popen[str]) -> str:
    """Wait for a call that must succeed and return what it said."""
    output, _ = call.communicate(timeout=120)
    assert call.returncode == 0, output
    return output


def opened(study: Path, *names: str, **override: Any) -> ConfigWorkflow:
    """Open configurations of the shipped bundle in this process."""
    values = {"bundle_root": str(CONFIGS.parent), "dataset_dir": str(study / "NYU"), "in_features": 66, **override}
    files = [str(CONFIGS / f"{name}.yaml") for name in names]
    workflow = ConfigWorkflow(
        config_file=files, logging_file=False, workflow_type="infer" if names[0] == "inference" else "train", **values
    )
    workflow.initialize()
    return workflow


def test_two_sites_at_once_write_only_their_own(trained: dict[str, Path]) -> None:
    """Case 37: each run read its own data and wrote below its own bundle, though it was started in the other's."""
    models = {site: load_file(folder / "model.safetensors") for site, folder in trained.items()}
    assert not torch.equal(models["NYU"]["fc1.weight"], models["USM"]["fc1.weight"])
    for folder in trained.values():
        written = {p.relative_to(folder).as_posix() for p in folder.rglob("*.safetensors")}
        assert written == {"model.safetensors"}


def test_moved_bundle_predicts_and_scores_alike(trained: dict[str, Path], tmp_path: Path) -> None:
    """A trained bundle moved elsewhere: evaluation's accuracy is that of the table inference writes."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(trained["NYU"], moved)
    calls = [
        start(configs(moved, "inference", "site_nyu"), cwd=tmp_path),
        start(configs(moved, "train", "evaluate", "site_nyu"), cwd=tmp_path),
    ]
    said = [finish(call) for call in calls][1]
    with (moved / "output" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["subject", "row", "label", "prediction", "p0", "p1"]
    assert len(rows) == 24  # a fifth of 20 subjects, 6 windows each
    accuracy = sum(row["label"] == row["prediction"] for row in rows) / len(rows)
    assert f"site NYU, test: epoch 1, accuracy {accuracy:.4f}" in said
    assert not (trained["NYU"] / "output" / "predictions.csv").exists()


def test_missing_data_show_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37: with no data beside the bundle the error names the full path below that bundle."""
    bundle = copy_bundle(CONFIGS.parent, tmp_path / "b")
    files = [str(bundle / "configs" / "train.yaml"), str(shutil.copy(CONFIGS / "site_usm.yaml", bundle / "configs"))]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bundle", "run", "--config_file", "['b/configs/train.yaml']"])
    workflow = ConfigWorkflow(config_file=files, logging_file=False)
    workflow.initialize()
    with pytest.raises(RuntimeError, match="ConnectomeDataset") as caught:
        _ = workflow.trainer
    assert f"no prepared site at {bundle}/data/USM" in str(caught.value.__cause__)


@pytest.mark.filterwarnings("ignore:No hash value", "ignore:parsing config_file")  # MONAI's notices on every call
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # ckpt_export goes through torch.jit
def test_monai_checks_pass(tmp_path: Path) -> None:
    """verify_metadata, verify_net_in_out and ckpt_export run through, with no network connection."""
    require_monai_checks(CONFIGS, ConnectomeMLP(), tmp_path)


@pytest.mark.parametrize("names", [("train",), ("train", "evaluate"), ("inference",)])
def test_properties_are_complete(study: Path, names: tuple[str, ...]) -> None:
    """MONAI's own check finds no property missing or wrong."""
    assert opened(study, *names).check_properties() == []


def test_trainer_and_evaluator_share_one_network(study: Path) -> None:
    """Evaluation sees the very batch norm state that training leaves."""
    workflow = opened(study, "train")
    assert workflow.trainer.network is workflow.evaluator.network


def test_evaluate_reads_the_test_split(study: Path) -> None:
    """On top of train.yaml, evaluate.yaml gives the evaluator the test subjects; training data stay the same."""
    plain, test = opened(study, "train"), opened(study, "train", "evaluate")
    subjects = [set(np.unique(w.evaluator.data_loader.dataset.subject_ids)) for w in (plain, test)]
    trained = set(np.unique(test.trainer.data_loader.dataset.subject_ids))
    assert not subjects[0] & subjects[1]
    assert not trained & subjects[1]
    assert len(subjects[1]) == 4
    assert trained == set(np.unique(plain.trainer.data_loader.dataset.subject_ids))


def test_no_validation_data_is_no_obstacle(study: Path) -> None:
    """validation_fraction=0 trains on all other subjects and validates nothing, without a warning."""
    workflow = opened(study, "train", validation_fraction=0.0, max_epochs=1)
    workflow.trainer.run()
    assert len(workflow.trainer.data_loader.dataset) == 96
    assert workflow.evaluator.state.iteration == 0


def test_last_window_alone_trains(study: Path) -> None:
    """Case 32 through MONAI's trainer: 96 windows in batches of 19 leave one over, which joins the fifth batch."""
    workflow = opened(study, "train", validation_fraction=0.0, max_epochs=1, batch_size=19)
    workflow.trainer.run()
    assert workflow.trainer.state.iteration == 5


def test_class_balance_is_read(study: Path) -> None:
    """The loss has class weights only when asked: 42 of 84 windows are of each class, which gives weights of 1."""
    assert opened(study, "train").parser.get_parsed_content("loss").weight is None
    balanced = opened(study, "train", class_balance=True).parser.get_parsed_content("loss")
    assert balanced.weight.tolist() == [1.0, 1.0]


def test_an_overlay_may_set_the_normalisation(study: Path, tmp_path: Path) -> None:
    """The key evaluator#prepare_batch of an overlay reaches into the evaluator of inference.yaml."""
    bundle = copy_bundle(CONFIGS.parent, tmp_path / "b")
    overlay = bundle / "configs" / "site_x.yaml"
    target = {"_target_": "monai.engines.default_prepare_batch", "_mode_": "callable"}
    overlay.write_text(yaml.safe_dump({"evaluator#prepare_batch": target}))
    workflow = ConfigWorkflow(
        config_file=[str(bundle / "configs" / "inference.yaml"), str(overlay)], logging_file=False,
        workflow_type="infer", bundle_root=str(bundle), dataset_dir=str(study / "NYU"), in_features=66,
    )  # fmt: skip
    workflow.initialize()
    assert workflow.parser["evaluator#prepare_batch"] == target
    assert workflow.evaluator.prepare_batch.__name__ == "default_prepare_batch"


@pytest.mark.parametrize("path", sorted((CONFIGS.parent / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_studies_set_what_the_bundle_has(path: Path) -> None:
    """Overrides of a study are ids of train.yaml, and published figures are of its own methods and sites."""
    study, train = yaml.safe_load(path.read_text()), yaml.safe_load((CONFIGS / "train.yaml").read_text())
    assert set(study["overrides"]) <= set(train)
    for block in study.get("published", []):
        assert set(block["values"]) <= set(study["methods"])
        assert all(set(row) <= {*study["sites"], "mean"} for row in block["values"].values())
