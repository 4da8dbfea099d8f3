"""One site that answers nonsense: it is left out and named, and the study of the others goes on to a report."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import method
from loopback import loopback

from monai_fedskew.errors import RoundError, StateError
from monai_fedskew.federation.exchange import Failure
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study
from monai_fedskew.reports.run import read_run

LAST = Settings(rounds=3, choose="last")
TABLE = "fedrdn+fedbn"


def _run(how: str, settings: Settings, sources: Any, folder: Path, **more: Any) -> dict[str, Any]:
    transport = loopback(method(how), settings, sources, folder, **more)
    return run_study(method(how), settings, transport, study="s", run=folder / "run", engine="loopback")


def _at(task: str, change: Any, *, site: str = "B", round: int | None = None) -> Any:
    """Change B's answers to a task, in one round or in all."""

    def spoil(name: str, request: Any, reply: Any) -> Any:
        is_meant = (name, request.task) == (site, task) and (round is None or request.cast.round == round)
        return change(reply) if is_meant else reply

    return spoil


def _table(**changes: Any) -> Any:
    """Change entries of a survey's statistics; None takes one out."""

    def change(reply: Any) -> Any:
        entries = {**reply.message.aux["fedrdn"], **changes}
        aux = {"fedrdn": {key: value for key, value in entries.items() if value is not None}}
        return replace(reply, message=replace(reply.message, aux=aux))

    return change


def _message(**changes: Any) -> Any:
    return lambda reply: replace(reply, message=replace(reply.message, **changes))


def _score(**changes: Any) -> Any:
    return lambda reply: replace(reply, score=replace(reply.score, **changes))


TABLES = [
    ({"std": None}, "site B: its statistics lack std"),
    ({"mean": torch.tensor(0.0)}, r"site B: mean of its statistics is float32 \(\), not a vector of float64"),
    ({"std": -torch.ones(15, dtype=torch.float64)}, "site B: .* a std is negative"),
    ({"mean": torch.zeros(2, dtype=torch.float64)}, "site B: its statistics are not finite"),
    ({"ddof": torch.ones(2)}, "site B: ddof of its statistics"),
    ({"std_mode": torch.tensor(9)}, "site B: statistics with std_mode=9"),
]


