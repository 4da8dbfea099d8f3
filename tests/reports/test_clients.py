"""Reports of many sites, and of clients that rows were dealt to."""

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from folders import windows_of, write_plan, write_run, write_site

from monai_fedskew.errors import DataError
from monai_fedskew.reports import render_certainty, render_table, write_csv, write_report
from monai_fedskew.reports.clients import holdings, label_strip
from monai_fedskew.reports.results import read_results, slug
from monai_fedskew.reports.spread import is_crowded, spread

CLIENTS = tuple(f"client{k:02}" for k in range(1, 17))
METHODS = {"fedavg": 0.6, "fedbn": 0.8}


def _dealt(run: Path, folder: Path, seed: int) -> None:
    """Make a run one of sixteen clients of two sites, as the simulator writes it."""
    about = json.loads((run / "run.json").read_text())
    about["sites"] = {
        site: {
            "data": str(folder / "data" / site),
            "manifest_sha256": hashlib.sha256((folder / "data" / site / "manifest.json").read_bytes()).hexdigest(),
            "samples": 40,
            "subjects": 10,
            "summary": {},
        }
        for site in ("NORTH", "SOUTH")
    }
    about["partition"] = {
        "how": "dirichlet:alpha=0.5",
        "clients": {
            name: {"samples": 10 + k + seed, "subjects": 2, "labels": [k + seed, 10]} for k, name in enumerate(CLIENTS)
        },
    }
    (run / "run.json").write_text(json.dumps(about))
    for name in CLIENTS:
        (run / "sites" / name / "model.safetensors").unlink()


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, sixteen clients of two sites."""
    folder = tmp_path_factory.mktemp("dealt") / "compare"
    places = [write_site(folder / "data", site) for site in ("NORTH", "SOUTH")]
    data = {name: places[k % 2] for k, name in enumerate(CLIENTS)}
    for method, accuracy in METHODS.items():
        for seed in (0, 1):
            predictions = {n: windows_of(p, accuracy + 0.01 * k, seed) for k, (n, p) in enumerate(data.items())}
            run = write_run(folder / "runs" / slug(method) / f"seed{seed}", method, seed, data, predictions)
            _dealt(run, folder, seed)
    write_plan(folder, tuple(METHODS), (0, 1))
    return folder


def _scores(run: Path) -> list[float]:
    sites = json.loads((run / "summary.json").read_text())["sites"]
    return sorted(100 * scores["window"]["accuracy"] for scores in sites.values())


def test_the_table_has_the_spread_of_each_seed(dealt: Path) -> None:
    """Lowest, median and highest client within a seed, then the mean over seeds; the mean over clients beside it."""
    table = spread(read_results(dealt))
    assert table.columns == ("lowest", "median", "highest", "mean")
    runs = [_scores(dealt / "runs" / "fedavg" / f"seed{seed}") for seed in (0, 1)]
    expected = [
        sum(of(values) for values in runs) / 2 for of in (min, lambda v: (v[7] + v[8]) / 2, max, lambda v: sum(v) / 16)
    ]
    assert [cell.mean for cell in table.rows[0].cells] == pytest.approx(expected)
    assert table.rows[0].worst_site == ""  # client05 of one seed is not that of another


def test_the_terminal_is_not_drowned(dealt: Path) -> None:
    """Sixteen clients fit 120 characters, and all columns are there."""
    text = render_table(dealt)
    for words in ("lowest", "median", "highest", "mean over sites", "of the 16 clients of each seed"):
        assert words in text
    assert "client07" not in text
    assert "missing or incomplete" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_single_run_names_the_worst_client(dealt: Path) -> None:
    """And lists every client on the page."""
    run = dealt / "runs" / "fedavg" / "seed0"
    row = spread(read_results(run)).rows[0]
    assert row.worst_site in CLIENTS
    assert row.worst.mean == pytest.approx(row.cells[0].mean)
    page = write_report(run, run.parent / "page.html").read_text()
    assert "Every client" in page
    assert all(f'<th scope="row">{name}</th>' in page for name in CLIENTS)


def test_clients_are_redrawn_as_one_site(dealt: Path) -> None:
    """The bootstrap is over all subjects: a client's two or three are no sample of patients."""
    assert "no bootstrap" not in render_certainty(dealt)


def test_the_page_tells_of_the_partition(dealt: Path, tmp_path: Path) -> None:
    """What clients hold, a strip of classes, the sites that rows came from; no list of sixteen columns."""
    page = write_report(dealt, tmp_path / "page.html").read_text()
    for words in (
        "16 clients", "client01 to client16", "dirichlet:alpha=0.5", "anew for each seed", "What a client trains on",
        "10 to 25", "leave no model", '<th scope="row">NORTH</th>', "Heat strip",
    ):  # fmt: skip
        assert words in page, words
    assert '<th scope="col">client01</th>' not in page
    assert "tested subjects" not in page


def test_what_clients_hold_is_summarised_by_seed(dealt: Path) -> None:
    """10 to 25 samples at seed 0, 11 to 26 at seed 1; client 1 of seed 0 lacks a class."""
    first, second = holdings(read_results(dealt))
    assert (first.samples, first.median, first.subjects, first.classes) == ((10, 25), 17.5, (2, 2), (1, 2))
    assert (second.samples, second.classes) == ((11, 26), (2, 2))
    assert str(label_strip(read_results(dealt), ("control", "autism"))).startswith("<?xml")


def test_the_csv_has_the_spread_and_no_mean_of_different_clients(dealt: Path, tmp_path: Path) -> None:
    """Of one run it has every client, too."""
    copy = shutil.copytree(dealt, tmp_path / "compare")
    places = {row["site"] for row in csv.DictReader(write_csv(copy).read_text().splitlines())}
    assert places == {"lowest", "median", "highest", "mean", "std over sites"}
    single = {
        row["site"] for row in csv.DictReader(write_csv(copy / "runs" / "fedavg" / "seed0").read_text().splitlines())
    }
    assert {*CLIENTS, "lowest", "mean"} <= single


def test_few_sites_keep_a_column_each(comparison: Path) -> None:
    """What was before stays as it was."""
    results = read_results(comparison)
    assert not is_crowded(results)
    assert holdings(results) == ()
    assert label_strip(results) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"how": 3}, "partition.how must be a text"),
        ({"clients": []}, "partition.clients must be an object"),
        (
            {"clients": {"client01": {"samples": 3, "labels": "many"}}},
            "partition.clients.client01.labels must be a list",
        ),
    ],
)
def test_a_damaged_partition_is_told(change: dict[str, Any], says: str, dealt: Path, tmp_path: Path) -> None:
    """With the file and the key."""
    run = shutil.copytree(dealt / "runs" / "fedavg" / "seed0", tmp_path / "run")
    about = json.loads((run / "run.json").read_text())
    about["partition"] |= change
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(DataError, match=says):
        read_results(run)
