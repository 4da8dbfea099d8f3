"""A study at a server whose sites keep their own state: the simulator's result, and every way a site can fail."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import difference, method
from loopback import changed, loopback, private_state
from safetensors import safe_open

from monai_fedskew.cli.execute import RunSpec, execute
from monai_fedskew.core.messages import Survey, Update
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.exchange import Failure
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study
from monai_fedskew.sites.store import SiteStore

COMPOSED = "fedrdn+fedbn+fedprox:mu=0.2"


def _events(run: Path, *kinds: str) -> list[tuple[int, str, str]]:
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [(row["round"], row["site"], row["event"]) for row in rows if row.get("event") in kinds]


def _run(how: str, settings: Settings, transport: Any, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    return run_study(method(how), settings, transport, study="s", run=folder / "run", engine="loopback", resume=resume)


@pytest.mark.parametrize("how", ["fedavg", "fedbn", COMPOSED])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "rebuilt"])
def test_a_study_equals_the_simulator(
    how: str, is_kept: bool, sources: dict[str, Any], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Server tensors, private state at the sites, history and test scores, bit for bit, through wire and disk."""
    settings = Settings(rounds=3)
    transport = loopback(method(how), settings, sources, tmp_path, is_kept=is_kept)
    got = _run(how, settings, transport, tmp_path)
    expected = execute(RunSpec(tiny_bundle, study, how, settings, tmp_path / "simulated"))
    one, two = checkpoint.load(tmp_path / "run", 3), checkpoint.load(tmp_path / "simulated", 3)
    assert difference(one.server, two.server) == ""
    for site in sources:
        assert difference(private_state(tmp_path, site, 3), two.private[site]) == ""
    assert (tmp_path / "run" / "history.jsonl").read_text() == (tmp_path / "simulated" / "history.jsonl").read_text()
    for key in ("sites", "mean", "worst", "chosen_round", "shared_keys", "private_keys", "shared_bytes"):
        assert got[key] == expected[key], key
    assert got["unfinished"] == {}


def test_the_model_file_says_what_stays_at_the_sites(sources: dict[str, Any], tmp_path: Path) -> None:
    """Five entries of one batch norm are site-private; no file at the server holds them."""
    settings = Settings(rounds=1)
    _run("fedbn", settings, loopback(method("fedbn"), settings, sources, tmp_path), tmp_path)
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as file:
        private, held = json.loads(file.metadata()["site_private"]), set(file.keys())
    assert len(private) == 5
    assert not held & set(private)
    assert not list((tmp_path / "run" / "rounds" / "1" / "sites").iterdir())


