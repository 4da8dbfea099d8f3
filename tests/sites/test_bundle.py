"""A bundle folder becomes a site: what is left out, what is refused, what is decided for a site."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from laws import difference
from torch import nn
from variants import Piece, bundle_with

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.state import snapshot
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite

_SAVED = {"save_dir": "saved", "save_dict": {"model": "@network"}}
LEFT_OUT = {
    "CheckpointLoader": {"load_path": "nowhere.pt", "load_dict": {"model": "@network"}},
    "CheckpointSaver": {**_SAVED, "save_interval": 1, "save_final": True},
    "ValidationHandler": {"validator": "@validate#evaluator", "interval": 1},
    "StatsHandler": {"output_transform": "$lambda output: None"},
    "TensorBoardStatsHandler": {"log_dir": "events"},
}


def _handler(where: str, handler: Any) -> Any:
    """A change that gives one engine a handler; the validation handler of the tiny bundle goes."""

    def change(config: dict[str, Any]) -> None:
        handlers = [h for h in config["train"]["handlers"] if h["_target_"] == "LrScheduleHandler"]
        config["train"]["handlers"] = [*handlers, *([handler] if where == "train" else [])]
        if where == "validate":
            config["validate"]["handlers"] = [handler]
            config["validate"]["evaluator"]["val_handlers"] = "@validate#handlers"

    return change


def _round(source: BundleSite, output: Path) -> tuple[dict[str, torch.Tensor], Any]:
    client = Client(parse_method("fedavg"), source, Settings(rounds=1, local_epochs=2), output=output)
    cast = Broadcast(1, snapshot(client.site.model, client.shared))
    score = client.evaluate(cast)
    update = client.fit(cast)
    return dict(update.tensors), score


@pytest.mark.parametrize("where", ["train", "validate"])
@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_serves_a_run_alone_is_left_out(
    name: str, where: str, study: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers that score, load, save or speak change neither training nor score and write no file."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    arguments = dict(LEFT_OUT[name])
    if where == "validate" and name == "ValidationHandler":
        arguments["validator"] = "@train#trainer"
    bundle = bundle_with(tiny_bundle, tmp_path / "b", _handler(where, {"_target_": name, **arguments}))
    tensors, score = _round(BundleSite(bundle, "A", study / "A"), tmp_path / "out")
    expected, plain = _round(BundleSite(tiny_bundle, "A", study / "A"), tmp_path / "out")
    assert difference(tensors, expected) == ""
    assert score == plain
    assert list((tmp_path / "here").iterdir()) == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("where", ["train", "validate"])
def test_a_dotted_target_is_left_out_as_well(where: str, study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """`monai.handlers.StatsHandler` is the same handler."""
    handler = {"_target_": "monai.handlers.StatsHandler", "no_such_argument": 1}
    bundle = bundle_with(tiny_bundle, tmp_path / "b", _handler(where, handler))
    assert BundleSite(bundle, "A", study / "A").open().samples == 36


@pytest.mark.parametrize("where", ["train", "validate"])
def test_early_stopping_is_refused(where: str, study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """It would end a site's round early, and remember over rounds: the error names bundle and handler."""
    score = "$lambda engine: engine.state.metrics['accuracy']"
    handler = {"_target_": "EarlyStopHandler", "patience": 1, "score_function": score, "trainer": "@train#trainer"}
    if where == "train":
        handler["trainer"] = None
    bundle = bundle_with(tiny_bundle, tmp_path / "stopping", _handler(where, handler))
    with pytest.raises(ConfigError, match="(?s)bundle stopping.*EarlyStopHandler"):
        BundleSite(bundle, "A", study / "A").open()


