"""The bundle of digits: MONAI's own checks, and a run from prepared images to a table."""

import csv
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bundle_checks import require_monai_checks
from monai.bundle import ConfigWorkflow, run
from PIL import Image

from monai_fedskew.cli.main import main
from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.errors import ConfigError
from monai_fedskew.networks import DigitsCNN
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.scaffold import new_bundle

CONFIGS = find_bundle("digits") / "configs"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites of 50 images, five of each digit: a bar whose place is the digit, brighter at one site."""
    root = tmp_path_factory.mktemp("digits")
    for site, gain in (("MNIST", 1.0), ("USPS", 0.5)):
        labels = np.arange(50) % 10
        images = np.random.default_rng(0).normal(-1, 0.1, (50, 1, 28, 28)).astype(np.float32)
        for image, label in zip(images, labels, strict=True):
            image[0, 2 * label + 3 : 2 * label + 6] += gain
        write_image_site(root / site, images, labels, label_names=[str(k) for k in range(10)])
    return root


@pytest.mark.filterwarnings("ignore:No hash value", "ignore:parsing config_file")  # MONAI's notices on every call
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # ckpt_export goes through torch.jit
def test_monai_checks_pass(tmp_path: Path) -> None:
    """verify_metadata, verify_net_in_out and ckpt_export run through, with no network connection."""
    require_monai_checks(CONFIGS, DigitsCNN(), tmp_path)


@pytest.mark.parametrize("names", [("train",), ("train", "evaluate"), ("inference",)])
def test_properties_are_complete(prepared: Path, names: tuple[str, ...]) -> None:
    """MONAI's own check finds no property missing or wrong."""
    workflow = ConfigWorkflow(
        config_file=[str(CONFIGS / f"{name}.yaml") for name in names],
        logging_file=False,
        workflow_type="infer" if names[0] == "inference" else "train",
        bundle_root=str(CONFIGS.parent),
        dataset_dir=str(prepared / "MNIST"),
    )
    workflow.initialize()
    assert workflow.check_properties() == []


@pytest.mark.parametrize(("limit", "held"), [(10, [10, 10]), ({"MNIST": 30, "USPS": 10}, [30, 10])])
def test_sites_of_any_size_make_as_many_steps_as_asked(prepared: Path, limit: object, held: list[int]) -> None:
    """30 or 10 of 40 training images a site; 70 an epoch are three steps of up to 32, whatever there are."""
    sizes = {"limit": limit, "validation_fraction": 0.0, "width": 0.1}
    for more, steps in (({}, [1, 1]), ({"samples_per_epoch": 70}, [3, 3])):
        sources = [BundleSite(CONFIGS.parent, name, prepared / name, {**sizes, **more}) for name in ("MNIST", "USPS")]
        sites = [source.open() for source in sources]
        assert [site.samples for site in sites] == held
        assert [site.train(1, 1, keep_optimizer=False)[0] for site in sites] == steps


def test_a_site_without_a_size_of_its_own_is_named(prepared: Path) -> None:
    """Where sizes are given by site they are given for all."""
    with pytest.raises(ConfigError, match="site USPS: cannot be opened: KeyError: 'USPS'"):
        BundleSite(CONFIGS.parent, "USPS", prepared / "USPS", {"limit": {"MNIST": 30}}).open()


def test_width_scales_every_layer_but_the_last() -> None:
    """A quarter of 64, 64, 128, 2048 and 512; 32 channels of 7 x 7 are 1568."""
    network = DigitsCNN(width=0.25)
    widths = [layer[0].out_channels for layer in (network.layer1, network.layer2, network.layer3)]
    assert widths == [16, 16, 32]
    assert (network.fc1.in_features, network.fc1.out_features, network.fc2.out_features) == (1568, 512, 128)
    assert network(torch.zeros(2, 3, 28, 28)).shape == (2, 10)


def test_a_hospitals_own_bundle_trains_from_another_folder(prepared: Path, tmp_path: Path) -> None:
    """Plain `monai.bundle run`, started elsewhere, then inference: a probability a digit and image."""
    own = new_bundle("digits", site="USPS", data=prepared / "USPS", out=tmp_path / "own")
    for names, options in ((["train", "site_usps"], ["--max_epochs", "1"]), (["inference", "site_usps"], [])):
        files = str([str(own / "configs" / f"{name}.yaml") for name in names])
        words = [sys.executable, "-m", "monai.bundle", "run", "--config_file", files, "--width", "0.1", *options]
        call = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True, capture_output=True, timeout=120
        )
        assert call.returncode == 0, call.stdout + call.stderr
    with (own / "output" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert list(rows[0])[4:] == [f"p{k}" for k in range(10)]


@pytest.mark.filterwarnings("ignore:parsing config_file")
def test_simulate_learns_the_digits_of_both_sites(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Bars are learned in a few rounds, far above the one in ten of guessing; then from a file as from its row."""
    out = tmp_path / "run"
    options = ["--method", "fedbn", "--rounds", "4", "--local-epochs", "2", "--choose", "last", "--threads", "1"]
    sets = ["--set", "width=0.1", "--set", "validation_fraction=0.0", "--set", "lr=0.1"]
    main(["simulate", "digits", "--data", str(prepared), *options, *sets, "--out", str(out)])
    site = out / "sites" / "MNIST"
    rows = list(csv.DictReader((site / "predictions.csv").read_text().splitlines()))
    assert sum(row["label"] == row["prediction"] for row in rows) >= 8

    stored = np.load(prepared / "MNIST" / "vectors.npy")[int(rows[3]["row"])].reshape(28, 28)
    pixels = np.clip(np.rint((stored + 1) * 127.5), 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "scan.png")
    with caplog.at_level(logging.INFO, logger="monai_fedskew"):
        config = str(site / "configs" / "inference.yaml")
        run(config_file=config, logging_file=False, bundle_root=str(site), image=str(tmp_path / "scan.png"))
    (row,) = csv.DictReader((site / "output" / "predictions.csv").read_text().splitlines())
    assert (row["subject"], row["label"], row["prediction"]) == ("scan", "-1", rows[3]["prediction"])
    assert float(row["p3"]) == pytest.approx(float(rows[3]["p3"]), abs=0.05)  # 8 bits, and nothing darker than black
    assert any(text.startswith(f"scan: {row['prediction']}, probability 0.") for text in caplog.messages)