def test_a_lost_reply_costs_one_round_at_that_site_only(sources: dict[str, Any], tmp_path: Path) -> None:
    """The site trained round 2 and stored it, the server never heard: in round 3 it goes on from its round 1."""
    settings = Settings(rounds=3, choose="last")

    def lose(site: str, request: Any, reply: Any) -> Any:
        is_lost = site == "C" and request.task == "fit" and request.cast.round == 2
        return Failure("timeout") if is_lost else reply

    _run("fedbn", settings, loopback(method("fedbn"), settings, sources, tmp_path, spoil=lose), tmp_path)
    assert (2, "C", "failed") in _events(tmp_path / "run", "failed")
    steps = [int(private_state(tmp_path, site, 3)["model/1.num_batches_tracked"]) for site in "ABC"]
    assert steps == [12, 12, 8]  # 4 steps a round


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m: {"0.bias": torch.full_like(m["0.bias"], float("nan"))}, "non-finite"),
        (lambda m: {"0.bias": m["0.bias"][:2]}, r"0.bias is float32 \(2,\)"),
        (lambda m: {"0.bias": m["0.bias"].double()}, "0.bias is float64"),
        (lambda m: {"extra": torch.ones(1)}, "has 1 unknown keys"),
    ],
    ids=["nan", "shape", "dtype", "extra"],
)
def test_a_useless_update_is_left_out_and_the_round_goes_on(
    spoil: Any, reason: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    """NaN, wrong shape, wrong type, an extra key: excluded with the reason, and trusted again in the next round."""
    settings = Settings(rounds=3, choose="last", min_sites=3)

    def bad(site: str, request: Any, reply: Any) -> Any:
        is_bad = site == "B" and request.task == "fit" and request.cast.round == 2
        return changed(reply, **spoil(reply.message.tensors)) if is_bad else reply

    summary = _run("fedbn", settings, loopback(method("fedbn"), settings, sources, tmp_path, spoil=bad), tmp_path)
    (failure,) = summary["failures"]
    assert (failure["round"], failure["site"], failure["kind"]) == (2, "B", "excluded")
    assert [r for r, s, _ in _events(tmp_path / "run", "trained") if s == "B"] == [1, 3]
    assert re.search(reason, failure["reason"])


@pytest.mark.parametrize("change", ["missing", "zero", "other name", "other round", "no update"])
def test_an_answer_that_does_not_fit_is_left_out(change: str, sources: dict[str, Any], tmp_path: Path) -> None:
    """A missing key, zero samples, another site's name, another round, a survey where an update belongs."""
    settings = Settings(rounds=1, choose="last", min_sites=3)

    def bad(site: str, request: Any, reply: Any) -> Any:
        update = reply.message
        if site != "B" or not isinstance(update, Update):
            return reply
        tensors = {key: value for key, value in update.tensors.items() if key != "0.bias"}
        altered: dict[str, Any] = {
            "missing": replace(update, tensors=tensors),
            "zero": replace(update, samples=0),
            "other name": replace(update, site="A"),
            "other round": replace(update, round=7),
            "no update": Survey("B", update.tensors, frozenset(), 1, 1),
        }
        return replace(reply, message=altered[change])

    summary = _run("fedavg", settings, loopback(method("fedavg"), settings, sources, tmp_path, spoil=bad), tmp_path)
    expected = {
        "missing": "lacks 1 keys (0.bias)",
        "zero": "zero samples",
        "other name": "answers as A",
        "other round": "update of round 7 in round 1",
        "no update": "no update in its answer",
    }
    assert expected[change] in summary["failures"][0]["reason"]


def test_a_site_that_is_away_is_named_and_comes_back(sources: dict[str, Any], tmp_path: Path) -> None:
    """Case 33 over an engine: D is unreachable in round 2 and trains again in round 3, from its own round 1."""
    settings = Settings(rounds=3, choose="last", min_sites=3)
    transport = loopback(method("fedbn"), settings, sources, tmp_path, absent={"D": (2,)})
    summary = _run("fedbn", settings, transport, tmp_path)
    assert _events(tmp_path / "run", "missing") == [(2, "D", "missing")]
    assert [failure["kind"] for failure in summary["failures"]] == ["missing"]
    assert int(private_state(tmp_path, "D", 3)["model/1.num_batches_tracked"]) == 8


def test_a_late_hospital_is_surveyed_before_its_first_round(sources: dict[str, Any], tmp_path: Path) -> None:
    """D comes in round 3: its statistics are in the table of that round, and its network starts as the others did."""
    settings = Settings(rounds=4, choose="last")
    transport = loopback(method("fedrdn+fedbn"), settings, sources, tmp_path, absent={"D": (1, 2)})
    _run("fedrdn+fedbn", settings, transport, tmp_path)
    run = tmp_path / "run"
    assert _events(run, "joined") == [(3, "D", "joined")]
    assert [round for round, site, _ in _events(run, "trained") if site == "D"] == [3, 4]
    assert sorted(json.loads((run / "run.json").read_text())["sites"]) == ["A", "B", "C", "D"]
    assert int(private_state(tmp_path, "D", 4)["model/1.num_batches_tracked"]) == 8
    assert checkpoint.load(run, 4).since == {"A": 4, "B": 4, "C": 4, "D": 4}


def test_a_late_hospital_of_another_shape_is_kept_out(sources: dict[str, Any], tmp_path: Path) -> None:
    """The running study goes on; the reason names both sites, once."""
    settings = Settings(rounds=3, choose="last")

    def misshape(site: str, request: Any, reply: Any) -> Any:
        is_survey = site == "D" and request.task == "survey"
        return changed(reply, **{"0.bias": torch.zeros(2)}) if is_survey else reply

    transport = loopback(method("fedavg"), settings, sources, tmp_path, absent={"D": (1,)}, spoil=misshape)
    summary = _run("fedavg", settings, transport, tmp_path)
    assert [(f["round"], f["site"], f["kind"]) for f in summary["failures"]] == [(2, "D", "excluded")]
    assert "D" not in summary["sites"]


def test_too_few_sites_stop_and_the_next_call_goes_on(sources: dict[str, Any], tmp_path: Path) -> None:
    """Two of four are away in round 3, min_sites 3: stopped with names; resumed bit for bit when they are back."""
    settings = Settings(rounds=4, min_sites=3)
    away = loopback(method(COMPOSED), settings, sources, tmp_path, absent={"A": (3,), "B": (3,)})
    with pytest.raises(RoundError, match=r"2 usable updates, but min_sites is 3.*missing: A: not connected; B"):
        _run(COMPOSED, settings, away, tmp_path)
    assert checkpoint.latest(tmp_path / "run") == 2
    for resident in away.residents.values():  # a new job at every site
        assert isinstance(resident.store, SiteStore)
        resident.close()
        resident.store.close()
    back = loopback(method(COMPOSED), settings, sources, tmp_path)
    summary = _run(COMPOSED, settings, back, tmp_path, resume=True)
    straight = simulate(method(COMPOSED), sources, settings)
    assert difference(checkpoint.load(tmp_path / "run", 4).server, straight.last) == ""
    for site in sources:
        assert difference(private_state(tmp_path, site, 4), straight.last_private[site]) == ""
    assert summary["chosen_round"] == straight.round


def test_sites_that_are_ahead_go_back(sources: dict[str, Any], tmp_path: Path) -> None:
    """The server loses its last round (its folder is deleted); all go on from the one before, bit for bit."""
    settings = Settings(rounds=3, choose="last")
    transport = loopback(method(COMPOSED), settings, sources, tmp_path)
    _run(COMPOSED, settings, transport, tmp_path)
    expected = checkpoint.load(tmp_path / "run", 3).server
    shutil.rmtree(tmp_path / "run" / "rounds" / "3")
    (tmp_path / "run" / "summary.json").unlink()
    transport.round = 2
    _run(COMPOSED, settings, transport, tmp_path, resume=True)
    assert difference(checkpoint.load(tmp_path / "run", 3).server, expected) == ""


def test_a_finished_study_is_left_alone_and_can_go_on(sources: dict[str, Any], tmp_path: Path) -> None:
    """Resumed with the same rounds nothing is asked; with more it goes on; without resume it is refused."""
    settings = Settings(rounds=1, choose="last")
    transport = loopback(method("fedavg"), settings, sources, tmp_path)
    first = _run("fedavg", settings, transport, tmp_path)
    asked = len(transport.packed)
    assert _run("fedavg", settings, transport, tmp_path, resume=True) == first
    assert len(transport.packed) == asked
    with pytest.raises(ConfigError, match="study s: the server holds a run of it in .*--resume"):
        _run("fedavg", settings, transport, tmp_path)
    _run("fedavg", replace(settings, rounds=2), transport, tmp_path, resume=True)
    assert checkpoint.latest(tmp_path / "run") == 2


def test_results_at_a_site_are_for_its_owner(sources: dict[str, Any], tmp_path: Path) -> None:
    """The folders of exported model and predictions are 0700."""
    settings = Settings(rounds=1, choose="last")
    _run("fedavg", settings, loopback(method("fedavg"), settings, sources, tmp_path), tmp_path)
    (folder,) = (tmp_path / "A" / "results" / "s").iterdir()
    assert (folder / "model.safetensors").is_file()
    for one in (folder, folder.parent, folder.parent.parent):
        assert one.stat().st_mode & 0o777 == 0o700


def test_a_baseline_is_refused(sources: dict[str, Any], tmp_path: Path) -> None:
    """local and pooled send nothing, or need everything in one place."""
    for how in ("local", "pooled"):
        with pytest.raises(ConfigError, match=f"method {how}: a baseline without messages"):
            _run(how, Settings(rounds=1), None, tmp_path)


def test_a_site_that_cannot_finish_is_in_the_summary(sources: dict[str, Any], tmp_path: Path) -> None:
    """Its scores are missing and why is said; a resume asks again."""
    settings = Settings(rounds=1, choose="last")

    def fail(site: str, request: Any, reply: Any) -> Any:
        return Failure("disk full") if (site, request.task) == ("B", "finish") else reply

    transport = loopback(method("fedavg"), settings, sources, tmp_path, spoil=fail)
    summary = _run("fedavg", settings, transport, tmp_path)
    assert summary["unfinished"] == {"B": "disk full"}
    assert sorted(summary["sites"]) == ["A", "C", "D"]
    transport.spoil = lambda site, request, reply: reply
    assert sorted(_run("fedavg", settings, transport, tmp_path, resume=True)["sites"]) == ["A", "B", "C", "D"]


def test_the_state_of_another_run_is_not_taken(sources: dict[str, Any], tmp_path: Path) -> None:
    """A new run of the same study begins afresh; what the first one left at the sites is still there."""
    settings = Settings(rounds=1, choose="last")
    transport = loopback(method("fedbn"), settings, sources, tmp_path)
    _run("fedbn", settings, transport, tmp_path)
    run_study(method("fedbn"), settings, transport, study="s", run=tmp_path / "again", engine="loopback")
    assert len(list((tmp_path / "A" / "state").rglob("1.safetensors"))) == 2
    one, two = (checkpoint.load(tmp_path / name, 1).server for name in ("run", "again"))
    assert difference(one, two) == ""


def test_a_site_without_its_state_says_so(sources: dict[str, Any], tmp_path: Path) -> None:
    """The hospital's state folder is gone: it fails with what is missing; the others go on."""
    settings = Settings(rounds=2, choose="last")
    transport = loopback(method("fedbn"), settings, sources, tmp_path, is_kept=False)
    real = transport.ask

    def forget(requests: Any) -> Any:
        if any(request.cast is not None and request.cast.round == 2 for request in requests.values()):
            shutil.rmtree(tmp_path / "D" / "state", ignore_errors=True)
        return real(requests)

    transport.ask = forget  # type: ignore[method-assign]  # a fault between two rounds
    summary = _run("fedbn", settings, transport, tmp_path)
    assert "no private state" in summary["failures"][0]["reason"]
    assert StateError.__name__ in summary["failures"][0]["reason"]
