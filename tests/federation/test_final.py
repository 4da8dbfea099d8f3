"""The end of a run: means over sites, the worst site, what is left at a site."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from variants import bundle_with

from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import DataError
from monai_fedskew.federation.final import finish_site
from monai_fedskew.federation.run_folder import write_json
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.summary import overall
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite


def _row(accuracy: float | None, auc: float | None = None) -> dict[str, Any]:
    return {"window": {"accuracy": accuracy, "auc": auc, "samples": 4}}


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_what_has_no_value_is_left_out_of_the_mean_and_counted(nothing: float | None) -> None:
    """Case 31: AUC (0.6 + 0.8) / 2 = 0.7 of two sites, accuracy (0.5 + 0.7 + 0.9) / 3 = 0.7 of three."""
    found = overall({"A": _row(0.5, 0.6), "B": _row(0.7, nothing), "C": _row(0.9, 0.8)})
    mean = found["mean"]["window"]
    assert mean["accuracy"] == pytest.approx(0.7)
    assert mean["accuracy_sites"] == 3
    assert mean["auc"] == pytest.approx(0.7)
    assert mean["auc_sites"] == 2


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_the_worst_site_is_one_that_has_a_value(nothing: float | None) -> None:
    """A site without the score is not the worst, in whatever order sites come."""
    for names in (("A", "B", "C"), ("C", "B", "A"), ("B", "A", "C")):
        rows = {"A": _row(nothing), "B": _row(0.7), "C": _row(0.9)}
        assert overall({name: rows[name] for name in names})["worst"]["window"] == {"site": "B", "accuracy": 0.7}


@pytest.mark.parametrize("nothing", [None, float("nan")])
def test_no_value_anywhere_is_null_not_a_number(nothing: float | None) -> None:
    """Means and worst are null, and the result is plain JSON."""
    found = overall({"A": _row(nothing, nothing), "B": _row(nothing, nothing)})
    assert found["mean"]["window"]["accuracy"] is None
    assert found["mean"]["window"]["auc_sites"] == 0
    assert "NaN" not in json.dumps(found)


def test_a_level_that_some_sites_lack_is_over_the_others() -> None:
    """Predictions that name no subject have no subject level."""
    found = overall({"A": {**_row(0.5), "subject": {"accuracy": 0.25, "samples": 1}}, "B": _row(0.7)})
    assert found["mean"]["subject"] == {"accuracy": 0.25, "accuracy_sites": 1}
    assert list(found["mean"]) == ["window", "subject"]


def test_a_bundle_that_writes_no_predictions_is_scored_by_its_metrics(sources: dict[str, Any], tmp_path: Path) -> None:
    """The evaluator's metrics at window level, with the number of windows: 4 of 16 subjects, 4 windows each."""
    outcome = simulate(parse_method("fedbn"), sources, Settings(rounds=1, choose="last"))
    scores = finish_site(
        parse_method("fedbn"), sources["A"], Settings(rounds=1), cast=outcome.cast, private=outcome.private["A"],
        folder=tmp_path / "A",
    )  # fmt: skip
    assert set(scores) == {"window"}
    assert scores["window"]["samples"] == 16
    assert 0 <= scores["window"]["accuracy"] <= 1
    assert (tmp_path / "A" / "model.safetensors").is_file()


def test_a_metric_without_value_is_null_in_the_summary(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Case 31 with a bundle's own metric: null in JSON, not NaN, which no other reader takes."""
    value = {"accuracy": {"_target_": "variants.Fixed", "value": float("nan")}}
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: config["validate"].update(key_metric=value))
    source = BundleSite(bundle, "A", study / "A")
    outcome = simulate(parse_method("fedbn"), {"A": source}, Settings(rounds=1, choose="last"))
    scores = finish_site(
        parse_method("fedbn"), source, Settings(rounds=1), cast=outcome.cast, private=outcome.private["A"],
        folder=tmp_path / "A",
    )  # fmt: skip
    write_json(tmp_path / "summary.json", {"sites": {"A": scores}, **overall({"A": scores})})
    text = (tmp_path / "summary.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["sites"]["A"]["window"]["accuracy"] is None


def test_a_site_without_test_data_is_named(sources: dict[str, Any], tmp_path: Path) -> None:
    """With the whole data in training there is nothing to score."""
    outcome = simulate(parse_method("fedavg"), sources, Settings(rounds=1, choose="last"))
    empty = {"validate#dataset#split": "validation", "validation_fraction": 0.0}
    with pytest.raises(DataError, match="site A: no test examples"):
        finish_site(
            parse_method("fedavg"), replace(sources["A"], overrides=empty), Settings(rounds=1), cast=outcome.cast,
            private=outcome.private["A"], folder=tmp_path / "A",
        )  # fmt: skip
