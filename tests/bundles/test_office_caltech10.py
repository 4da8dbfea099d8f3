"""The bundle of Office-Caltech10: MONAI's own checks, the given list, random transforms, one file."""

import csv
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import monai.bundle
import numpy as np
import pytest
import torch
import yaml
from bundle_checks import require_monai_checks
from monai.bundle import ConfigWorkflow
from PIL import Image

from monai_fedskew.cli.main import main
from monai_fedskew.cli.study import read_study
from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.methods import parse_method
from monai_fedskew.networks import AlexNetBN
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle

BUNDLE = find_bundle("office_caltech10")
CONFIGS = BUNDLE / "configs"
CLASSES = yaml.safe_load((CONFIGS / "inference.yaml").read_text())["class_names"]
SMALL = {"width": 0.02, "limit": 20, "batch_size": 10, "evaluation_batch_size": 16}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites of 50 images of 64 x 64: the list has 30 for training, 10 for validation and 10 for testing."""
    root = tmp_path_factory.mktemp("office")
    for site in ("dslr", "webcam"):
        labels = np.arange(50) % 10
        images = np.random.default_rng(0).random((50, 3, 64, 64)).astype(np.float32)
        images[np.arange(50), labels % 3, 6 * labels] += 1.0
        splits = ["train"] * 30 + ["validation"] * 10 + ["test"] * 10
        ids = [f"{CLASSES[label]}/{number}" for number, label in enumerate(labels)]
        write_image_site(root / site, images / 2, labels, label_names=CLASSES, ids=ids, splits=splits)
    return root


def opened(prepared: Path, **overrides: Any) -> Any:
    """Trainer, evaluator and clean data of dslr."""
    return BundleSite(BUNDLE, "dslr", prepared / "dslr", {**SMALL, **overrides}).engines()


@pytest.mark.filterwarnings("ignore:No hash value", "ignore:parsing config_file")  # MONAI's notices on every call
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # ckpt_export goes through torch.jit
def test_monai_checks_pass(tmp_path: Path) -> None:
    """verify_metadata, verify_net_in_out and ckpt_export run through at a small width; the paper's takes a gigabyte."""
    shutil.copytree(CONFIGS, tmp_path / "configs")
    for name in ("train", "inference"):
        file = tmp_path / "configs" / f"{name}.yaml"
        text, changed = re.subn(r"^width: 1\.0", "width: 0.05", file.read_text(), flags=re.MULTILINE)
        assert changed == 1
        file.write_text(text)
    require_monai_checks(tmp_path / "configs", AlexNetBN(width=0.05), tmp_path)


@pytest.mark.parametrize("names", [("train",), ("train", "evaluate"), ("inference",)])
def test_properties_are_complete(prepared: Path, names: tuple[str, ...]) -> None:
    """MONAI's own check finds no property missing or wrong."""
    workflow = ConfigWorkflow(
        config_file=[str(CONFIGS / f"{name}.yaml") for name in names],
        logging_file=False,
        workflow_type="infer" if names[0] == "inference" else "train",
        bundle_root=str(BUNDLE),
        dataset_dir=str(prepared / "dslr"),
        width=0.02,
    )
    workflow.initialize()
    assert workflow.check_properties() == []


def test_training_images_move_and_survey_images_do_not(prepared: Path) -> None:
    """The same images of the list, `limit` of them: moved in training, as they are where statistics are taken."""
    engines = opened(prepared)
    moved, clean = engines.trainer.data_loader.dataset, engines.survey_data
    np.testing.assert_array_equal(moved.rows, clean.rows)
    assert len(clean) == 20
    assert set(clean.rows) <= set(range(30))
    assert np.bincount(clean.labels).tolist() == [2] * 10
    moved.set_random_state(0)
    assert not torch.equal(moved.__getitems__([0])["image"], clean.__getitems__([0])["image"])
    still = opened(prepared, augment=False)
    assert torch.equal(still.trainer.data_loader.dataset.__getitems__([0])["image"], clean.__getitems__([0])["image"])
    assert len(engines.evaluator.data_loader.dataset) == 10


def test_study_names_methods_and_ids_that_exist() -> None:
    """Each method can be parsed, each override is an id of the bundle, each published row is a method of the table."""
    study, ids = read_study(BUNDLE, "published"), BundleSite(BUNDLE, "").ids()
    for method in study.methods:
        assert parse_method(method).name
    assert study.overrides.keys() <= ids.keys()
    for block in study.published:
        assert block["values"].keys() <= set(study.methods)
        assert {site for row in block["values"].values() for site in row} <= {*study.sites, "mean"}


@pytest.mark.filterwarnings("ignore:parsing config_file")
def test_simulate_then_one_file(prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The test images of the list are scored, twice alike; the exported site then tells the class of a photograph."""
    sets = [f"--set={key}={value}" for key, value in SMALL.items()]
    common = ["--data", str(prepared), "--method", "fedrdn+fedbn", "--rounds", "2", "--threads", "1", *sets]
    for name in ("run", "again"):
        main(["simulate", "office_caltech10", *common, "--out", str(tmp_path / name)])
    site = tmp_path / "run" / "sites" / "webcam"
    scores = (site / "predictions.csv").read_bytes()
    assert scores == (tmp_path / "again" / "sites" / "webcam" / "predictions.csv").read_bytes()
    rows = list(csv.DictReader((site / "predictions.csv").read_text().splitlines()))
    assert [int(row["row"]) for row in rows] == list(range(40, 50))

    Image.effect_noise((90, 70), 60).convert("RGB").save(tmp_path / "photo.jpg")
    with caplog.at_level(logging.INFO, logger="monai_fedskew"):
        monai.bundle.run(
            config_file=str(site / "configs" / "inference.yaml"),
            logging_file=False,
            bundle_root=str(site),
            image=str(tmp_path / "photo.jpg"),
        )
    (row,) = csv.DictReader((site / "output" / "predictions.csv").read_text().splitlines())
    assert (row["subject"], row["row"], row["label"]) == ("photo", "0", "-1")
    name, probability = CLASSES[int(row["prediction"])], float(row[f"p{row['prediction']}"])
    assert f"photo: {name}, probability {probability:.3f}" in caplog.messages
