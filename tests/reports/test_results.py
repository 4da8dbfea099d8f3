import json
import shutil
from pathlib import Path

import pytest

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.reports import render_certainty, render_table, write_csv, write_report
from monai_fedskew.reports.published import read_published
from monai_fedskew.reports.results import Missing, read_results, slug


@pytest.fixture
def copy(comparison: Path, tmp_path: Path) -> Path:
    """A comparison that a test may damage."""
    return shutil.copytree(comparison, tmp_path / "compare")


@pytest.mark.parametrize(
    ("method", "folder"),
    [("fedprox:mu=0.2", "fedprox_mu=0.2"), ("fedrdn+fedbn", "fedrdn_fedbn"), ("a/b c", "a_b_c"), ("local", "local")],
)
def test_slug_keeps_only_safe_characters(method: str, folder: str) -> None:
    """Every character outside letters, digits, dot, equals and hyphen becomes an underscore."""
    assert slug(method) == folder


def test_a_comparison_is_read_in_table_order(comparison: Path) -> None:
    """Methods and seeds keep the order of compare.json."""
    results = read_results(comparison)

    assert results.methods == ("local", "fedavg", "fedprox:mu=0.2")
    assert results.sites == ("NORTH", "SOUTH")
    assert [run.seed for run in results.of("fedavg")] == [0, 1, 2]
    assert results.missing == ()


def test_a_single_run_is_read_as_one_method(comparison: Path) -> None:
    """A RUN folder gives results with one method and one seed."""
    results = read_results(comparison / "runs" / "fedavg" / "seed1")

    assert (results.methods, results.seeds, results.is_comparison) == (("fedavg",), (1,), False)


def test_unfinished_and_absent_runs_are_missing_with_reason(copy: Path) -> None:
    """A run without summary.json did not finish; one without folder was not started; the table says both."""
    (copy / "runs" / "fedavg" / "seed1" / "summary.json").unlink()
    (copy / "runs" / "fedavg" / "seed1" / "rounds" / "2").mkdir(parents=True)
    shutil.rmtree(copy / "runs" / "fedavg" / "seed2")

    results = read_results(copy)

    assert results.missing == (
        Missing("fedavg", 1, "did not finish (last checkpoint: round 2)"),
        Missing("fedavg", 2, "not started"),
    )
    text = render_table(results, width=200)
    assert "1 of 3 seeds (missing: 1, 2)" in text
    assert "fedavg, seed 2: not started" in text


def test_neither_run_nor_comparison_names_what_is_missing(tmp_path: Path) -> None:
    """An empty folder, and one with run.json alone, are refused with the missing names."""
    with pytest.raises(ConfigError, match=r"neither compare.json .* nor run.json and summary.json"):
        read_results(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"neither compare.json .* nor summary.json \(a finished run\)"):
        read_results(tmp_path)


def test_a_comparison_without_finished_run_keeps_its_reasons(copy: Path) -> None:
    """The table says that nothing finished and why; page and CSV are one error with the first reason."""
    shutil.rmtree(copy / "runs")
    (copy / "failures.json").write_text(json.dumps({"local|0": "site NYU: loss is nan\n(round 3)"}))

    text = render_table(copy)
    assert text.startswith("No run has finished.")
    assert "local, seed 0: site NYU: loss is nan (round 3)\n" in text
    assert "fedavg, seed 2: not started" in text
    assert "no seed has a score" in render_certainty(copy)
    for write in (write_report, write_csv):
        with pytest.raises(
            DataError, match=r"no run has finished \(9 missing; the first, local, seed 0: site NYU: loss"
        ):
            write(copy)
    assert not (copy / "report.html").exists()
    assert not (copy / "table.csv").exists()


def test_why_a_run_is_missing_comes_from_the_comparison(copy: Path) -> None:
    """failures.json knows the error of a run that left a folder behind; a finished run needs no reason."""
    (copy / "runs" / "fedavg" / "seed1" / "summary.json").unlink()
    (copy / "failures.json").write_text(json.dumps({"fedavg|1": "out of memory", "fedavg|2": "an earlier attempt"}))

    results = read_results(copy)

    assert results.missing == (Missing("fedavg", 1, "out of memory"),)
    assert "fedavg, seed 1: out of memory" in render_table(copy)


def test_damaged_files_are_named(copy: Path) -> None:
    """A broken JSON, a missing key and a broken history line are errors that name the file."""
    run = copy / "runs" / "local" / "seed0"
    history = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(history + "{broken\n")
    lines = len(history.splitlines()) + 1
    with pytest.raises(DataError, match=rf"history.jsonl, line {lines}: cannot be read"):
        read_results(copy)
    (run / "history.jsonl").write_text(history)
    details = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({k: v for k, v in details.items() if k != "method"}))
    with pytest.raises(DataError, match="lacks the key 'method'"):
        read_results(copy)
    (run / "run.json").write_text("[]")
    with pytest.raises(DataError, match="must hold a JSON object, found list"):
        read_results(copy)


def test_published_figures_take_one_block_a_list_or_none() -> None:
    """Figures may be a pair, a single number, or absent."""
    assert read_published(None) == ()
    block = {"values": {"fedavg": {"NYU": [62.7, 1.7], "UM": 60.0, "USM": [1.0, None]}}}
    (first, second) = read_published([block, {**block, "source": "paper"}], source="script")
    assert (first.source, second.source, first.level) == ("script", "paper", "window")
    assert first.values["fedavg"] == {"NYU": (62.7, 1.7), "UM": (60.0, None), "USM": (1.0, None)}


def test_published_nonsense_is_refused() -> None:
    """A figure that is no number names source, method and site."""
    with pytest.raises(DataError, match="paper, fedavg, NYU must be a number or"):
        read_published({"source": "paper", "values": {"fedavg": {"NYU": "62.7"}}})
    with pytest.raises(DataError, match="must have the key 'values'"):
        read_published({"source": "paper"})
