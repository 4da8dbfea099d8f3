"""monai.fl: MonaiAlgo with our filters is FedBN."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from laws import difference
from monai.fl.client import ClientAlgo, MonaiAlgo
from monai.fl.utils.constants import ExtraItems, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from torch import Tensor, nn

from monai_fedskew.engines.monai_fl import FedBNAlgo, KeepNorms, OwnNorms
from monai_fedskew.errors import ConfigError, StateError

# MONAI's own advice whenever a MonaiAlgo opens a bundle
pytestmark = pytest.mark.filterwarnings("ignore:executing the bundle config")


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """The tiny bundle in the layout that MonaiAlgo reads: configs/train.json and evaluate.json."""
    configs = tmp_path / "bundle" / "configs"
    configs.mkdir(parents=True)
    for name in ("train", "evaluate"):
        content = yaml.safe_load((tiny_bundle / "configs" / f"{name}.yaml").read_text())
        (configs / f"{name}.json").write_text(json.dumps(content))
    shutil.copy(tiny_bundle / "configs" / "metadata.json", configs)
    return tmp_path / "bundle"


def _monai(bundle: Path, data: Path, **more: Any) -> MonaiAlgo:
    given = {"dataset_dir": str(data)}
    return MonaiAlgo(str(bundle), train_kwargs=dict(given), eval_kwargs=dict(given), **more)


def _start(algo: ClientAlgo, name: str) -> Any:
    torch.manual_seed(3)
    algo.initialize({ExtraItems.CLIENT_NAME: name})
    return algo


def _accuracy(shared: Mapping[str, Tensor], norms: Mapping[str, Tensor], data: Any) -> float:
    """Score a model by hand: shared entries from the server, norms from the site."""
    hand = nn.Sequential(nn.Linear(15, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))
    hand.load_state_dict({**shared, **norms})
    hand.eval()
    batch = data.__getitems__(list(range(len(data))))
    with torch.no_grad():
        return float((hand(batch["image"]).argmax(1) == batch["label"]).double().mean())


@pytest.mark.parametrize("is_difference", [False, True], ids=["weights", "differences"])
def test_monai_algo_becomes_fedbn(is_difference: bool, bundle: Path, study: Path) -> None:
    """Two sites, two rounds: no norm is sent, counters go on, and each site is scored with its own norms; case 34."""
    algos = {
        name: _start(FedBNAlgo(_monai(bundle, study / name, send_weight_diff=is_difference)), name)
        for name in ("A", "B")
    }
    live = {name: algo.algo.trainer.network for name, algo in algos.items()}
    shared = {key: value.clone() for key, value in live["A"].state_dict().items() if not key.startswith("1.")}
    for _ in range(2):
        sent = {}
        for name, algo in algos.items():
            algo.train(ExchangeObject(weights=shared, weight_type=WeightType.WEIGHTS))
            sent[name] = algo.get_weights().weights
            assert set(sent[name]) == {"0.weight", "0.bias", "4.weight", "4.bias"}
        mean = {key: (sent["A"][key] + sent["B"][key]) / 2 for key in shared}
        shared = {key: shared[key] + value if is_difference else value for key, value in mean.items()}
    norms = {n: {k: v for k, v in net.state_dict().items() if k.startswith("1.")} for n, net in live.items()}
    assert not torch.equal(norms["A"]["1.running_mean"], norms["B"]["1.running_mean"])
    received = ExchangeObject(weights=shared, weight_type=WeightType.WEIGHTS)
    for name, algo in algos.items():
        trainer, evaluator = algo.algo.trainer, algo.algo.evaluator
        assert trainer.network is not evaluator.network
        assert int(norms[name]["1.num_batches_tracked"]) == 2 * trainer.state.epoch_length
        data = evaluator.data_loader.dataset
        expected = _accuracy(shared, norms[name], data)
        assert algo.evaluate(received).metrics["accuracy"] == pytest.approx(expected)
        assert difference(evaluator.network.state_dict(), {**shared, **norms[name]}) == ""
    assert set(received.weights) == set(shared)  # what one site adds, no other sees


def test_filters_alone_would_score_with_untrained_norms(bundle: Path, study: Path) -> None:
    """The trap: MonaiAlgo's evaluator has a network of its own, on which nobody ever trained a norm."""
    (bundle / "configs" / "filters.json").write_text(
        json.dumps(
            {
                "post_weight_filters": [
                    {"_target_": "monai_fedskew.engines.monai_fl.KeepNorms", "network": "@network_def"}
                ]
            }
        )
    )
    files = ["configs/train.json", "configs/filters.json"]
    algo = _start(_monai(bundle, study / "A", send_weight_diff=False, config_filters_filename=files), "A")
    first = algo.get_weights()
    assert set(first.weights) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    algo.train(first)
    algo.evaluate(algo.get_weights())
    assert algo.trainer.network[1].running_mean.abs().sum() > 0
    assert algo.evaluator.network[1].running_mean.abs().sum() == 0
    algo.pre_filters = [OwnNorms(algo.trainer.network)]
    algo.evaluate(algo.get_weights())
    assert torch.equal(algo.trainer.network[1].running_mean, algo.evaluator.network[1].running_mean)


