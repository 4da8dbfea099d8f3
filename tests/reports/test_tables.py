import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from monai_fedskew.reports.published import Published
from monai_fedskew.reports.results import Level, Results, Run, Score, read_results
from monai_fedskew.reports.tables import Cell, best, is_best, summarise
from monai_fedskew.reports.written import to_csv, to_text


def make_results(scores: dict[str, list[dict[str, float]]], published: tuple[Published, ...] = ()) -> Results:
    """Results from accuracies: method -> one dict of site to accuracy for each seed."""
    runs = {}
    for method, seeds in scores.items():
        for seed, at_sites in enumerate(seeds):
            values = {site: Score({"accuracy": v}, 10) for site, v in at_sites.items()}
            by_level: dict[Level, dict[str, Score]] = {"window": values, "subject": {}}
            runs[method, seed] = Run(Path("none"), method, seed, by_level, {}, (), ())
    methods = tuple(scores)
    seeds_used = tuple(range(max(len(seeds) for seeds in scores.values())))
    return Results(Path("none"), "made up", None, "", methods, seeds_used, runs, published=published)


def test_mean_std_and_worst_site_by_hand() -> None:
    """Site A 50, 60, 70 % is 60 ± 10; B 40, 40, 46 % is 42 ± sqrt((4 + 4 + 16) / 2) = 3.46.

    The means of the seeds, 45, 50 and 58, give 51 ± sqrt((36 + 1 + 49) / 2) = 6.56.
    """
    results = make_results({"m": [{"A": 0.5, "B": 0.4}, {"A": 0.6, "B": 0.4}, {"A": 0.7, "B": 0.46}]})

    row = summarise(results, "window").rows[0]

    assert [str(cell) for cell in row.cells] == ["60.0 ± 10.0", "42.0 ± 3.5", "51.0 ± 6.6"]
    assert row.cells[1].std == pytest.approx(12**0.5)
    assert row.cells[2].std == pytest.approx(((6**2 + 1**2 + 7**2) / 2) ** 0.5)
    assert (row.worst_site, row.worst) == ("B", row.cells[1])


def test_one_seed_has_no_deviation() -> None:
    """One seed shows its figure alone."""
    row = summarise(make_results({"m": [{"A": 0.5}]})).rows[0]

    assert str(row.cells[0]) == "50.0"


def test_a_site_without_score_is_left_out_of_the_mean_over_sites() -> None:
    """A seed that lacks a site counts for its other sites, but not for the mean over sites, and the row says so."""
    row = summarise(make_results({"m": [{"A": 0.5, "B": 0.7}, {"A": 0.6}]})).rows[0]

    assert row.cells[0].mean == pytest.approx(55)
    assert row.cells[2] == Cell(pytest.approx(60), None, 1)
    assert row.note == "a site has no score in 1 of 2 runs"


def test_a_metric_without_value_at_a_site_is_left_out_of_the_mean_and_counted() -> None:
    """Balanced accuracy of seed 0: A 60 %, B none: mean 60; of seed 1: 50 and 70: mean 60."""
    results = make_results({"m": [{"A": 0.5, "B": 1.0}, {"A": 0.5, "B": 0.5}]})
    balanced = {0: {"A": 0.6, "B": None}, 1: {"A": 0.5, "B": 0.7}}
    runs = {
        (method, seed): replace(run, scores={"window": _balanced(run, balanced[seed]), "subject": {}})
        for (method, seed), run in results.runs.items()
    }
    results = replace(results, runs=runs)

    table = summarise(results, metric="balanced_accuracy")

    assert [(cell.mean, cell.seeds) for cell in table.rows[0].cells] == [
        (pytest.approx(55), 2),
        (pytest.approx(70), 1),
        (pytest.approx(60), 2),
    ]
    assert table.note.startswith(
        "No balanced accuracy at B in 1 of 2 seeds (0): it has no value where the test subjects lack a class."
    )
    assert table.note in to_text(table)
    accuracy = summarise(results)
    assert accuracy.rows[0].cells[-1].mean == pytest.approx(62.5)
    assert accuracy.note == ""


def _balanced(run: Run, values: dict[str, float | None]) -> dict[str, Score]:
    return {
        site: Score({**score.values, "balanced_accuracy": values[site]}, 10)
        for site, score in run.scores["window"].items()
    }


def test_best_ignores_published_rows_and_marks_printed_ties() -> None:
    """Bold goes to our own highest value, and to all that print the same."""
    published = (Published("paper", "window", "", {"a": {"A": (99.0, 1.0)}}),)
    table = summarise(make_results({"a": [{"A": 0.6001}], "b": [{"A": 0.6}], "c": [{"A": 0.5}]}, published))

    tops = best(table)

    assert [row.source for row in table.rows] == ["", "", "", "paper"]
    assert [is_best(row.cells[0], tops[0]) for row in table.rows[:3]] == [True, True, False]


def test_a_method_with_fewer_seeds_is_not_marked_as_best() -> None:
    """Its seeds may be the easy ones: 90 % over one seed does not beat 60 % over two."""
    tops = best(summarise(make_results({"a": [{"A": 0.6}, {"A": 0.6}], "b": [{"A": 0.9}]})))

    assert tops == (pytest.approx(60), pytest.approx(60), pytest.approx(60), None)


def test_published_mean_is_given_or_follows_from_all_sites() -> None:
    """The mean over sites of published figures is theirs if given, else computed, else left out."""
    values = {
        "a": {"A": (60.0, 1.0), "B": (70.0, None)},
        "b": {"mean": (64.5, None)},
        "c": {"A": (60.0, None)},
        "elsewhere": {"Z": (1.0, None)},
    }
    table = summarise(make_results({"a": [{"A": 0.5, "B": 0.5}]}, (Published("paper", "window", "", values),)))

    rows = {row.method: [str(cell) for cell in row.cells] for row in table.rows if row.source}
    assert rows == {"a": ["60.0 ± 1.0", "70.0", "65.0"], "b": ["-", "-", "64.5"], "c": ["60.0", "-", "-"]}


def test_text_names_missing_seeds_and_the_worst_site(comparison: Path) -> None:
    """The terminal table has a column a site, the mean over sites and the named worst site."""
    text = to_text(summarise(read_results(comparison), "subject"), width=140)

    for word in ("NORTH", "SOUTH", "mean over sites", "worst site", "fedprox:mu=0.2", "subject level"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 140


def test_csv_is_long_and_complete(comparison: Path) -> None:
    """The CSV has a line per level, method and column, in percent."""
    tables = [summarise(read_results(comparison), level) for level in ("window", "subject")]

    rows = list(csv.DictReader(io.StringIO(to_csv(tables))))

    assert len(rows) == 2 * 3 * 5  # levels, methods, two sites, mean, worst and deviation over sites
    assert {row["seeds"] for row in rows} == {"3"}
    north = next(row for row in rows if (row["method"], row["site"], row["level"]) == ("local", "NORTH", "window"))
    assert float(north["mean_percent"]) == pytest.approx(tables[0].rows[0].cells[0].mean, abs=1e-4)
