"""What a site takes home."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from monai.bundle import ConfigParser
from safetensors.torch import load_file
from torch import nn
from variants import Piece

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Deployment
from monai_fedskew.core.state import snapshot
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.methods import METHODS, parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.export import export_bundle
from monai_fedskew.sites.locate import find_bundle

NORM = Deployment("monai_fedskew.transforms.NormaliseBatch", {"mean": torch.zeros(15), "std": torch.ones(15)})


def _export(source: BundleSite, folder: Path, method: str = "fedavg", deployments: Any = None) -> Path:
    model = {"0.weight": torch.ones(2, 3)}
    export_bundle(source, folder, model=model, method=parse_method(method), seed=3, deployments=deployments or {})
    return folder


def test_without_an_inference_configuration_weights_and_normalisation_are_still_written(
    sources: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the site and what is missing; nothing that was learnt is lost."""
    caplog.set_level(logging.WARNING)
    folder = _export(sources["A"], tmp_path / "A", "sitenorm", {"sitenorm": NORM})
    assert "inference.yaml" in caplog.text
    assert torch.equal(load_file(folder / "model.safetensors")["0.weight"], torch.ones(2, 3))
    assert set(load_file(folder / "normalisation.safetensors")) == {"mean", "std"}
    assert not (folder / "configs" / "inference.yaml").exists()


def test_the_bundles_own_code_goes_along(tmp_path: Path) -> None:
    """`scripts` and LICENSE are copied, and a README of its own says how to run what is there."""
    bundle = tmp_path / "b"
    shutil.copytree(find_bundle("abide_connectome"), bundle)
    (bundle / "scripts").mkdir()
    (bundle / "scripts" / "mine.py").write_text('"""A network of our own."""\n')
    folder = _export(BundleSite(bundle, "NYU"), tmp_path / "NYU")
    assert (folder / "scripts" / "mine.py").read_text() == '"""A network of our own."""\n'
    for name in ("LICENSE", "configs/metadata.json", "configs/logging.conf"):
        assert (folder / name).read_text() == (bundle / name).read_text()
    assert "configs/inference.yaml" in (folder / "README.md").read_text()


def test_the_configuration_holds_what_was_decided(tmp_path: Path) -> None:
    """Site, data, overrides and normalisation in force; and a method that leaves the network alone is not named."""
    source = BundleSite(find_bundle("abide_connectome"), "NYU", tmp_path / "data", {"hidden": 8, "lr": 0.5})
    folder = _export(source, tmp_path / "NYU", "fedrdn+fedbn", {"fedrdn": NORM})
    text = (folder / "configs" / "inference.yaml").read_text()
    config = yaml.safe_load(text)
    assert config["site"] == "NYU"
    assert config["hidden"] == 8
    assert "lr" not in config
    assert config["dataset_dir"] == str(tmp_path / "data")
    assert config["evaluator#prepare_batch"]["_target_"] == NORM.target
    assert config["network_def"]["_target_"] == "monai_fedskew.networks.ConnectomeMLP"
    assert text.startswith("# fedrdn+fedbn, seed 3, site NYU\n")


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path) -> None:
    """predictions.csv was there before the export."""
    folder = tmp_path / "NYU"
    folder.mkdir()
    (folder / "predictions.csv").write_text("mine")
    _export(BundleSite(find_bundle("abide_connectome"), "NYU"), folder)
    assert (folder / "predictions.csv").read_text() == "mine"


def test_weights_of_a_real_network_come_back_bit_for_bit(sources: dict[str, Any], tmp_path: Path) -> None:
    """Counters included."""
    network = sources["A"].open().model
    state = snapshot(network, network.state_dict())
    source = BundleSite(find_bundle("abide_connectome"), "NYU")
    export_bundle(source, tmp_path, model=state, method=parse_method("fedavg"), seed=0, deployments={})
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) and loaded[key].dtype == state[key].dtype for key in state)


class _Wider(Piece):
    """Puts a layer in front of the network."""

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 10), model)


def test_a_network_that_the_method_changed_is_defined_in_the_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exported configuration alone builds it again: all weights fit, and it predicts the same."""
    monkeypatch.setitem(METHODS, "wider", lambda: Method("wider", parts=(_Wider("wider"),)))
    data = write_synthetic_study(tmp_path / "data", sites=("EAST",), n_regions=5)
    source = BundleSite(find_bundle("abide_connectome"), "EAST", data / "EAST", {"in_features": 10})
    method = parse_method("wider")
    network = source.open(method.parts, seed=3).model.eval()
    state = snapshot(network, network.state_dict())
    export_bundle(source, tmp_path / "out", model=state, method=method, seed=3, deployments={})
    parser = ConfigParser()
    parser.read_config(str(tmp_path / "out" / "configs" / "inference.yaml"))
    again = parser.get_parsed_content("network_def").eval()
    again.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    batch = torch.rand(4, 10)
    assert torch.equal(network(batch), again(batch))
