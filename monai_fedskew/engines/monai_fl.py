"""monai.fl: our methods as a ClientAlgo for any MONAI-FL platform, and FedBN for those who stay with MonaiAlgo.

ExchangeObject has no place for the round, the side channel or the number of samples. They travel beside it: to a site
in ``extra``, from a site in ``statistics``, as one JSON text (``fedskew``) and arrays by name (``fedskew_aux``).
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from monai.fl.client import ClientAlgo, MonaiAlgo
from monai.fl.utils.constants import ExtraItems, FlStatistics, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from monai.fl.utils.filters import Filter
from torch import nn

from monai_fedskew.core.keys import except_modules
from monai_fedskew.core.messages import Evaluation, Result, Update
from monai_fedskew.core.private import StateKey, fingerprint
from monai_fedskew.core.state import restore, snapshot
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation.exchange import Reply, Request
from monai_fedskew.federation.resident import Resident, open_resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.wire import Packed, pack, unpack_reply, unpack_request
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.site_file import read_site_file
from monai_fedskew.sites.state_folder import list_held
from monai_fedskew.sites.store import SiteStore

__all__ = ["FedBNAlgo", "FedSkewAlgo", "KeepNorms", "OwnNorms", "from_exchange", "to_exchange"]

_PLAIN, _AUX = "fedskew", "fedskew_aux"
_NAMED = 5  # at most so many keys are spelled out in an error


class FedSkewAlgo(ClientAlgo):  # type: ignore[misc]  # monai ships no types
    """Answers a MONAI-FL platform at one site, from the site's own file.

    The platform passes on what ``to_exchange`` made of the server's requests: a survey to ``get_data_stats``; a fit to
    ``train``, whose answer ``get_weights`` gives; the last score and the end of a study to ``evaluate``.

    Args:
        site_file: the hospital's fedskew.json on its own disk; ``fl_app_root``, which a server decides, is ignored.
        method: as text, e.g. ``fedrdn+fedbn``.
        study: name of the study.
        settings: what ``Settings.plain`` returns.
    """

    def __init__(self, site_file: str, method: str, study: str, settings: Mapping[str, Any]) -> None:
        self.site_file, self.study = Path(site_file), study
        self.method, self.settings = parse_method(method), Settings(**settings)
        self._resident: Resident | None = None
        self._trained: Reply | None = None

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Read the site's file; ``fl_client_name`` in ``extra`` says who this is, else the file must."""
        self.finalize()
        name = (extra or {}).get(ExtraItems.CLIENT_NAME)
        self._resident = open_resident(read_site_file(self.site_file, name), self.method, self.settings)

    def finalize(self, extra: dict[str, Any] | None = None) -> None:
        """Free the site; its private state lies in its store already."""
        if self._resident is not None:
            self._resident.close()
        self._resident = self._trained = None

    def abort(self, extra: dict[str, Any] | None = None) -> None:
        """Give out nothing that was trained; a training under way runs to its end."""
        self._trained = None

    def get_data_stats(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Report the freshly built network and what the method's parts measure, before the first round."""
        return _to_server(self._answer(("survey",), None, extra))

    def train(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> None:
        """Score the received model, then train it."""
        self._trained = None
        self._trained = self._answer(("fit",), data, extra)

    def get_weights(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Return what the last training made: the shared entries only.

        Raises:
            RoundError: nothing was trained, or it was aborted.
            ConfigError: a model on disk is asked for.
        """
        if ExtraItems.MODEL_TYPE in (extra or {}):
            raise ConfigError("get_weights: the exported model holds private entries and stays at the site")
        if self._trained is None:
            raise RoundError("get_weights: nothing was trained since the last abort or start; call train first")
        return _to_server(self._trained)

    def evaluate(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Score a model with the site's own private state; at the end of a study on test data, and export it here."""
        return _to_server(self._answer(("evaluate", "finish"), data, extra))

    def _answer(self, tasks: tuple[str, ...], data: ExchangeObject | None, extra: dict[str, Any] | None) -> Reply:
        if self._resident is None:
            raise ConfigError("FedSkewAlgo: not initialized; the platform must call initialize first")
        request = unpack_request(_packed(data, extra or {}, "extra"))
        if request.task not in tasks or request.study != self.study:
            raise StateError(
                f"{request.task} of study {request.study} came where {' or '.join(tasks)} of {self.study} belongs; "
                "survey goes to get_data_stats, fit to train, evaluate and finish to evaluate"
            )
        return self._resident.answer(request)


def to_exchange(request: Request) -> tuple[ExchangeObject, dict[str, Any]]:
    """Turn a server's request into what a platform hands to a ClientAlgo: ``data`` and ``extra``."""
    packed = pack(request)
    weights = {key: torch.from_numpy(array) for key, array in packed.tensors.items()}
    data = ExchangeObject(weights=weights, weight_type=WeightType.WEIGHTS)
    return data, {_PLAIN: packed.plain, _AUX: dict(packed.aux)}


def from_exchange(data: ExchangeObject) -> Reply:
    """Turn what a FedSkewAlgo returned into a reply.

    Raises:
        StateError: it is not whole, or holds differences.
    """
    return unpack_reply(_packed(data, data.statistics or {}, "statistics"))


class KeepNorms(Filter):  # type: ignore[misc]
    """Keep every batch norm at the site: takes its entries, found by module type, out of weights or differences.

    For ``post_weight_filters``. Alone it trains as FedBN, but MonaiAlgo scores with another network, whose norms were
    never trained: give OwnNorms to ``pre_filters`` as well, or use FedBNAlgo, which does.

    Args:
        network: a network as it is trained. A filter file reads it from the bundle: with
            ``config_filters_filename=["configs/train.json", "configs/filters.json"]`` it is ``"@network_def"``.

    Raises:
        ConfigError: the network has no batch norm.
    """

    def __init__(self, network: nn.Module) -> None:
        self.kept = _norms(network)

    def __call__(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Return ``data`` without the entries; StateError if one of them is not there."""
        absent = sorted(self.kept - set(data.weights or {}))
        if absent:
            some = ", ".join(absent[:_NAMED])
            raise StateError(f"weights lack {len(absent)} batch norm entries ({some}): they are of another network")
        return _with(data, {key: value for key, value in data.weights.items() if key not in self.kept})


class OwnNorms(Filter):  # type: ignore[misc]
    """Add the site's own batch norm entries to a received model, whichever network is to take it.

    For ``pre_filters``, which MonaiAlgo applies before training and before scoring.

    Args:
        network: the trainer's live network.

    Raises:
        ConfigError: the network has no batch norm.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = _plain(network)
        self.kept = _norms(network)

    def __call__(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Return ``data`` with the entries; the object that came in is left as it was."""
        shared = {key: value for key, value in (data.weights or {}).items() if key not in self.kept}
        if not shared.keys() & self.network.state_dict().keys():
            raise StateError(f"received model: no entry of {type(self.network).__name__} in it; use the same network")
        return _with(data, {**shared, **snapshot(self.network, self.kept)})


class FedBNAlgo(ClientAlgo):  # type: ignore[misc]
    """FedBN around a MonaiAlgo: norms stay at the site, are scored with, and survive a new process.

    Args:
        algo: how the site trains otherwise; weights or differences.
        state: folder where the norms are kept after every training; None keeps them in memory.
        study: name of the study, under which they are kept.
        run: id of this run of it; another one starts anew.
    """

    def __init__(self, algo: MonaiAlgo, *, state: str | None = None, study: str = "study", run: str = "run") -> None:
        self.algo, self.study, self.run = algo, study, run
        self.store = None if state is None else SiteStore(Path(state))
        self._round = 0

    def initialize(self, extra: dict[str, Any] | None = None) -> None:
        """Start the MonaiAlgo, put our filters next to the network and take up the norms that are kept.

        Raises:
            ConfigError: no trainer, no batch norm, or norms to be kept at a site without a name.
            StateError: the norms that are kept are those of another network.
        """
        algo = self.algo
        algo.initialize(extra)
        if algo.trainer is None:
            raise ConfigError(
                "FedBNAlgo: the MonaiAlgo has no trainer, so no norms of its own; give it a train workflow"
            )
        # ours stand next to the network: a filter that encrypts or adds noise sees shared entries only
        algo.pre_filters = [*(algo.pre_filters or ()), OwnNorms(algo.trainer.network)]
        algo.post_weight_filters = [KeepNorms(algo.trainer.network), *(algo.post_weight_filters or ())]
        if self.store is not None:
            self._restore(self.store)

    def train(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> None:
        """Train, and keep the norms."""
        self.algo.train(data, extra)
        if self.store is not None:
            network = _plain(self.algo.trainer.network)
            before, self._round = self._round, self._round + 1
            self.store.write(self._key(), self._round, snapshot(network, _norms(network)), keep=(before,))

    def get_weights(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Return the shared entries, or their differences."""
        return self.algo.get_weights(extra)

    def evaluate(self, data: ExchangeObject, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Score the received model with the site's own norms."""
        return self.algo.evaluate(data, extra)

    def get_data_stats(self, extra: dict[str, Any] | None = None) -> ExchangeObject:
        """Return MonaiAlgo's statistics of the data."""
        return self.algo.get_data_stats(extra)

    def abort(self, extra: dict[str, Any] | None = None) -> None:
        """Abort the MonaiAlgo."""
        self.algo.abort(extra)

    def finalize(self, extra: dict[str, Any] | None = None) -> None:
        """End the MonaiAlgo and let other processes have the norms."""
        self.algo.finalize(extra)
        if self.store is not None:
            self.store.close()

    def _restore(self, store: SiteStore) -> None:
        key, network = self._key(), _plain(self.algo.trainer.network)
        everything = list_held(store.root) if store.root.is_dir() else []
        mine = [held for held in everything if (held.study, held.run, held.site) == (key.study, key.run, key.site)]
        rounds = [round for held in mine for round in held.rounds]
        if rounds:
            self._round = max(rounds)
            restore(network, store.read(key, self._round))

    def _key(self) -> StateKey:
        name = self.algo.client_name
        if name in (None, "noname"):
            raise ConfigError("FedBNAlgo: norms are kept by site; the platform must give fl_client_name to initialize")
        return StateKey(self.study, self.run, name, fingerprint(_plain(self.algo.trainer.network)))


def _plain(network: nn.Module) -> nn.Module:
    """The network itself, as MonaiAlgo names its entries."""
    if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return network.module  # type: ignore[no-any-return]
    return network


def _norms(network: nn.Module) -> frozenset[str]:
    inner = _plain(network)
    return frozenset(inner.state_dict()) - except_modules()(inner)


def _with(data: ExchangeObject, weights: dict[str, Any]) -> ExchangeObject:
    """The same message with other weights: in one process, several sites may hold the one that came."""
    changed = copy.copy(data)
    changed.weights = weights
    return changed


def _packed(data: ExchangeObject | None, beside: Mapping[str, Any], where: str) -> Packed:
    weights = (data.weights if data is not None else None) or {}
    if data is not None and weights and data.weight_type != WeightType.WEIGHTS:
        raise StateError(f"weight_type is {data.weight_type}, but whole weights are exchanged: {WeightType.WEIGHTS}")
    if _PLAIN not in beside:
        raise StateError(f"{where} lacks {_PLAIN!r}; the platform must pass on what to_exchange and FedSkewAlgo return")
    arrays = {key: v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else v for key, v in weights.items()}
    return Packed(arrays, beside.get(_AUX, {}), beside[_PLAIN])


def _to_server(reply: Reply) -> ExchangeObject:
    packed, message = pack(reply), reply.message
    statistics: dict[str, Any] = {_PLAIN: packed.plain, _AUX: dict(packed.aux)}
    if isinstance(message, Update):
        statistics[FlStatistics.NUM_EXECUTED_ITERATIONS.value] = message.steps
    score = message if isinstance(message, Evaluation) else reply.score
    scores = {} if score is None else {"": score.metrics}
    scores |= {f"{level}/": held for level, held in message.scores.items()} if isinstance(message, Result) else {}
    metrics = {f"{of}{name}": value for of, held in scores.items() for name, value in held.items() if value is not None}
    weights = {key: torch.from_numpy(array) for key, array in packed.tensors.items()} or None
    kind = WeightType.WEIGHTS if weights else None
    return ExchangeObject(weights=weights, metrics=metrics, weight_type=kind, statistics=statistics)