def test_norms_survive_a_new_process(bundle: Path, study: Path, tmp_path: Path) -> None:
    """Kept on disk after every training; another network's are refused, a nameless site's not written; case 34."""
    state = str(tmp_path / "state")
    first = _start(FedBNAlgo(_monai(bundle, study / "A", send_weight_diff=False), state=state), "A")
    for _ in range(2):
        first.train(first.get_weights())
    norms = {k: v.clone() for k, v in first.algo.trainer.network.state_dict().items() if k.startswith("1.")}
    first.finalize()
    second = _start(FedBNAlgo(_monai(bundle, study / "A", send_weight_diff=False), state=state), "A")
    kept = {k: v for k, v in second.algo.trainer.network.state_dict().items() if k.startswith("1.")}
    assert difference(norms, kept) == ""
    second.train(second.get_weights())
    assert int(second.algo.trainer.network[1].num_batches_tracked) == int(norms["1.num_batches_tracked"]) * 3 // 2
    second.finalize()
    train = json.loads((bundle / "configs" / "train.json").read_text())
    wider = train["network_def"].replace("Linear(6, 2)", "Linear(6, 3)")
    (bundle / "configs" / "train.json").write_text(json.dumps({**train, "network_def": wider}))
    with pytest.raises(StateError, match="that of round 2, 3 was written by another"):
        _start(FedBNAlgo(_monai(bundle, study / "A"), state=state), "A")
    with pytest.raises(ConfigError, match="norms are kept by site; the platform must give fl_client_name"):
        FedBNAlgo(_monai(bundle, study / "A"), state=state).initialize()


def test_norms_are_found_by_type_or_it_is_an_error() -> None:
    """MONAI's UNet names no norm "bn"; a network without batch norm is refused, as are another network's weights."""
    from monai.networks.nets import UNet

    shape = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2, "channels": (4, 8), "strides": (2,)}
    network = UNet(**shape, norm="batch")
    data = ExchangeObject(weights=network.state_dict(), weight_type=WeightType.WEIGHTS)
    sent = KeepNorms(network)(data).weights
    norms = [key for key in network.state_dict() if ".adn.N." in key]
    assert norms
    assert set(sent) == set(network.state_dict()) - set(norms)
    assert set(data.weights) == set(network.state_dict())
    with pytest.raises(ConfigError, match="no BatchNorm entries in UNet"):
        KeepNorms(UNet(**shape, norm="instance"))
    with pytest.raises(StateError, match=r"weights lack \d+ batch norm entries .*: they are of another network"):
        KeepNorms(network)(ExchangeObject(weights={"a": torch.ones(1)}))
    with pytest.raises(StateError, match="no entry of UNet in it"):
        OwnNorms(network)(ExchangeObject(weights={"a": torch.ones(1)}))


def test_fedbn_needs_a_trainer(bundle: Path, study: Path) -> None:
    """A MonaiAlgo that only scores has no norms of its own."""
    algo = FedBNAlgo(_monai(bundle, study / "A", config_train_filename=None))
    with pytest.raises(ConfigError, match="the MonaiAlgo has no trainer"):
        algo.initialize({ExtraItems.CLIENT_NAME: "A"})
