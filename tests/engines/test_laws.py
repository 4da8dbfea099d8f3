"""The laws every method obeys, over every row of METHODS and some compositions, on a real bundle."""

import itertools
import json
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import (
    ALONE,
    EVERY,
    FEDERATED,
    NEUTRAL,
    SENDING,
    assert_same,
    difference,
    make_labs,
    method,
    sites_for,
    without_parts,
)

from monai_fedskew.core.messages import Broadcast, Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import nest, snapshot
from monai_fedskew.engines.simulator import Outcome, simulate
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

LAST = Settings(rounds=2, choose="last")


@pytest.fixture(scope="module")
def labs(sources: dict[str, Any], image_sources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The small studies, of three sites, of which two train in a round; see `laws.sites_for`."""
    three = [{name: lab[name] for name in ("A", "B", "C")} for lab in (sources, image_sources)]
    return make_labs(*three)


@dataclass(frozen=True)
class _Straight:
    """A run of three rounds that nothing disturbs."""

    settings: Settings
    outcome: Outcome
    history: str  # the file


class _Runs:
    """What several laws look at: a method's straight run and its first messages, made once.

    Only those of the last method are held; `conftest.py` puts the laws of one method behind each other.
    """

    def __init__(self, labs: dict[str, Any], folder: Path) -> None:
        self._labs, self._folder, self._held = labs, folder, ("", {})

    def straight(self, text: str, optimizer_state: Any) -> _Straight:
        """The run; with kept optimizers of two local epochs a round."""

        def make() -> _Straight:
            run = Path(tempfile.mkdtemp(dir=self._folder))
            epochs = 2 if optimizer_state == "keep" else 1
            settings = Settings(rounds=3, local_epochs=epochs, fraction=0.6, optimizer_state=optimizer_state)
            outcome = simulate(method(text), sites_for(text, self._labs), settings, run=run)
            return _Straight(settings, outcome, (run / "history.jsonl").read_text())

        return self._once(text, optimizer_state, make)

    def messages(self, text: str) -> tuple[Client, dict[str, Any]]:
        """Site A's client after its first round, and all that was sent and kept."""
        return self._once(text, "messages", lambda: _messages(text, next(iter(sites_for(text, self._labs).values()))))

    def _once(self, text: str, what: str, make: Callable[[], Any]) -> Any:
        if self._held[0] != text:
            self._held = (text, {})
        held = self._held[1]
        if what not in held:
            held[what] = make()
        return held[what]


@pytest.fixture(scope="module")
def runs(labs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> _Runs:
    """Runs that laws share."""
    return _Runs(labs, tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("text", EVERY)
def test_builds_prints_compares_and_pickles(text: str) -> None:
    """A method is a value."""
    built = method(text)
    assert built == method(text)
    assert pickle.loads(pickle.dumps(built)) == built
    assert text.split(":")[0].split("+")[0] in repr(built)


@pytest.mark.parametrize("text", EVERY)
def test_same_seed_is_bit_equal_and_the_order_of_sites_does_not_matter(
    text: str, labs: dict[str, Any], runs: _Runs
) -> None:
    """Two runs of one seed agree bit for bit, whatever order the sites are named in."""
    straight = runs.straight(text, "reset")
    again = simulate(method(text), dict(reversed(sites_for(text, labs).items())), straight.settings)
    assert_same(straight.outcome, again)


@pytest.mark.parametrize("text", EVERY)
def test_another_seed_gives_another_model(text: str, labs: dict[str, Any], runs: _Runs) -> None:
    """A site's first round ends elsewhere."""
    _, states = runs.messages(text)
    source = next(iter(sites_for(text, labs).values()))
    _, others = _messages(text, source, seed=1)
    ended, otherwise = ({**found["update"], **found["private"]} for found in (states, others))
    assert difference(ended, otherwise) != ""


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
@pytest.mark.parametrize("text", EVERY)
def test_resume_after_an_abort_with_rebuilt_clients_equals_a_straight_run(
    text: str, optimizer_state: Any, labs: dict[str, Any], runs: _Runs, tmp_path: Path
) -> None:
    """Stopped in round 3 and resumed, one site alive at a time: same model, private state, history (case 21).

    So a client that is rebuilt from its private state in every round gives what one that is kept gives.
    """
    straight, sites = runs.straight(text, optimizer_state), sites_for(text, labs)

    def stop(round: int, history: object) -> None:
        if round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(method(text), sites, straight.settings, run=tmp_path, on_round=stop, max_alive=1)
    resumed = simulate(method(text), sites, straight.settings, run=tmp_path, resume=True, max_alive=1)
    assert_same(straight.outcome, resumed)
    assert straight.outcome.round == resumed.round
    history = (tmp_path / "history.jsonl").read_text()
    assert history == straight.history
    rows = [json.loads(line) for line in history.splitlines()]
    keys = [(row["round"], row["site"], row.get("split"), row.get("metric"), row.get("event")) for row in rows]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_neutral_setting_is_fedavg_on_the_same_network(name: str, labs: dict[str, Any]) -> None:
    """The neutral setting changes no bit; the default one does."""
    settings, sites = Settings(rounds=2, choose="last"), sites_for(name, labs)
    sites = {site: sites[site] for site in ("A", "B")}
    reference = simulate(without_parts(method(NEUTRAL[name])), sites, settings)
    assert_same(simulate(method(NEUTRAL[name]), sites, settings), reference)
    by_default = simulate(method(name), sites, settings)
    assert difference(by_default.last, reference.last) != ""


@pytest.mark.parametrize("text", [text for text in FEDERATED if ALONE.get(text, 0.0) is not None])
def test_one_site_alone_equals_its_local_parts_without_messages(text: str, labs: dict[str, Any]) -> None:
    """A federation of one site is that site training on; what its parts report comes back to it alone."""
    built, settings = method(text), LAST
    tolerance = ALONE.get(text) or 0.0
    source = sites_for(text, labs)["B"]
    federated = simulate(built, {"B": source}, settings)
    client = Client(built, source, settings)
    survey = client.survey()
    tensors, memory = dict(survey.tensors), _merged(built, {}, survey)
    for round in (1, 2):
        told = {part.name: part.tell(memory[part.name]) for part in built.parts}
        update = client.fit(Broadcast(round, tensors, told))
        tensors, memory = dict(update.tensors), _merged(built, memory, update)
    if not tolerance:
        assert difference(tensors, federated.cast.tensors) == ""
    for key, value in tensors.items():
        torch.testing.assert_close(value, federated.cast.tensors[key], rtol=0, atol=tolerance)


def _merged(built: Method, memory: dict[str, Any], message: Survey | Update) -> dict[str, Any]:
    reports = {part.name: {"B": message.aux[part.name]} if part.name in message.aux else {} for part in built.parts}
    return {part.name: dict(part.merge(memory.get(part.name, {}), reports[part.name], 1)) for part in built.parts}


def _messages(text: str, source: Any, seed: int = 0) -> tuple[Client, dict[str, Any]]:
    settings = replace(LAST, seed=seed)
    client, server = Client(method(text), source, settings), Server(method(text), settings)
    survey = client.survey()
    server.open([survey])
    cast = server.cast()
    update = client.fit(cast)
    states = {
        "survey": {**survey.tensors, **nest(survey.aux)},
        "cast": {**cast.tensors, **nest(cast.aux)},
        "update": {**update.tensors, **nest(update.aux)},
        "private": client.private(),
    }
    server.absorb([update])
    states["server"] = server.state()
    return client, states


@pytest.mark.parametrize("text", SENDING)
def test_messages_hold_owned_finite_cpu_tensors(text: str, runs: _Runs) -> None:
    """No message shares memory with the live network, another message or the server, and none changes later."""
    client, states = runs.messages(text)
    states = {**states, "live": client.site.model.state_dict()}
    pointers = {name: {t.untyped_storage().data_ptr() for t in s.values() if t.numel()} for name, s in states.items()}
    for first, second in itertools.combinations(pointers, 2):
        assert not pointers[first] & pointers[second], (first, second)
    frozen = {key: value.clone() for key, value in states["update"].items()}
    for state in states.values():
        assert all(t.device.type == "cpu" and not t.requires_grad for t in state.values())
        assert all(torch.isfinite(t).all() for t in state.values() if t.is_floating_point())
    client.fit(Broadcast(2, snapshot(client.site.model, client.shared), _aux(states["cast"], text)))
    assert difference(frozen, states["update"]) == ""


def _aux(cast: dict[str, torch.Tensor], text: str) -> dict[str, dict[str, torch.Tensor]]:
    aux: dict[str, dict[str, torch.Tensor]] = {}
    for part in method(text).parts:
        found = {k.removeprefix(f"{part.name}/"): v for k, v in cast.items() if k.startswith(f"{part.name}/")}
        aux |= {part.name: found} if found else {}
    return aux


@pytest.mark.parametrize("text", SENDING)
def test_no_private_key_and_no_raw_example_leaves_the_site(text: str, runs: _Runs) -> None:
    """What crosses are the shared keys and what parts report, and no row of a message equals a training row."""
    client, states = runs.messages(text)
    reported = {part.name for part in method(text).parts}
    rows = torch.cat(list(client.site.examples())).flatten(1)
    for name in ("survey", "update"):
        for key, tensor in states[name].items():
            assert key in client.shared or key.split("/")[0] in reported
            assert key not in client.kept
            if tensor.is_floating_point() and tensor.numel() % rows.shape[1] == 0:
                table = tensor.reshape(-1, rows.shape[1])
                assert not any(torch.equal(row, example) for row in table for example in rows)


@pytest.mark.parametrize("text", FEDERATED)
def test_shared_keys_are_equal_on_all_sites_and_not_empty(text: str, labs: dict[str, Any], runs: _Runs) -> None:
    """Every site shares the same entries."""
    client, _ = runs.messages(text)
    assert client.shared
    assert client.site.name == "A"
    for site in ("B", "C"):
        assert Client(method(text), sites_for(text, labs)[site], LAST).shared == client.shared
