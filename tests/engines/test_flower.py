"""Flower: over a SuperLink with TLS and authenticated SuperNodes, and its rules over a Grid in this process."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from engines.grid import LocalGrid, Node
from engines.superlink import Deployment
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import ServerApp
from laws import difference, method
from loopback import private_state
from variants import NumberSite

from monai_fedskew.cli.flower import app as write_app
from monai_fedskew.engines import flower
from monai_fedskew.engines.simulator import Outcome, simulate
from monai_fedskew.errors import RoundError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Failure, Request
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.wire import Packed
from monai_fedskew.sites.store import SiteStore

METHOD = "fedrdn+fedbn+fedprox:mu=0.2"


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """RUN folders below tmp_path; loggers as they were; short waits."""
    monkeypatch.setenv("FEDSKEW_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(flower, "POLL_SECONDS", 0.01)
    ours = logging.getLogger("monai_fedskew")
    before = (ours.handlers, ours.propagate, ours.level)
    yield
    ours.handlers, ours.propagate = before[:2]
    ours.setLevel(before[2])


def _config(method: str, settings: Settings, **more: Any) -> dict[str, Any]:
    ours = {"study": "study", "method": method, "sites": 2, "timeout": 1, "wait": 1, "resume": False}
    return ours | settings.plain() | more


def _hospitals(folder: Path, sources: dict[str, Any], names: str = "AB") -> dict[str, dict[str, Any]]:
    """Write each site's fedskew.json and return its node configuration."""
    found = {}
    for name in names:
        (folder / name).mkdir(parents=True)
        source = sources[name]
        content = {"bundle": str(source.bundle), "data": str(source.data), "overrides": dict(source.overrides)}
        (folder / name / "fedskew.json").write_text(json.dumps(content))
        found[name] = {"site": name, "fedskew": str(folder / name / "fedskew.json")}
    return found


def _serve(grid: LocalGrid, app: ServerApp = flower.server) -> None:
    app(grid, Context(1, 1, {}, RecordDict(), grid.run_config))


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def _assert_equal(run: Path, hospitals: Path, expected: Outcome, rounds: int) -> None:
    """Server tensors, private state at the sites and every metric equal the simulator's, bit for bit."""
    assert difference(checkpoint.load(run, rounds).server, expected.last) == ""
    for site, state in expected.last_private.items():
        assert difference(private_state(hospitals, site, rounds), state) == "", site
    scores = {(s.round, s.site, s.split, name): v for s in expected.history.scores for name, v in s.metrics.items()}
    seen = {(r["round"], r["site"], r["split"], r["metric"]): r["value"] for r in _rows(run) if "split" in r}
    assert seen == scores


def test_a_study_on_a_superlink_equals_the_simulator(sources: dict[str, Any], tmp_path: Path) -> None:
    """TLS, authenticated SuperNodes, a process a message: tensors, private state and metrics, bit for bit.

    Case 34: every message finds the norm state on the disk of the site.
    """
    two = {name: sources[name] for name in "AB"}
    config = _hospitals(tmp_path / "hospitals", two)
    options = ["--study", "study", "--method", METHOD, "--sites", "2", "--rounds", "2", "--choose", "last"]
    done = CliRunner().invoke(write_app, [*options, "--timeout", "400", "--out", str(tmp_path / "app")])
    assert done.exit_code == 0, done.output
    sites = {name: " ".join(f'{key}="{value}"' for key, value in held.items()) for name, held in config.items()}
    run = tmp_path / "deployment" / "runs" / "study"
    with Deployment(tmp_path / "deployment", sites) as deployment:
        done = deployment.call("fedskew", "flower", "run", str(tmp_path / "app"), timeout=540)
        assert done.returncode == 0, done.stdout + deployment.logs("A")
        _assert_equal(run, tmp_path / "hospitals", simulate(method(METHOD), two, Settings(2, choose="last")), 2)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["sites"]) == {"A", "B"}
    assert summary["unfinished"] == {}
    results = tmp_path / "hospitals" / "A" / "results" / "study"
    assert len(list(results.rglob("model.safetensors"))) == 1