def test_a_handler_hidden_in_an_expression_is_refused(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Only what is written with `_target_` can be left out by us."""
    handler = "$__import__('monai').handlers.StatsHandler(output_transform=lambda output: None)"
    bundle = bundle_with(tiny_bundle, tmp_path / "b", _handler("train", handler))
    with pytest.raises(ConfigError, match="bundle b: StatsHandler among train#handlers .* leave it out"):
        BundleSite(bundle, "A", study / "A").open()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("train.yaml", "train.yaml not found; a bundle needs it"),
        ("evaluate.yaml", "evaluate.yaml not found; a bundle needs it"),
    ],
)
def test_a_missing_file_is_named(missing: str, message: str, study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """The whole path is in the error."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: None)
    (bundle / "configs" / missing).unlink()
    with pytest.raises(ConfigError, match=f"bundle b: .*{message}"):
        BundleSite(bundle, "A", study / "A").open(split="test")


def test_a_bundle_without_network_or_evaluator_is_refused(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Both ids are named."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: config.pop("network_def"))
    with pytest.raises(ConfigError, match="bundle b: train.yaml lacks the id 'network_def'"):
        BundleSite(bundle, "A", study / "A").open()

    def unscored(config: dict[str, Any]) -> None:
        del config["validate"]
        config["train"]["handlers"] = []

    bundle = bundle_with(tiny_bundle, tmp_path / "c", unscored)
    with pytest.raises(ConfigError, match="bundle c: `validate#evaluator` is missing"):
        BundleSite(bundle, "A", study / "A").open()


def test_an_unknown_override_is_refused(sources: dict[str, Any]) -> None:
    """A typing error would otherwise change nothing."""
    with pytest.raises(ConfigError, match="--set learning_rate: no such id in train.yaml"):
        replace(sources["A"], overrides={"learning_rate": 1}).open()


@pytest.mark.parametrize("value", ["$print(1)", "@momentum", "%lr", ["$print(1)"], {"_target_": "os.getcwd"}])
def test_an_override_is_a_plain_value(value: Any, sources: dict[str, Any]) -> None:
    """MONAI would evaluate it: only the bundle itself may hold expressions, references and objects."""
    with pytest.raises(ConfigError, match="--set lr.*plain value"):
        replace(sources["A"], overrides={"lr": value}).open()


@pytest.mark.parametrize("key", ["bundle_root", "site", "dataset_dir", "output_dir"])
def test_what_the_run_decides_is_no_override(key: str, sources: dict[str, Any]) -> None:
    """One site's data for all sites would otherwise be one --set away."""
    with pytest.raises(ConfigError, match=f"--set {key}: is decided by the run"):
        replace(sources["A"], overrides={key: "elsewhere"}).open()


def test_what_breaks_inside_is_told_with_bundle_and_site(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """MONAI's own errors do not say whose configuration it was."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: config["loss"].update(_target_="torch.nn.Nope"))
    with pytest.raises((ConfigError, DataError), match="bundle b, site A: cannot be opened"):
        BundleSite(bundle, "A", study / "A").open()


def test_our_own_errors_keep_their_words(tiny_bundle: Path, tmp_path: Path) -> None:
    """Data that are not there: the reason and nothing of the parser around it."""
    with pytest.raises(DataError, match=f"^no prepared site at {tmp_path}/nowhere"):
        BundleSite(tiny_bundle, "A", tmp_path / "nowhere").open()


def test_a_sites_overlay_is_put_on_top(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """configs/site_a.yaml changes site A and no other."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: None)
    (bundle / "configs" / "site_a.yaml").write_text(yaml.safe_dump({"lr": 0.5}))
    rates = {site: BundleSite(bundle, site, study / site).open().optimizer.param_groups[0]["lr"] for site in ("A", "B")}
    assert rates == {"A": 0.5, "B": 0.05}


def test_the_test_split_is_read_from_evaluate_yaml(sources: dict[str, Any]) -> None:
    """4 of 16 subjects, 16 windows, and none of them in training or validation."""
    seen = {
        split: set(sources["A"].open(split=split).evaluator.data_loader.dataset.subject_ids)
        for split in ("train", "test")
    }
    trained = set(sources["A"].open().trainer.data_loader.dataset.subject_ids)
    assert len(seen["test"]) == 4
    assert not seen["test"] & (seen["train"] | trained)


class _Wider(Piece):
    """Puts a layer in front, as hybrid norms and projection heads do."""

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(15, 15), model)


def test_a_layer_that_a_part_adds_is_trained_shared_and_alike_at_all_sites(sources: dict[str, Any]) -> None:
    """It is there before the optimizer takes the parameters and before the shared keys are taken."""
    method = replace(parse_method("fedbn"), parts=(_Wider("wider"),))
    clients = [Client(method, sources[site], Settings(rounds=1)) for site in ("A", "B")]
    surveys = [client.survey() for client in clients]
    assert difference(surveys[0].tensors, surveys[1].tensors) == ""
    assert {"0.weight", "0.bias"} <= surveys[0].parameters
    assert set(clients[0].kept) == {key for key in clients[0].site.model.state_dict() if "1.1." in key}
    update = clients[0].fit(Broadcast(1, surveys[0].tensors))
    assert not torch.equal(update.tensors["0.weight"], surveys[0].tensors["0.weight"])


def test_another_seed_gives_an_added_layer_other_weights(sources: dict[str, Any]) -> None:
    """The first weights are a function of the seed alone."""
    first, again, other = (sources["A"].open((_Wider("wider"),), seed=seed).model[0].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
