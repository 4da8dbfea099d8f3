"""monai.fl: a study through ClientAlgo equals the simulator; MonaiAlgo with our filters is FedBN."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from laws import difference, method
from monai.fl.client import ClientAlgo, MonaiAlgo
from monai.fl.utils.constants import ExtraItems, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from safetensors.torch import load_file
from torch import Tensor, nn

from monai_fedskew.core.messages import Broadcast, Survey, Update
from monai_fedskew.engines.monai_fl import FedBNAlgo, FedSkewAlgo, KeepNorms, OwnNorms, from_exchange, to_exchange
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError, StateError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study
from monai_fedskew.sites.site_file import SiteFile, write_site_file

COMPOSED = "fedrdn+fedbn+fedprox:mu=0.2"
# MONAI's own advice whenever a MonaiAlgo opens a bundle
pytestmark = pytest.mark.filterwarnings("ignore:executing the bundle config")


class Platform:
    """What a MONAI-FL platform does, in one process: hands requests to each site's ClientAlgo. A Transport."""

    def __init__(self, algos: Mapping[str, ClientAlgo]) -> None:
        self.algos = algos

    def present(self) -> frozenset[str]:
        """Return all of them."""
        return frozenset(self.algos)

    def ask(self, requests: Mapping[str, Request]) -> dict[str, Reply | Failure]:
        """Ask one after the other."""
        return {name: self._ask(self.algos[name], request) for name, request in requests.items()}

    def _ask(self, algo: ClientAlgo, request: Request) -> Reply | Failure:
        data, extra = to_exchange(request)
        try:
            if request.task == "survey":
                return from_exchange(algo.get_data_stats(extra))
            if request.task == "fit":
                algo.train(data, extra)
                return from_exchange(algo.get_weights(extra))
            return from_exchange(algo.evaluate(data, extra))
        except FedSkewError as error:
            return Failure(f"{type(error).__name__}: {error}")


def _site_file(root: Path, name: str, source: Any) -> Path:
    path = root / name / "fedskew.json"
    write_site_file(
        path, SiteFile(name, source.bundle, source.data, root / name / "state", root / name / "results", {})
    )
    return path


def _algos(root: Path, sources: dict[str, Any], how: str, settings: Settings) -> dict[str, FedSkewAlgo]:
    algos = {}
    for name, source in sources.items():
        algos[name] = FedSkewAlgo(str(_site_file(root, name, source)), how, "s", settings.plain())
        algos[name].initialize({ExtraItems.CLIENT_NAME: name, ExtraItems.APP_ROOT: "/nowhere"})
    return algos


@pytest.mark.parametrize("how", ["fedavg", "fedbn", COMPOSED])
def test_a_study_equals_the_simulator(how: str, sources: dict[str, Any], tmp_path: Path) -> None:
    """Global tensors, each site's private state and every score, bit for bit; case 34 in monai.fl."""
    settings, sources = Settings(rounds=3), {name: sources[name] for name in ("A", "B")}
    algos = _algos(tmp_path, sources, how, settings)
    got = run_study(method(how), settings, Platform(algos), study="s", run=tmp_path / "run", engine="monai.fl")
    expected = simulate(method(how), sources, settings, run=tmp_path / "simulated")
    assert difference(checkpoint.load(tmp_path / "run", 3).server, expected.last) == ""
    for name in sources:
        (path,) = (tmp_path / name / "state").rglob("3.safetensors")
        assert difference(load_file(path), expected.last_private[name]) == "", name
        algos[name].finalize()
    assert (tmp_path / "run" / "history.jsonl").read_text() == (tmp_path / "simulated" / "history.jsonl").read_text()
    assert set(got["sites"]) == set(sources)
    assert got["unfinished"] == {}


def test_a_new_process_goes_on_from_the_sites_own_state(sources: dict[str, Any], tmp_path: Path) -> None:
    """Every site is finalized and opened anew in each round: the same bits; case 34."""
    settings, pair = Settings(rounds=2), {name: sources[name] for name in ("A", "B")}

    class Forgetful(Platform):
        def _ask(self, algo: ClientAlgo, request: Request) -> Reply | Failure:
            answer = super()._ask(algo, request)
            name = next(name for name, known in self.algos.items() if known is algo)
            algo.finalize()
            algo.initialize({ExtraItems.CLIENT_NAME: name})
            return answer

    algos = _algos(tmp_path, pair, COMPOSED, settings)
    run_study(method(COMPOSED), settings, Forgetful(algos), study="s", run=tmp_path / "run", engine="monai.fl")
    expected = simulate(method(COMPOSED), pair, settings)
    assert difference(checkpoint.load(tmp_path / "run", 2).server, expected.last) == ""