def test_rounds_over_a_grid_equal_the_simulator(sources: dict[str, Any], tmp_path: Path) -> None:
    """Four sites, two of them not registered by name; a resumed run asks no site twice for its survey."""
    config = _hospitals(tmp_path / "hospitals", sources, "ABCD")
    nodes = {9 - i: Node(flower.client, config[name], name if name in "AC" else "") for i, name in enumerate("ABCD")}
    grid = LocalGrid(nodes, _config(METHOD, Settings(rounds=2), sites=4))
    _serve(grid)
    assert [kind.split()[0] for kind in grid.sent].count("query.who") == 2
    grid.sent.clear()
    grid.run_config |= {"rounds": 3, "resume": True}
    _serve(grid)
    kinds = [kind.split()[0] for kind in grid.sent]
    assert kinds == ["query.who"] * 2 + ["train"] * 4 + ["evaluate"] * 4 + ["query"] * 4
    expected = simulate(method(METHOD), sources, Settings(rounds=3))
    _assert_equal(tmp_path / "runs" / "study", tmp_path / "hospitals", expected, 3)


def test_weights_are_over_the_sites_that_took_part(tmp_path: Path) -> None:
    """Case 33: n = 10, 30, 60 with values 1, 2, 3 give 2.5; without the third 70 / 40 = 1.75; then 2.5 again.

    What the third site's error says stays there.
    """
    settings = Settings(rounds=3, choose="last")
    nodes = {}
    for number, (name, n) in enumerate({"A": 10, "B": 30, "C": 60}.items(), start=1):
        source = NumberSite(name, n, float(number), fails_in=(2,) if name == "C" else ())

        def open_at(context: Context, source: NumberSite = source) -> Resident:
            store = SiteStore(tmp_path / "states" / source.site)
            return Resident(method("fedavg"), source, settings, store, is_kept=False)

        nodes[number] = Node(flower.client_app(open_at), {"site": name}, name)
    grid = LocalGrid(nodes, _config("fedavg", settings, sites=3))
    _serve(grid)
    run = tmp_path / "runs" / "study"
    seen = [checkpoint.load(run, round).server["tensors/weight"].item() for round in (2, 3)]
    assert seen == pytest.approx([1.75, 2.5])
    failed = [(row["round"], row["site"], row["reason"]) for row in _rows(run) if row.get("event") == "failed"]
    assert (2, "C", "RuntimeError; the site's own log says more") in failed
    assert not any(b"scanner on fire" in part for part in grid.crossed)


def test_the_norm_of_a_site_moves_toward_its_own_data(sources: dict[str, Any], tmp_path: Path) -> None:
    """Case 34: with a learning rate of 0 the running mean comes nearer each round; steps are counted, 4 a round."""
    two = {name: replace(sources[name], overrides={"lr": 0.0}) for name in "AD"}
    config = _hospitals(tmp_path / "hospitals", two, "AD")
    site = two["D"].open()
    target = site.model[0](torch.cat(list(site.examples()))).mean(0)
    nodes = {1: Node(flower.client, config["A"], "A"), 2: Node(flower.client, config["D"], "D")}
    distances, counts = [target.norm().item()], []
    for rounds in (1, 2, 3):  # each with a new ServerApp
        _serve(LocalGrid(nodes, _config("fedbn", Settings(rounds, choose="last"), resume=rounds > 1)))
        private = private_state(tmp_path / "hospitals", "D", rounds)
        distances.append((private["model/1.running_mean"] - target).norm().item())
        counts.append(int(private["model/1.num_batches_tracked"]))
    assert distances == sorted(distances, reverse=True)
    assert len(set(distances)) == 4
    assert counts == [4, 8, 12]


def test_every_kind_of_array_arrives_as_it_was() -> None:
    """Case 35: 0-d, empty, boolean and half precision keep shape, type and value."""
    arrays = {
        "count": np.array(7, dtype=np.int64),
        "three": np.arange(3, dtype=np.float32),
        "none": np.zeros((0,), dtype=np.float32),
        "mask": np.array([True, False]),
        "half": np.array([[1.5]], dtype=np.float16),
    }
    packed = Packed(arrays, {"part/count": arrays["count"]}, '{"a": null}')
    content = flower._records(packed, "A", flower._arrays(packed))

    def check(message: Message, context: Context) -> Message:
        back = flower._packed(message.content)
        assert back.plain == packed.plain
        assert (back.aux["part/count"].shape, back.aux["part/count"].item()) == ((), 7)
        for key, value in arrays.items():
            assert (back.tensors[key].dtype, back.tensors[key].shape) == (value.dtype, value.shape)
            assert np.array_equal(back.tensors[key], value)
        return Message(message.content, reply_to=message)

    grid = LocalGrid({1: Node(check, {})})  # type: ignore[arg-type]  # an app is what can be called
    grid.push_messages([Message(content, 1, "query")])
    assert len(grid.pull_messages(grid.sent)) == 1


def _survey(nodes: flower.Nodes, *names: str) -> dict[str, Any]:
    return dict(nodes.ask({name: Request("survey", "study", "run") for name in names}))


