"""What methods cost, in the terminal, in the CSV and on the page; older runs have no cost."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.reports import render_cost, write_csv, write_report
from monai_fedskew.reports.cost import CostCell, costs
from monai_fedskew.reports.results import read_results, slug

METHODS = ("local", "fedavg", "fedprox:mu=0.2")


@pytest.fixture
def measured(comparison: Path, tmp_path: Path) -> Path:
    """A comparison whose runs recorded costs; fedprox holds twice what fedavg holds, local sends nothing."""
    copy = shutil.copytree(comparison, tmp_path / "compare")
    for method in METHODS:
        for seed in range(3):
            sent = 0 if method == "local" else 400_000
            stored = 200_000 if "prox" in method else 100_000
            _change(copy, method, seed, cost={
                "site": "NORTH", "flops_per_sample": 385408.0, "stored_values": stored,
                "received_bytes": sent, "sent_bytes": sent, "survey_bytes": sent,
            }, seconds={"total": 30.0, "per_round": 1.0 + seed})  # fmt: skip
    return copy


def _change(folder: Path, method: str, seed: int, **more: Any) -> None:
    path = folder / "runs" / slug(method) / f"seed{seed}" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def test_ratios_are_to_fedavg_wherever_it_stands(measured: Path) -> None:
    """By hand: 200,000 / 100,000 values are 2 times; 0 bytes of local are 0 times; seconds are (1 + 2 + 3) / 3 = 2."""
    rows = {row.method: row.cells for row in costs(read_results(measured))}
    assert [cell.value for cell in rows["fedprox:mu=0.2"]] == [385408.0, 200_000, 400_000, 400_000, 400_000, 2.0]
    assert [cell.times for cell in rows["fedprox:mu=0.2"]] == [1.0, 2.0, 1.0, 1.0, 1.0, 1.0]
    assert [cell.times for cell in rows["local"]] == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_the_terminal_shows_values_and_ratios(measured: Path) -> None:
    """One line of values and one of ratios a method, and what x means."""
    text = render_cost(measured)
    for words in ("measured at NORTH", "385 kFLOP", "200 k", "2.00 x", "400 kB", "x: times fedavg"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 120


def test_without_fedavg_there_is_no_ratio(measured: Path) -> None:
    """Costs stand alone."""
    plan = json.loads((measured / "compare.json").read_text())
    (measured / "compare.json").write_text(json.dumps({**plan, "methods": ["local", "fedprox:mu=0.2"]}))
    assert "times fedavg" not in render_cost(measured)
    assert "200 k" in render_cost(measured)


def test_the_csv_has_the_cost_of_each_lines_method(measured: Path) -> None:
    """Six columns behind the scores."""
    rows = list(csv.DictReader(write_csv(measured).read_text().splitlines()))
    prox = [row for row in rows if row["method"] == "fedprox:mu=0.2"]
    assert {row["stored_values"] for row in prox} == {"200000.0"}
    assert {row["seconds_per_round"] for row in rows} == {"2.0"}


def test_the_page_explains_each_column(measured: Path) -> None:
    """A section of its own, with what is counted and what is not."""
    text = write_report(measured).read_text()
    assert '<section id="cost">' in text
    for words in ("385 kFLOP", "2.00 x", "element by element are not", "How many times the cost of fedavg".lower()):
        assert words in text.lower() or words in text


def test_runs_from_before_have_no_cost(comparison: Path, tmp_path: Path) -> None:
    """They are read, and neither page nor terminal has an empty table; the CSV's columns are empty."""
    copy = shutil.copytree(comparison, tmp_path / "compare")
    assert render_cost(copy) == ""
    assert '<section id="cost">' not in write_report(copy).read_text()
    assert {row["stored_values"] for row in csv.DictReader(write_csv(copy).read_text().splitlines())} == {""}


def test_a_cost_that_is_no_number_is_told(measured: Path) -> None:
    """With the file and the key."""
    _change(measured, "local", 0, cost={"site": "NORTH", "stored_values": "many"})
    with pytest.raises(DataError, match=r"summary.json: cost.stored_values must be a number"):
        render_cost(measured)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (385408.0, "FLOP", "385 kFLOP"), (999.6, "B", "1.00 kB"), (544, "B", "544 B"), (0, "B", "0 B"),
        (1.5, "s", "1.5 s"), (12_345_678, "", "12.3 M"), (None, "B", "-"),
        (1e9, "FLOP", "1.00 GFLOP"), (0.0432, "s", "0.0432 s"),
    ],
)  # fmt: skip
def test_values_have_three_digits_and_a_prefix(value: float | None, unit: str, text: str) -> None:
    """As an engineer writes them."""
    assert str(CostCell(value, unit)).strip() == text
