"""The laws every method obeys, over every row of METHODS and some compositions, on a real bundle."""

import itertools
import json
import pickle
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
from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import nest, restore, snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.sampling import sample_sites
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

LAST = {"choose": "last"}


@pytest.fixture
def labs(sources: dict[str, Any], image_sources: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The small studies; see `laws.sites_for`."""
    return make_labs(sources, image_sources)


@pytest.mark.parametrize("text", EVERY)
def test_builds_prints_compares_and_pickles(text: str) -> None:
    """A method is a value."""
    built = method(text)
    assert built == method(text)
    assert pickle.loads(pickle.dumps(built)) == built
    assert text.split(":")[0].split("+")[0] in repr(built)


@pytest.mark.parametrize("text", EVERY)
def test_same_seed_is_bit_equal_and_the_order_of_sites_does_not_matter(text: str, labs: dict[str, Any]) -> None:
    """Two runs of one seed agree bit for bit, whatever order the sites are named in."""
    sites = sites_for(text, labs)
    settings = Settings(rounds=2, local_epochs=2)
    first = simulate(method(text), sites, settings)
    assert_same(first, simulate(method(text), dict(reversed(sites.items())), settings))
    other = simulate(method(text), sites, Settings(rounds=2, local_epochs=2, seed=1))
    state = first.last if first.cast.tensors else nest(first.last_private)
    assert difference(state, other.last if first.cast.tensors else nest(other.last_private)) != ""


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
@pytest.mark.parametrize("text", EVERY)
def test_rebuilding_each_client_is_bit_equal_to_keeping_it(
    text: str, optimizer_state: Any, labs: dict[str, Any]
) -> None:
    """One site alive at a time, rebuilt from its private state, gives what keeping all of them gives."""
    sites = sites_for(text, labs)
    settings = Settings(rounds=3, fraction=0.5, optimizer_state=optimizer_state, choose="last")
    kept = simulate(method(text), sites, settings)
    assert_same(kept, simulate(method(text), sites, settings, max_alive=1))


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
@pytest.mark.parametrize("text", EVERY)
def test_resume_after_an_abort_equals_a_straight_run(
    text: str, optimizer_state: Any, labs: dict[str, Any], tmp_path: Path
) -> None:
    """Stopped in round 3 of 4 and resumed: same model, private state, history (case 21)."""
    sites = sites_for(text, labs)
    settings = Settings(rounds=4, fraction=0.5, optimizer_state=optimizer_state, choose="best")
    straight = simulate(method(text), sites, settings, run=_folder(tmp_path / "straight"))

    def stop(round: int, history: object) -> None:
        if round == 2:
            raise KeyboardInterrupt

    run = _folder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        simulate(method(text), sites, settings, run=run, on_round=stop)
    resumed = simulate(method(text), sites, settings, run=run, resume=True)
    assert_same(straight, resumed)
    assert straight.round == resumed.round
    assert (run / "history.jsonl").read_text() == (tmp_path / "straight" / "history.jsonl").read_text()
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    keys = [(row["round"], row["site"], row.get("split"), row.get("metric"), row.get("event")) for row in rows]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_a_neutral_setting_is_fedavg_on_the_same_network(name: str, labs: dict[str, Any]) -> None:
    """The neutral setting changes no bit; the default one does."""
    settings, sites = Settings(rounds=3), sites_for(name, labs)
    reference = simulate(without_parts(method(NEUTRAL[name])), sites, settings)
    assert_same(simulate(method(NEUTRAL[name]), sites, settings), reference)
    by_default = simulate(method(name), sites, settings)
    assert difference(by_default.last, reference.last) != ""


def test_fedprox_with_mu_is_not_fedavg(sources: dict[str, Any]) -> None:
    """The term is not silently zero."""
    settings = Settings(rounds=2)
    plain, prox = (simulate(method(text), sources, settings).last for text in ("fedavg", "fedprox:mu=0.5"))
    assert difference(plain, prox) != ""


def test_order_of_composition_does_not_matter(sources: dict[str, Any]) -> None:
    """All orders of fedrdn, fedbn and fedprox give the same bits."""
    settings = Settings(rounds=2)
    pieces = ("fedrdn", "fedbn", "fedprox:mu=0.2")
    first, *others = (simulate(method("+".join(o)), sources, settings) for o in itertools.permutations(pieces))
    for other in others:
        assert_same(first, other)


@pytest.mark.parametrize("text", [text for text in FEDERATED if ALONE.get(text, 0.0) is not None])
def test_one_site_alone_equals_its_local_parts_without_messages(text: str, labs: dict[str, Any]) -> None:
    """A federation of one site is that site training on; what its parts report comes back to it alone."""
    settings, built = Settings(rounds=3, choose="last"), method(text)
    tolerance = ALONE.get(text) or 0.0
    source = sites_for(text, labs)["B"]
    federated = simulate(built, {"B": source}, settings)
    client = Client(built, source, settings)
    survey = client.survey()
    tensors, memory = dict(survey.tensors), _merged(built, {}, survey)
    for round in (1, 2, 3):
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


def test_one_site_with_fedrdn_is_per_site_normalisation(sources: dict[str, Any]) -> None:
    """With one site to draw from, the draw is always its own pair."""
    settings = Settings(rounds=2)
    first, second = (simulate(method(text), {"B": sources["B"]}, settings) for text in ("fedrdn", "sitenorm"))
    assert difference(first.cast.tensors, second.cast.tensors) == ""


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
def test_one_site_with_fedavg_is_a_plain_training_loop(optimizer_state: Any, sources: dict[str, Any]) -> None:
    """Momentum, a StepLR and dropout: a loop written by hand gives the same weights (to float rounding)."""
    settings = Settings(rounds=4, local_epochs=2, optimizer_state=optimizer_state, choose="last")
    federated = simulate(method("fedavg"), {"B": sources["B"]}, settings)
    site = sources["B"].open()
    network = site.model
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for round in range(1, 5):
        torch.manual_seed(derive(0, "B", round))
        if optimizer_state == "reset":
            optimizer.state.clear()
        for epoch in range(2):
            optimizer.param_groups[0]["lr"] = 0.05 * 0.7 ** (((round - 1) * 2 + epoch) // 3)
            for batch in site.trainer.data_loader:
                network.train()
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(batch["image"]), batch["label"]).backward()
                optimizer.step()
    for key, value in network.state_dict().items():
        torch.testing.assert_close(value, federated.cast.tensors[key], rtol=0, atol=1e-6)


def _messages(text: str, labs: dict[str, Any]) -> tuple[Client, dict[str, Any]]:
    client, server = (
        Client(method(text), sites_for(text, labs)["A"], Settings(rounds=2, **LAST)),
        Server(method(text), Settings(rounds=2, **LAST)),
    )
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
def test_messages_hold_owned_finite_cpu_tensors(text: str, labs: dict[str, Any]) -> None:
    """No message shares memory with the live network, another message or the server, and none changes later."""
    client, states = _messages(text, labs)
    states["live"] = client.site.model.state_dict()
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
def test_no_private_key_and_no_raw_example_leaves_the_site(text: str, labs: dict[str, Any]) -> None:
    """What crosses are the shared keys and what parts report, and no row of a message equals a training row."""
    client, states = _messages(text, labs)
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
def test_shared_keys_are_equal_on_all_sites_and_not_empty(text: str, labs: dict[str, Any]) -> None:
    """Every site shares the same entries."""
    settings = Settings(rounds=1)
    shared = {Client(method(text), source, settings).shared for source in sites_for(text, labs).values()}
    assert len(shared) == 1
    assert shared.pop()


def test_evaluation_uses_the_sites_own_norm_state(sources: dict[str, Any]) -> None:
    """FedBN's score is that of the shared weights with the site's own batch norm, recomputed by hand (case 34)."""
    outcome = simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"))
    for name, source in sources.items():
        site = source.open()
        restore(site.model, outcome.cast.tensors)
        own = {key.removeprefix("model/"): value for key, value in outcome.private[name].items()}
        restore(site.model, own)
        site.model.eval()
        batch = next(iter(site.evaluator.data_loader))
        accuracy = (site.model(batch["image"]).argmax(1) == batch["label"]).float().mean().item()
        score = next(s for s in outcome.history.scores if (s.site, s.round, s.split) == (name, 2, "validation"))
        assert score.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    means = [outcome.private[name]["model/1.running_mean"] for name in sources]
    assert not torch.equal(means[0], means[1])


def test_norm_state_lives_on_over_rounds(sources: dict[str, Any]) -> None:
    """After r rounds a site has counted r times its steps, kept or rebuilt (case 34)."""
    for max_alive in (None, 1):
        seen: list[int] = []
        for rounds in (1, 2, 3):
            outcome = simulate(method("fedbn"), sources, Settings(rounds=rounds, choose="last"), max_alive=max_alive)
            seen.append(int(outcome.private["A"]["model/1.num_batches_tracked"]))
        assert seen == [seen[0], 2 * seen[0], 3 * seen[0]]


def test_a_late_site_is_surveyed_before_its_first_round(sources: dict[str, Any]) -> None:
    """A hospital that joins after round 1 enters the table of statistics and the next round."""
    settings = Settings(rounds=2, choose="last")
    built = method("fedrdn+fedbn")
    clients = {name: Client(built, sources[name], settings) for name in ("A", "B")}
    server = Server(built, settings)
    server.open([client.survey() for client in clients.values()])
    server.absorb([client.fit(server.cast()) for client in clients.values()])
    clients["C"] = Client(built, sources["C"], settings)
    server.open([clients["C"].survey()])
    assert server.sites == ("A", "B", "C")
    assert server.absorb([client.fit(server.cast()) for client in clients.values()]) == ()
    assert {key.split("/")[0] for key in server.cast().aux["fedrdn"]} == {"A", "B", "C"}


def test_sampling_takes_a_share_of_the_sites_and_spares_the_rest(sources: dict[str, Any]) -> None:
    """With fraction 0.5 two of four sites train, the others keep their private state."""
    outcome = simulate(method("fedbn"), sources, Settings(rounds=1, fraction=0.5, choose="last"))
    chosen = sample_sites(sources, 0.5, seed=0, round=1)
    assert len(chosen) == 2
    kinds = {event.site: event.kind for event in outcome.history.events}
    assert kinds == {site: "trained" if site in chosen else "not_sampled" for site in sources}
    for site in sources:
        assert int(outcome.private[site]["model/1.num_batches_tracked"]) == (0 if site not in chosen else 4)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