def _number_node(tmp_path: Path, site: str, name: str = "") -> Node:
    def open_at(context: Context) -> Resident:
        return Resident(method("fedavg"), NumberSite(site, 5, 1.0), Settings(1), SiteStore(tmp_path / site))

    return Node(flower.client_app(open_at), {"site": site}, name)


def test_a_node_cannot_take_the_name_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not while the first is there, nor when it has gone; a registered name counts, whatever the node says."""
    first, second = _number_node(tmp_path, "A"), _number_node(tmp_path, "A")
    grid = LocalGrid({1: first, 2: second, 3: _number_node(tmp_path, "A", "C")})
    nodes = flower.Nodes(grid, 1)
    assert nodes.present() == {"A", "C"}
    assert "node 2 says that it is A, but that is node 1" in caplog.text
    first.is_online = False
    assert nodes.present() == {"C"}
    assert nodes.present() == {"C"}
    first.is_online = True
    answers = _survey(nodes, "A", "C")
    assert answers["A"].message.site == "A"
    assert answers["C"] == Failure("answers as 'A'; name the node as its key was registered, C")


@pytest.mark.parametrize("content", [{}, {"plain": ConfigRecord({"site": ""})}, {"plain": ConfigRecord({"name": "B"})}])
def test_a_node_that_does_not_say_who_it_is_takes_no_part(
    content: dict[str, ConfigRecord], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever else it answers: it is named in the log once, and the others go on."""

    def answer(message: Message, context: Context) -> Message:
        return Message(RecordDict(dict(content)), reply_to=message)

    stranger = Node(answer, {})  # type: ignore[arg-type]  # an app is what can be called
    nodes = flower.Nodes(LocalGrid({1: _number_node(tmp_path, "A", "A"), 2: stranger}), 1)
    assert nodes.present() == nodes.present() == {"A"}
    assert caplog.text.count("node 2 does not say which site it is") == 1


def test_what_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    """Silence, an error of Flower's, rubbish, and a site that is not connected: each with its reason."""
    silent, dead, rubbish = (_number_node(tmp_path, site, site) for site in "ABC")
    grid = LocalGrid({1: silent, 2: dead, 3: rubbish})
    nodes = flower.Nodes(grid, 0.2)
    assert nodes.present() == {"A", "B", "C"}

    def garble(reply: Message) -> Message:
        reply.content["plain"]["json"] = '{"kind": "survey"}'
        return reply

    silent.spoil, rubbish.spoil = (lambda reply: None), garble
    dead.spoil = lambda reply: Error(5, "Node Unavailable")
    answers = _survey(nodes, "A", "B", "C", "D")
    assert answers["A"] == Failure("no answer in 0.2 s")
    assert answers["B"] == Failure("Flower: Node Unavailable")
    assert "reply cannot be read" in answers["C"].reason
    assert answers["D"] == Failure("not connected")


def test_a_site_that_comes_late_is_asked_who_it_is(tmp_path: Path) -> None:
    """An unregistered node that went away before it answered is asked again when it is back."""
    early, late = _number_node(tmp_path, "A", "A"), _number_node(tmp_path, "B")
    grid = LocalGrid({1: early})
    nodes = flower.Nodes(grid, 1)
    assert nodes.present() == {"A"}
    grid.nodes[2], late.spoil = late, lambda reply: Error(5, "Node Unavailable")
    assert nodes.present() == {"A"}
    late.spoil = lambda reply: reply
    assert nodes.present() == {"A", "B"}


def test_sites_that_do_not_come_are_counted(tmp_path: Path) -> None:
    """The error names those that came."""
    nodes = flower.Nodes(LocalGrid({1: _number_node(tmp_path, "A", "A")}), 1)
    with pytest.raises(RoundError, match=r"1 of 2 sites are connected after 0.1 s \(A\)"):
        nodes.wait(2, 0.1)


def test_a_node_without_its_file_says_so(sources: dict[str, Any], tmp_path: Path) -> None:
    """The run stops at the survey with what may be told: no path of a hospital's leaves it."""
    here = {"site": "A"}, {"site": "B", "fedskew": str(tmp_path / "nowhere" / "fedskew.json")}
    grid = LocalGrid({i: Node(flower.client, held, held["site"]) for i, held in enumerate(here, start=1)})
    grid.run_config = _config("fedavg", Settings(rounds=1))
    with pytest.raises(
        RoundError, match=r"A: survey: ConfigError: fedskew=None.*B: survey: DataError; the site's own log"
    ):
        _serve(grid)
    assert not any(b"nowhere" in part for part in grid.crossed)
