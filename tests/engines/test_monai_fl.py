"""monai.fl: a study through ClientAlgo equals the simulator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws import difference, method
from loopback import private_state
from monai.fl.client import ClientAlgo
from monai.fl.utils.constants import ExtraItems, ModelType, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from torch import Tensor

from monai_fedskew.core.messages import Broadcast, Survey, Update
from monai_fedskew.engines.monai_fl import FedSkewAlgo, from_exchange, to_exchange
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError, StateError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study
from monai_fedskew.sites.site_file import SiteFile, write_site_file

COMPOSED = "fedrdn+fedbn+fedprox:mu=0.2"


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
        assert difference(private_state(tmp_path, name, 3), expected.last_private[name]) == "", name
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