@pytest.mark.parametrize(("changes", "reason"), TABLES)
def test_statistics_that_are_no_statistics_are_refused(
    changes: Any, reason: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    """Before the first round: one error that names site and entry."""
    with pytest.raises(StateError, match=reason):
        _run(TABLE, LAST, sources, tmp_path, spoil=_at("survey", _table(**changes)))


def test_a_site_that_tells_no_statistics_is_refused(sources: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise it would fail in every round."""
    with pytest.raises(StateError, match="fedrdn has statistics of A, C, D only, of 4 sites"):
        _run(TABLE, LAST, sources, tmp_path, spoil=_at("survey", _message(aux={})))


@pytest.mark.parametrize("changes", [{"std": None}, {"std_mode": torch.tensor(0)}], ids=["lacks", "other mode"])
def test_a_late_site_with_such_statistics_is_kept_out(changes: Any, sources: dict[str, Any], tmp_path: Path) -> None:
    """The study that runs already goes on."""
    spoil = _at("survey", _table(**changes))
    summary = _run(TABLE, LAST, sources, tmp_path, spoil=spoil, absent={"B": (1,)})
    assert [(f["round"], f["site"], f["kind"]) for f in summary["failures"]] == [(2, "B", "excluded")]
    assert sorted(summary["sites"]) == ["A", "C", "D"]


def test_statistics_inside_an_update_are_not_taken(sources: dict[str, Any], tmp_path: Path) -> None:
    """They would break every later round of all sites."""
    spoil = _at("fit", _message(aux={"fedrdn": {"std": torch.ones(2)}}), round=2)
    summary = _run(TABLE, LAST, sources, tmp_path, spoil=spoil)
    (failure,) = summary["failures"]
    assert (failure["round"], failure["site"], failure["kind"]) == (2, "B", "excluded")
    assert "a second time" in failure["reason"]


def test_a_site_cannot_train_what_it_does_not_share(sources: dict[str, Any], tmp_path: Path) -> None:
    """Named in the survey."""
    spoil = _at("survey", _message(parameters=frozenset({"nosuch"})))
    with pytest.raises(StateError, match="site B: trains nosuch, which it does not share"):
        _run("fedavg", LAST, sources, tmp_path, spoil=spoil)


def test_a_name_that_no_site_can_have_takes_no_part(sources: dict[str, Any], tmp_path: Path) -> None:
    """Whatever engine lets it in: it would become a key of results and a word of reports."""
    transport = loopback(method("fedavg"), LAST, sources, tmp_path)
    transport.residents = {"<b>" if name == "B" else name: held for name, held in transport.residents.items()}
    transport.spoil = lambda name, request, reply: _message(site=name)(reply) if request.task == "survey" else reply
    summary = run_study(method("fedavg"), LAST, transport, study="s", run=tmp_path / "run", engine="loopback")
    assert "<b>" not in json.loads((tmp_path / "run" / "run.json").read_text())["sites"]
    assert {failure["site"] for failure in summary["failures"]} == {"<b>"}
    assert "its name at the engine is '<b>': character '<' is not allowed" in summary["failures"][0]["reason"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_does_not_choose(value: float, sources: dict[str, Any], tmp_path: Path) -> None:
    """The chosen round is that of the three others; beside NaN or infinity no later model would ever be better."""
    settings = Settings(rounds=3)
    spoil = _at("fit", _score(metrics={"accuracy": value}))
    got = _run("fedavg", settings, sources, tmp_path / "spoilt", spoil=spoil)
    none = _run("fedavg", settings, sources, tmp_path / "none", spoil=_at("fit", _score(metrics={"accuracy": None})))
    assert got["chosen_round"] == none["chosen_round"]


def test_a_score_of_another_round_is_left_out(sources: dict[str, Any], tmp_path: Path) -> None:
    """With the update it came with, and at the end."""
    spoil = _at("fit", _score(round=77), round=2)
    (failure,) = _run("fedavg", LAST, sources, tmp_path / "fit", spoil=spoil)["failures"]
    assert "score of round 77 where the validation score of round 1 belongs" in failure["reason"]
    spoil = _at("evaluate", _message(split="train"))
    (failure,) = _run("fedavg", LAST, sources, tmp_path / "end", spoil=spoil)["failures"]
    assert "not scored: train score of round 3" in failure["reason"]


@pytest.mark.parametrize(
    "scores",
    [
        {"window": {}},
        {"window": {"accuracy": 0.5}},
        {"window": {"accuracy": 0.5, "samples": 0}},
        {"window": {"accuracy": float("nan"), "samples": 4}},
        {"window": {"accuracy": 7.0, "samples": 4}},
        {"window": {"accuracy": 10**400, "samples": 4}},
    ],
    ids=["empty", "no samples", "zero samples", "nan", "above 1", "huge"],
)
@pytest.mark.parametrize("site", ["A", "B"])
def test_scores_that_are_no_scores_do_not_stop_the_report(
    scores: Any, site: str, sources: dict[str, Any], tmp_path: Path
) -> None:
    """The site is told without scores and why; the other three are reported."""
    settings = Settings(rounds=1, choose="last")
    transport = loopback(method("fedavg"), settings, sources, tmp_path)
    real = transport._ask_one

    def ask(name: str, request: Any) -> Any:
        transport.spoil = _at("finish", _message(scores=scores), site=site)
        try:
            return real(name, request)
        except StateError as error:  # as an engine does
            return Failure(str(error))

    transport._ask_one = ask  # type: ignore[method-assign]
    run_study(method("fedavg"), settings, transport, study="s", run=tmp_path / "run", engine="loopback")
    run = read_run(tmp_path / "run")
    assert list(run.unfinished) == [site]
    assert len(run.scores["window"]) == 3


def test_a_site_that_is_away_for_good_does_not_stop_a_sampled_study(sources: dict[str, Any], tmp_path: Path) -> None:
    """A quarter of the sites a round, B gone after the first: drawn among those that are there."""
    settings = replace(LAST, rounds=6, fraction=0.25)
    summary = _run("fedavg", settings, sources, tmp_path, absent={"B": tuple(range(2, 20))})
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows if row.get("event") == "trained"] == [1, 2, 3, 4, 5, 6]
    assert {failure["site"] for failure in summary["failures"]} == {"B"}


def test_a_fraction_below_min_sites_is_said_before_training(sources: dict[str, Any], tmp_path: Path) -> None:
    """Half of four sites are two."""
    settings = replace(LAST, fraction=0.5, min_sites=3)
    with pytest.raises(RoundError, match=r"round 1: fraction=0.5 of the 4 connected sites is 2, but min_sites is 3"):
        _run("fedavg", settings, sources, tmp_path)
