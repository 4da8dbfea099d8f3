"""The bundle of prostate MRI: MONAI's own checks, a site's own transforms and network, and runs from NIfTI to masks."""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from bundle_checks import require_monai_checks
from monai.bundle import ConfigParser, ConfigWorkflow

from monai_fedskew.cli.main import main
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.prepare import prepare_images
from monai_fedskew.data.synthetic_volumes import write_prostate_volumes
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle

BUNDLE = find_bundle("prostate_mri")
CONFIGS = BUNDLE / "configs"
SMALL: Mapping[str, Any] = {"spacing": [4.0, 4.0, 3.0], "patch_size": [16, 16, 16], "folds": 2}
WORDS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
SITES = ("ISBI_1.5", "UCL")  # a name with a dot; axes in another order than all others


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the six sites, four coarse volumes each."""
    root = tmp_path_factory.mktemp("prostate")
    write_prostate_volumes(root / "raw", sites=SITES, cases=4, coarseness=7)
    prepare_images(root / "raw", root / "prepared", Options())
    return root / "prepared"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the bundle with few channels, in which UCL has dropout."""
    copy = shutil.copytree(BUNDLE, tmp_path_factory.mktemp("bundle") / "own", ignore=shutil.ignore_patterns("output"))
    for name in ("train.yaml", "inference.yaml"):
        text = (copy / "configs" / name).read_text()
        (copy / "configs" / name).write_text(text.replace("channels: [16, 32, 64, 128]", "channels: [4, 8, 8]"))
    with (copy / "configs" / "site_ucl.yaml").open("a") as file:
        file.write("dropout: 0.1\n")
    return copy


@pytest.mark.filterwarnings("ignore:No hash value", "ignore:parsing config_file")  # MONAI's notices on every call
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # ckpt_export goes through torch.jit
def test_monai_checks_pass(tmp_path: Path) -> None:
    """verify_metadata, verify_net_in_out and ckpt_export run through, with no network connection."""
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / "train.yaml"))
    require_monai_checks(CONFIGS, parser.get_parsed_content("network_def"), tmp_path)


@pytest.mark.parametrize("names", [("train",), ("train", "evaluate"), ("inference",), ("inference", "site_isbi_1.5")])
def test_properties_are_complete(prepared: Path, names: tuple[str, ...]) -> None:
    """MONAI's own check finds no property missing or wrong, with an overlay whose name has a dot, too."""
    workflow = ConfigWorkflow(
        config_file=[str(CONFIGS / f"{name}.yaml") for name in names],
        logging_file=False,
        workflow_type="infer" if names[0] == "inference" else "train",
        bundle_root=str(BUNDLE),
        dataset_dir=str(prepared / "ISBI_1.5"),
        folds=2,
    )
    workflow.initialize()
    assert workflow.check_properties() == []


def test_every_site_has_its_own_transforms(prepared: Path) -> None:
    """Orientation, spacing and intensity come from the overlay, for training and for inference alike."""
    found = {}
    for site in ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL"):
        for name in ("train", "inference"):
            parser = ConfigParser()
            parser.read_config([str(CONFIGS / f"{name}.yaml"), str(CONFIGS / f"site_{site.lower()}.yaml")])
            assert parser["site"] == site
            seen = parser["orientation"], parser["spacing"], parser["intensity#upper"]
            assert found.setdefault(site, seen) == seen
    assert found["I2CVB"] == ("RAS", [0.8, 0.8, 1.5], 99.5)
    assert [site for site in found if found[site][2] == 98.0] == ["BIDMC", "HK", "ISBI_1.5"]


def test_all_sites_train_on_one_grid_and_are_surveyed_whole(prepared: Path) -> None:
    """Patches of one size from volumes of any orientation; statistics are of whole volumes in 0 .. 1, not z-scored."""
    spreads = []
    for name in SITES:
        site = BundleSite(BUNDLE, name, prepared / name, {**SMALL, "validation_fraction": 0.0}).open()
        batch = next(iter(site.trainer.data_loader))
        assert batch["image"].shape == batch["label"].shape == (4, 1, 16, 16, 16)
        assert batch["label"].unique().tolist() == [0, 1]
        whole = next(site.examples())
        scanner_mm = {"ISBI_1.5": (76, 76, 63), "UCL": (88, 88, 62.7)}[name]
        np.testing.assert_allclose(whole.shape[2:], np.array(scanner_mm) / (4, 4, 3), atol=1.6)
        assert (float(whole.min()), float(whole.max())) == (0.0, 1.0)
        spreads.append(float(whole.mean()))
    assert abs(spreads[0] - spreads[1]) > 0.02