def test_what_crosses_is_plain(sources: dict[str, Any], tmp_path: Path) -> None:
    """Tensors or arrays as weights, only shared ones; text, numbers and arrays beside them; metrics are floats."""
    algo = _algos(tmp_path, {"A": sources["A"]}, COMPOSED, Settings(rounds=1))["A"]
    survey = from_exchange(algo.get_data_stats(to_exchange(Request("survey", "s", "r"))[1])).message
    assert isinstance(survey, Survey)
    data, extra = to_exchange(Request("fit", "s", "r", cast=Broadcast(1, survey.tensors, _table(survey))))
    assert {type(value) for value in data.weights.values()} == {Tensor}
    data.weights = {key: value.numpy() for key, value in data.weights.items()}  # as a platform may hand them on
    algo.train(data, extra)
    back = algo.get_weights(extra)
    assert back.weight_type == WeightType.WEIGHTS
    assert set(back.weights) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert set(back.statistics) == {"fedskew", "fedskew_aux", "num_executed_iterations"}
    assert type(back.statistics["fedskew"]) is str
    assert all(type(value) is np.ndarray for value in back.statistics["fedskew_aux"].values())
    update = from_exchange(back).message
    assert isinstance(update, Update)
    assert back.statistics["num_executed_iterations"] == update.steps > 0
    assert {name: type(value) for name, value in back.metrics.items()} == {"accuracy": float}
    assert "1." not in back.statistics["fedskew"]


def _table(survey: Survey) -> dict[str, dict[str, Tensor]]:
    """What the server of FedRDN would tell one site alone."""
    from monai_fedskew.federation.server import Server

    server = Server(method(COMPOSED), Settings(rounds=1))
    server.open([survey])
    return {name: dict(state) for name, state in server.cast().aux.items()}


@pytest.mark.parametrize("form", ["tensors", "arrays"])
def test_scalars_and_counters_keep_shape_and_type(form: str, sources: dict[str, Any], tmp_path: Path) -> None:
    """Case 35: a 0-d int64 counter goes to a site and back, and loads strictly."""
    algo = _algos(tmp_path, {"A": sources["A"]}, "fedavg", Settings(rounds=1))["A"]
    survey = from_exchange(algo.get_data_stats(to_exchange(Request("survey", "s", "r"))[1])).message
    assert isinstance(survey, Survey)
    tensors = {**survey.tensors, "1.num_batches_tracked": torch.tensor(7)}
    data, extra = to_exchange(Request("fit", "s", "r", cast=Broadcast(1, tensors)))
    assert difference(data.weights, tensors) == ""
    if form == "arrays":
        data.weights = {key: value.numpy() for key, value in data.weights.items()}
    algo.train(data, extra)
    update = from_exchange(algo.get_weights()).message
    assert isinstance(update, Update)
    counter = update.tensors["1.num_batches_tracked"]
    assert (counter.dtype, counter.shape, int(counter)) == (torch.int64, (), 7 + update.steps)
    sources["A"].open().model.load_state_dict(update.tensors, strict=True)


def test_wrong_calls_are_refused(sources: dict[str, Any], tmp_path: Path) -> None:
    """Each says what was wrong and what belongs there."""
    settings = Settings(rounds=1)
    path = str(_site_file(tmp_path, "A", sources["A"]))
    algo = FedSkewAlgo(path, "fedbn", "s", settings.plain())
    survey = to_exchange(Request("survey", "s", "r"))[1]
    with pytest.raises(ConfigError, match="not initialized; the platform must call initialize first"):
        algo.get_data_stats(survey)
    with pytest.raises(ConfigError, match="site is 'A', but the engine knows this site as 'B'"):
        algo.initialize({ExtraItems.CLIENT_NAME: "B"})
    algo.initialize()
    with pytest.raises(StateError, match="extra lacks 'fedskew'"):
        algo.get_data_stats({})
    with pytest.raises(
        StateError, match="survey of study s came where fit of s belongs; survey goes to get_data_stats"
    ):
        algo.train(ExchangeObject(), survey)
    with pytest.raises(StateError, match="survey of study other came where survey of s belongs"):
        algo.get_data_stats(to_exchange(Request("survey", "other", "r"))[1])
    with pytest.raises(RoundError, match="nothing was trained since the last abort or start; call train first"):
        algo.get_weights()
    with pytest.raises(ConfigError, match="holds private entries and stays at the site"):
        algo.get_weights({ExtraItems.MODEL_TYPE: ModelType.BEST_MODEL})
    message = from_exchange(algo.get_data_stats(survey)).message
    assert isinstance(message, Survey)
    data, extra = to_exchange(Request("fit", "s", "r", cast=Broadcast(1, message.tensors)))
    data.weight_type = WeightType.WEIGHT_DIFF
    with pytest.raises(StateError, match="weight_type is fl_weight_diff, but whole weights are exchanged"):
        algo.train(data, extra)
    data.weight_type = WeightType.WEIGHTS
    algo.train(data, extra)
    algo.abort()
    with pytest.raises(RoundError, match="nothing was trained"):
        algo.get_weights()
    algo.finalize()


# ---- FedBN for MonaiAlgo


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
