import json
import math
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"null\n", r"line 1: must hold a JSON object, found NoneType"),
        (b"[]\n", r"line 1: must hold a JSON object, found list"),
        (b"\x00\xff\xfe", r"is no text file \(invalid start byte at byte 1\)"),
        (b'{"round": "x", "site": "A", "event": "trained"}', r"line 1: round must be a whole number, seen 'x'"),
        (b'{"round": 1, "site": null, "event": "trained"}', r"line 1: site must be a text, seen 'None'"),
        (
            b'{"round": 1, "site": "A", "split": "train", "metric": "loss", "value": "low"}',
            r"value must be a number or",
        ),
        (b'{"round": 1, "site": "A", "split": "train"}', r"line 1: lacks the key 'metric'"),
    ],
)
def test_a_history_that_is_none_is_one_error(copy: Path, content: bytes, message: str) -> None:
    """File and line are named, and what to do."""
    (copy / "runs" / "local" / "seed0" / "history.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"local.seed0.history.jsonl.*{message}.*remove this run's folder"):
        read_results(copy)


def test_a_folder_in_the_place_of_a_history_is_an_error(copy: Path) -> None:
    """It is not taken for a missing file."""
    history = copy / "runs" / "local" / "seed0" / "history.jsonl"
    history.unlink()
    history.mkdir()
    with pytest.raises(DataError, match=r"history.jsonl: cannot be read \(Is a directory\); remove this run's folder"):
        read_results(copy)


def test_history_scores_may_be_null(copy: Path) -> None:
    """A score that has no value, or is not finite, is left out; the others and the events stay."""
    run = copy / "runs" / "local" / "seed0"
    before = read_results(run).of("local")[0]
    row = {"round": 3, "site": "NORTH", "split": "validation", "metric": "auc"}
    text = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(text + "".join(json.dumps({**row, "value": v}) + "\n" for v in (None, math.nan)))

    after = read_results(run).of("local")[0]

    assert (after.history, after.events, after.gap) == (before.history, before.events, "")


@pytest.mark.parametrize(
    ("name", "keys", "value", "message"),
    [
        ("run.json", "seed", "0", "seed must be a whole number"),
        ("run.json", "method", 3, "method must be a text"),
        ("run.json", "sites", [], "sites must be an object"),
        ("run.json", "sites.NORTH.data", 5, "sites.NORTH.data must be a text"),
        ("run.json", "sites.NORTH.samples", None, "sites.NORTH.samples must be a whole number"),
        ("run.json", "settings", "fast", "settings must be an object"),
        ("run.json", "settings.rounds", "3", "settings.rounds must be a whole number|rounds must be a whole number"),
        ("run.json", "bundle", "abide", "bundle must be an object"),
        ("run.json", "versions", [1], "versions must be an object"),
        ("run.json", "overrides", 1, "overrides must be an object"),
        ("run.json", "command", "fedskew", "command must be a list of texts"),
        ("run.json", "stages", {"fedrdn": 1}, "stages.fedrdn must be a list of texts"),
        ("run.json", "schema", 2, "schema must be 1 for this version"),
        ("summary.json", "sites", {}, "sites must be an object with a site"),
        ("summary.json", "sites.NORTH", 1, "sites.NORTH must be an object"),
        ("summary.json", "sites.NORTH.window.accuracy", "high", "sites.NORTH.window.accuracy must be a number"),
        ("summary.json", "sites.NORTH.window.accuracy", 61.5, "must be a number from 0 to 1"),
        ("summary.json", "sites.NORTH.window.samples", 1.5, "samples must be a whole number"),
        ("summary.json", "chosen_round", "last", "chosen_round must be a whole number"),
        ("summary.json", "seconds", 3, "seconds must be an object"),
        ("summary.json", "shared_bytes", "1 MB", "shared_bytes must be a number"),
    ],
)
def test_wrong_types_of_a_run_are_one_error(copy: Path, name: str, keys: str, value: object, message: str) -> None:
    """File, key and value are named, and what to do."""
    run = copy / "runs" / "local" / "seed0"
    _put(run / name, keys, value)
    with pytest.raises(DataError, match=rf"{name}: .*({message}).*remove this run's folder and run it again"):
        read_results(run)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("methods", "local", "methods must be a list of texts"),
        ("methods", [], "methods must be a list of texts"),
        ("methods", [["local"]], "methods must be a list of texts"),
        ("seeds", 5, "seeds must be a list of whole numbers"),
        ("seeds", ["a"], "seeds must be a list of whole numbers"),
        ("title", 1, "title must be a text"),
        ("settings", [1], "settings must be an object"),
        ("bundle", "abide", "bundle must be an object"),
        ("command", {}, "command must be a list of texts"),
        ("published", 5, "published figures of a study must have"),
        ("published", {"values": {"fedavg": [1]}}, "published figures of published must be one object"),
    ],
)
def test_wrong_types_of_a_comparison_are_one_error(copy: Path, keys: str, value: object, message: str) -> None:
    """File, key and value are named, and what to do."""
    _put(copy / "compare.json", keys, value)
    with pytest.raises(DataError, match=rf"compare.json: {message}.*call compare with --resume"):
        read_results(copy)


@pytest.mark.parametrize("name", ["compare.json", "runs/local/seed0/run.json", "runs/local/seed0/summary.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\x00", "is no text file"),
        (b"null", "must hold a JSON object, found NoneType"),
        (b"", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_files_that_are_no_json_object_are_one_error(copy: Path, name: str, content: bytes, message: str) -> None:
    """Binary, null, empty or nested without end: the file is named, and what to do."""
    (copy / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: {message}.*(compare --resume|compare with --resume)"):
        read_results(copy)


def test_damaged_failures_are_named(copy: Path) -> None:
    """failures.json is not needed, but a damaged one is not passed over."""
    (copy / "failures.json").write_text("[]")
    with pytest.raises(DataError, match=r"failures.json: must hold a JSON object, found list; remove it, or call"):
        read_results(copy)


def test_a_run_in_the_place_of_another_is_refused(copy: Path) -> None:
    """Otherwise its scores would stand in the row of another method."""
    runs = copy / "runs"
    shutil.rmtree(runs / "local" / "seed0")
    shutil.copytree(runs / "fedavg" / "seed1", runs / "local" / "seed0")
    with pytest.raises(DataError, match=r"is of fedavg, seed 1, where the comparison has local, seed 0"):
        read_results(copy)


def test_gaps_of_histories_are_in_the_table(copy: Path) -> None:
    """The terminal hears of them too."""
    for seed in (0, 1):
        (copy / "runs" / "local" / f"seed{seed}" / "history.jsonl").unlink()

    text = render_table(copy)

    assert "Runs without their whole history:\nlocal seeds 0-1: history.jsonl is missing\n" in text


def _put(file: Path, keys: str, value: object) -> None:
    content = json.loads(file.read_text())
    *path, last = keys.split(".")
    place = content
    for key in path:
        place = place[key]
    place[last] = value
    file.write_text(json.dumps(content))


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
