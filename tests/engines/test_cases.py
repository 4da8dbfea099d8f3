"""Faults that people have met, on whole federations; the numbers are those of tests/CASES.md."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import difference, method
from variants import NumberSite

from monai_fedskew.cli.execute import RunSpec, execute
from monai_fedskew.data.manifest import read_manifest, write_manifest
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.locate import find_bundle

NAN = float("nan")


def _numbers(**third: Any) -> dict[str, NumberSite]:
    return {"A": NumberSite("A", 10, 1.0), "B": NumberSite("B", 30, 2.0), "C": NumberSite("C", 60, 3.0, **third)}


def test_weights_are_over_the_sites_that_took_part(tmp_path: Path) -> None:
    """Case 33: n = 10, 30, 60 with values 1, 2, 3 give (10 + 60 + 180) / 100 = 2.5; without the third 70 / 40 = 1.75.

    Round 3 has all three again: 2.5.
    """
    seen: list[float] = []

    def look(round: int, entries: Any) -> None:
        seen.append(checkpoint.load(tmp_path, round).server["tensors/weight"].item())

    settings = Settings(rounds=3, choose="last")
    outcome = simulate(method("fedavg"), _numbers(fails_in=(2,)), settings, run=tmp_path, on_round=look)
    assert seen == pytest.approx([2.5, 1.75, 2.5])
    failed = [(e.round, e.site, e.reason) for e in outcome.history.events if e.kind == "failed"]
    assert failed == [(2, "C", "RuntimeError: scanner on fire")]


def test_a_score_without_value_is_left_out_of_the_choice(tmp_path: Path) -> None:
    """Case 31: site C has no AUC; the best round is still chosen, by the other two, and the file has null."""
    outcome = simulate(method("fedavg"), _numbers(score=NAN), Settings(rounds=2, choose="best"), run=tmp_path)
    assert outcome.round == 1  # all rounds score alike: the first that was trained
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    values = {row["site"]: row["value"] for row in rows if row.get("split") == "validation"}
    assert values == {"A": 1.0, "B": 1.0, "C": None}
    assert "NaN" not in (tmp_path / "history.jsonl").read_text()
    again = simulate(
        method("fedavg"), _numbers(score=NAN), Settings(rounds=2, choose="best"), run=tmp_path, resume=True
    )
    assert again.round == outcome.round


def test_no_score_at_any_site_leaves_the_last_round(tmp_path: Path) -> None:
    """Nothing to choose by: the last model, and no NaN anywhere."""
    sites = {name: replace(site, score=NAN) for name, site in _numbers().items()}
    outcome = simulate(method("fedavg"), sites, Settings(rounds=2, choose="best"), run=tmp_path)
    assert outcome.round == 2
    assert outcome.cast.tensors["weight"].item() == pytest.approx(2.5)


def test_a_folder_with_rounds_is_not_run_over(sources: dict[str, Any], tmp_path: Path) -> None:
    """Without resume: an error, and every file is as it was."""
    simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"), run=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="(?s)rounds.*resume"):
        simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"), run=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_is_not_resumed_for_fewer_rounds_than_it_has(tmp_path: Path) -> None:
    """Three rounds cannot become one: the model of round 3 would be recorded as that of a run of one round."""
    simulate(method("fedavg"), _numbers(), Settings(rounds=3, choose="last"), run=tmp_path)
    with pytest.raises(ConfigError, match=r"3 rounds.*rounds.*1|rounds.*1.*\b3\b"):
        simulate(method("fedavg"), _numbers(), Settings(rounds=1, choose="last"), run=tmp_path, resume=True)


def test_a_run_with_a_site_of_one_class_finishes(tmp_path: Path) -> None:
    """Case 31: AUC is null for that site and left out of the mean with a count; class weights stay finite."""
    data = write_synthetic_study(tmp_path / "data", sites=("EAST", "WEST"), n_regions=5, subjects=10)
    manifest = read_manifest(data / "WEST")
    subjects = tuple(replace(subject, label=0) for subject in manifest.subjects)
    write_manifest(data / "WEST", replace(manifest, subjects=subjects))
    overrides = {"in_features": 10, "batch_size": 16, "class_balance": True}
    spec = RunSpec(find_bundle("abide_connectome"), data, "fedbn", Settings(rounds=2), tmp_path / "run", (), overrides)
    summary = execute(spec)
    assert summary["sites"]["WEST"]["window"]["auc"] is None
    assert summary["sites"]["EAST"]["window"]["auc"] is not None
    assert summary["mean"]["window"]["auc"] == summary["sites"]["EAST"]["window"]["auc"]
    assert summary["mean"]["window"]["auc_sites"] == 1
    assert summary["failures"] == []
    assert "NaN" not in (tmp_path / "run" / "summary.json").read_text()


def test_the_norm_of_a_site_moves_toward_its_own_data(sources: dict[str, Any], tmp_path: Path) -> None:
    """Case 34: with weights that stand still, site 2's running mean comes nearer to its inputs' in each round.

    Weights stand still with a learning rate of 0, so what the first batch norm sees has one mean.
    """
    sites = {name: replace(sources[name], overrides={"lr": 0.0}) for name in ("A", "D")}
    site = sites["D"].open()
    target = site.model[0](torch.cat(list(site.examples()))).mean(0)
    for max_alive in (None, 1):
        run = tmp_path / f"run {max_alive}"
        distances, counts = [target.norm().item()], []  # the running mean starts at 0

        def look(round: int, entries: Any, run: Path = run, into: Any = (distances, counts)) -> None:
            private = checkpoint.load(run, round).private["D"]
            into[0].append((private["model/1.running_mean"] - target).norm().item())
            into[1].append(int(private["model/1.num_batches_tracked"]))

        settings = Settings(rounds=3, choose="last")
        simulate(method("fedbn"), sites, settings, run=run, max_alive=max_alive, on_round=look)
        assert distances == sorted(distances, reverse=True)
        assert len(set(distances)) == 4
        assert counts == [4, 8, 12]


def test_norm_state_comes_back_from_disk(sources: dict[str, Any], tmp_path: Path) -> None:
    """Case 34: two rounds, a new federation that resumes, one more: three rounds of norm state."""
    straight = simulate(method("fedbn"), sources, Settings(rounds=3, choose="last"))
    simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"), run=tmp_path)
    resumed = simulate(method("fedbn"), sources, Settings(rounds=3, choose="last"), run=tmp_path, resume=True)
    for site in sources:
        assert difference(straight.private[site], resumed.private[site]) == ""