@pytest.fixture(scope="module")
def federated(prepared: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few rounds with statistics, drawn normalisation and batch norm of the site's own."""
    out = tmp_path_factory.mktemp("run") / "run"
    options = ["--method", "fedrdn+fedbn", "--rounds", "4", "--local-epochs", "5", "--choose", "last"]
    sets = [*WORDS, "--set", "validation_fraction=0.0", "--set", "cache_dir=" + str(out.with_name("cache"))]
    words = ["simulate", str(bundle), "--data", str(prepared), *options, *sets, "--set", "cache=disk"]
    main([*words, "--threads", "1", "--out", str(out)])
    return out


def test_a_federation_learns_glands_at_both_sites(federated: Path) -> None:
    """From two training volumes a site; distances are in millimetres. No site's images came from another's cache."""
    for site in SITES:
        with (federated / "sites" / site / "segmentation.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [row["class"] for row in rows] == ["prostate"] * 2
        assert {row["unit"] for row in rows} == {"mm"}
        assert np.mean([float(row["dice"]) for row in rows]) > 0.4
    assert len(list(federated.with_name("cache").glob("*/*"))) == 4


def test_two_sites_at_once_from_elsewhere(federated: Path, prepared: Path) -> None:
    """Case 37: from inside each other's bundle, one scores as in the run, one writes a mask on its volume's grid."""
    with_table, with_mask = (federated / "sites" / site for site in SITES)
    raw = prepared.parent / "raw" / "UCL"
    options = ["--image", str(raw / "Case02.nii.gz"), "--dataset_dir", "absent"]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(_run, with_table, cwd=with_mask), pool.submit(_run, with_mask, *options, cwd=with_table)]
    for call in calls:
        assert call.result().returncode == 0, call.result().stdout
    assert (with_table / "output" / "segmentation.csv").read_bytes() == (with_table / "segmentation.csv").read_bytes()
    assert [path.name for path in (with_mask / "output").iterdir()] == ["Case02_mask.nii.gz"]
    image, mask = nib.load(raw / "Case02.nii.gz"), nib.load(with_mask / "output" / "Case02_mask.nii.gz")
    assert mask.shape == image.shape
    np.testing.assert_array_equal(mask.affine, image.affine)
    found, truth = np.asarray(mask.dataobj) > 0, nib.load(raw / "Case02_segmentation.nii.gz").get_fdata() > 0
    assert mask.get_data_dtype() == np.uint8
    assert 2 * (found & truth).sum() > 0.4 * (found.sum() + truth.sum())


def _run(bundle: Path, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "monai.bundle", "run", "--config_file", str(bundle / "configs" / "inference.yaml")]
    return subprocess.run(
        [*words, *options], cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_site_may_have_dropout_but_no_other_shapes(
    prepared: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dropout changes no shared entry; other channels do, and the refusal names both sites."""
    one, other = (BundleSite(bundle, name, prepared / name, SMALL).open().model for name in SITES)
    rates = [{getattr(module, "p", 0.0) for module in model.modules()} for model in (one, other)]
    assert rates == [{0.0}, {0.0, 0.1}]
    shapes = [{key: value.shape for key, value in model.state_dict().items()} for model in (one, other)]
    assert shapes[0] == shapes[1]

    wide = shutil.copytree(bundle, tmp_path / "wide")
    with (wide / "configs" / "site_ucl.yaml").open("a") as file:
        file.write("channels: [4, 8, 16]\n")
    words = ["--data", str(prepared), *WORDS, "--rounds", "1"]
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(wide), "--method", "fedavg", *words, "--out", str(tmp_path / "run")])
    assert stopped.value.code == 1
    assert "UCL" in (said := capsys.readouterr().err)
    assert "ISBI_1.5" in said
