"""The bundle of nuclei: MONAI's own checks, and runs from prepared pictures to masks."""

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_checks import require_monai_checks
from monai.bundle import ConfigParser, ConfigWorkflow
from PIL import Image

from monai_fedskew.cli.main import main
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.prepare import prepare_images
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle

BUNDLE = find_bundle("nuclei_segmentation")
CONFIGS = BUNDLE / "configs"
SMALL: Mapping[str, Any] = {"channels": [4, 8], "num_res_units": 0, "crop": [32, 32], "folds": 2}
WORDS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]


def write_microscope(folder: Path, *, dark: bool, coloured: bool = False) -> None:
    """Eight pictures with a disc each, brighter or darker than what is around it, and their masks."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    random = np.random.default_rng(0)
    y, x = np.mgrid[:40, :48]
    for number in range(8):
        disc = (y - random.integers(10, 30)) ** 2 + (x - random.integers(10, 38)) ** 2 < 64
        values = random.normal(200 if dark else 20, 5, disc.shape) + (-100 if dark else 100) * disc
        picture = Image.fromarray(values.clip(0, 255).astype(np.uint8))
        picture = picture.convert("RGB") if coloured else picture
        picture.save(folder / "images" / f"{number}.png")
        Image.fromarray((disc * 300).astype(np.uint16)).save(folder / "labels" / f"{number}.png")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two microscopes: bright nuclei in grey pictures, dark ones in coloured pictures."""
    root = tmp_path_factory.mktemp("nuclei")
    write_microscope(root / "raw" / "fluor_256", dark=False)
    write_microscope(root / "raw" / "histology_256x320", dark=True, coloured=True)
    options = Options(label_names=("background", "nucleus"), binary_masks=True)
    prepare_images(root / "raw", root / "prepared", options)
    return root / "prepared"


def opened(prepared: Path, site: str = "fluor_256", **overrides: Any) -> BundleSite:
    """A site of the bundle at a size for tests."""
    return BundleSite(BUNDLE, site, prepared / site, {**SMALL, **overrides})


@pytest.mark.filterwarnings("ignore:No hash value", "ignore:parsing config_file")  # MONAI's notices on every call
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # ckpt_export goes through torch.jit
def test_monai_checks_pass(tmp_path: Path) -> None:
    """verify_metadata, verify_net_in_out and ckpt_export run through, with no network connection."""
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / "train.yaml"))
    require_monai_checks(CONFIGS, parser.get_parsed_content("network_def"), tmp_path)


@pytest.mark.parametrize("names", [("train",), ("train", "evaluate"), ("inference",)])
def test_properties_are_complete(prepared: Path, names: tuple[str, ...]) -> None:
    """MONAI's own check finds no property missing or wrong."""
    workflow = ConfigWorkflow(
        config_file=[str(CONFIGS / f"{name}.yaml") for name in names],
        logging_file=False,
        workflow_type="infer" if names[0] == "inference" else "train",
        bundle_root=str(BUNDLE),
        dataset_dir=str(prepared / "fluor_256"),
    )
    workflow.initialize()
    assert workflow.check_properties() == []


def test_grey_and_coloured_pictures_give_batches_of_one_shape(prepared: Path) -> None:
    """Three channels in 0 .. 1 and a mask of 0 and 1, whatever the microscope; statistics see whole images."""
    for site in ("fluor_256", "histology_256x320"):
        one = opened(prepared, site).open()
        batch = next(iter(one.trainer.data_loader))
        assert batch["image"].shape == (3, 3, 32, 32)
        assert batch["label"].shape == (3, 1, 32, 32)
        assert 0 <= batch["image"].min() < batch["image"].max() <= 1
        assert batch["label"].unique().tolist() == [0, 1]
        assert next(one.examples()).shape[2:] == (40, 48)


def test_a_round_is_a_function_of_its_seed(prepared: Path) -> None:
    """Crops, flips and order follow seed, site and round: a site kept alive and one rebuilt make the same weights."""
    weights = []
    kept = opened(prepared).open()
    start = {key: value.clone() for key, value in kept.model.state_dict().items()}
    for site in (kept, kept, opened(prepared).open()):
        site.model.load_state_dict(start)
        site.seed(3, 1)
        site.train(1, 1, keep_optimizer=False)
        weights.append(torch.cat([value.flatten().double() for value in site.model.state_dict().values()]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    kept.seed(3, 2)
    kept.model.load_state_dict(start)
    kept.train(2, 1, keep_optimizer=False)
    other = torch.cat([value.flatten().double() for value in kept.model.state_dict().values()])
    assert not torch.equal(weights[0], other)


@pytest.fixture(scope="module")
def federated(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five rounds with statistics, normalisation and batch norm of the site's own."""
    out = tmp_path_factory.mktemp("run") / "run"
    options = ["--method", "sitenorm+fedbn", "--rounds", "5", "--local-epochs", "3", "--choose", "last"]
    sets = ["--set", "validation_fraction=0.0", "--set", "batch_size=2"]
    main(
        ["simulate", BUNDLE.name, "--data", str(prepared), *options, *WORDS, *sets, "--threads", "1", "--out", str(out)]
    )
    return out


def test_federation_learns_both_microscopes(federated: Path) -> None:
    """Discs that are bright at one site and dark at the other are found at both."""
    for site in ("fluor_256", "histology_256x320"):
        with (federated / "sites" / site / "segmentation.csv").open() as file:
            scores = [float(row["dice"]) for row in csv.DictReader(file)]
        assert len(scores) == 4
        assert min(scores) > 0.6


def test_exported_site_scores_alone_as_in_the_run(federated: Path) -> None:
    """MONAI's workflow on what a site takes home writes the run's own table, byte for byte."""
    site = federated / "sites" / "histology_256x320"
    config = str(site / "configs" / "inference.yaml")
    workflow = ConfigWorkflow(config, logging_file=False, workflow_type="infer", bundle_root=str(site))
    workflow.initialize()
    workflow.run()
    assert (site / "output" / "segmentation.csv").read_bytes() == (site / "segmentation.csv").read_bytes()


def test_one_picture_becomes_a_mask_of_its_size(federated: Path, prepared: Path, tmp_path: Path) -> None:
    """Plain `monai.bundle run --image`, started elsewhere, needs no prepared data; the mask finds the disc."""
    raw = prepared.parent / "raw" / "fluor_256"
    site, image = federated / "sites" / "fluor_256", raw / "images" / "2.png"
    words = [sys.executable, "-m", "monai.bundle", "run", "--config_file", str(site / "configs" / "inference.yaml")]
    words += ["--image", str(image), "--output_dir", str(tmp_path), "--dataset_dir", "absent"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2_mask.png", "2_overlay.png"]
    mask = np.asarray(Image.open(tmp_path / "2_mask.png"))
    truth = np.asarray(Image.open(raw / "labels" / "2.png")) > 0
    assert mask.shape == truth.shape == (40, 48)
    assert 2 * (truth & (mask == 1)).sum() > 0.6 * (truth.sum() + (mask == 1).sum())
