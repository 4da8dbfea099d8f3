"""Reports of segmentations: Dice and distances instead of an accuracy, boxes and overlays, and no mixture of scores."""

import csv
import io
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from segmented import SITES, write_segmented_comparison, write_segmented_run

from monai_fedskew.data.segmentations import read_examples
from monai_fedskew.errors import DataError
from monai_fedskew.reports import render_certainty, render_table, write_report
from monai_fedskew.reports.certainty import compare_to_first
from monai_fedskew.reports.confusion import Confusion, confusion_figure, confusions, shown_methods
from monai_fedskew.reports.overlays import dice_boxes, overlays
from monai_fedskew.reports.plots import convergence, sheet, style, svg
from monai_fedskew.reports.predictions import tally
from monai_fedskew.reports.published import Published
from monai_fedskew.reports.results import Results, read_results
from monai_fedskew.reports.tables import best, summarise

METHODS = {"fedavg": 0.7, "fedbn": 0.8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, three sites; tests must not change it."""
    return write_segmented_comparison(tmp_path_factory.mktemp("segmented") / "compare", METHODS, (0, 1))


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    """What was read from it."""
    return read_results(folder)


def test_the_first_score_is_the_main_one_and_a_window_is_an_image(results: Results) -> None:
    """One image a subject: both levels say the same, and one is shown."""
    assert (results.main.key, results.levels, results.word("window")) == ("dice", ("window",), "image")
    assert results.metrics == ("dice", "hausdorff95")
    assert results.metric("hausdorff95").unit == "pixels"


def test_the_worst_site_of_a_distance_is_the_highest_and_the_best_method_the_lowest(results: Results) -> None:
    """Site C is the worst by both; fedbn is the best by both; the spread over sites is the population's."""
    dice, distance = (summarise(results, metric=name) for name in ("dice", "hausdorff95"))
    assert [row.worst_site for row in (*dice.rows, *distance.rows)] == ["C"] * 4
    assert distance.rows[0].worst.mean == max(cell.mean or 0 for cell in distance.rows[0].cells)
    assert best(dice)[3] == dice.rows[1].cells[3].mean
    assert best(distance)[3] == distance.rows[1].cells[3].mean
    of_seeds = [np.std([100 * (run.scores["window"][s].of("dice") or 0) for s in SITES]) for run in results.of("fedbn")]
    assert dice.rows[1].fairness.mean == pytest.approx(np.mean(of_seeds))


def test_images_without_a_distance_are_counted(results: Results) -> None:
    """One of twelve at each of three sites and two seeds; of the Dice none."""
    dice, distance = (summarise(results, metric=name) for name in ("dice", "hausdorff95"))
    assert [row.note for row in distance.rows] == ["6 of 72 images have no value"] * 2
    assert [row.note for row in dice.rows] == ["", ""]


def test_the_terminal_has_both_scores_with_their_units(results: Results) -> None:
    """Dice in percent, distances in pixels, and differences of the Dice."""
    text = render_table(results, width=160) + render_certainty(results, width=160)
    assert "Dice, image level, percent" in text
    assert "Hausdorff distance, 95th percentile, image level, pixels" in text
    assert "Dice minus that of fedavg, image level, mean over sites, percentage points" in text
    assert "* lowest of the methods run here" in text
    assert "std over sites" in text
    assert "accuracy" not in text
    assert "window" not in text


def test_differences_redraw_the_images(results: Results) -> None:
    """The bootstrap's difference is that of the pooled images, which here are as many in each seed."""
    (difference,) = compare_to_first(results, draws=50)
    assert difference.note == ""
    assert difference.subjects == pytest.approx(difference.mean)
    assert difference.subjects_interval is not None
    pooled = tally(results.of("fedbn"), "A", metric="dice")
    assert (len(pooled.subjects), pooled.windows.tolist()) == (12, [2.0] * 12)
    means = [run.scores["window"]["A"].of("dice") or 0 for run in results.of("fedbn")]
    assert pooled.windows_right.sum() / 24 == pytest.approx(np.mean(means), abs=1e-6)


def test_the_page_and_the_csv_speak_of_images(folder: Path, tmp_path: Path) -> None:
    """No accuracy, no brain; boxes and overlays of the first and the best method; a column for the unit."""
    text = write_report(folder, tmp_path / "page.html").read_text()
    words = re.sub(r"data:image[^\"]*", "", text)
    for wanted in (
        "Dice on test images in percent",
        "pixels",
        "Boxes of the Dice",
        "of fedavg",
        "of fedbn",
        "have no value",
    ):
        assert wanted in words
    for foreign in ("ccuracy", "Most used edges", "recording", " windows"):
        assert foreign not in words
    assert len(re.findall("<img", words)) == 5  # curves, bars, boxes, two methods' images
    rows = list(csv.DictReader((tmp_path / "page.csv").read_text().splitlines()))
    units = {(row["metric"], row["unit"]) for row in rows}
    assert units == {("dice", "percent"), ("hausdorff95", "pixels")}
    assert {row["site"] for row in rows} == {*SITES, "mean", "worst (C)", "std over sites"}


def test_figures_are_of_the_page_width_however_many_sites(folder: Path, results: Results) -> None:
    """Boxes and curves are well-formed and at most ten inches wide; a run without its table or examples has none."""
    for image in (dice_boxes(results), convergence(results)):
        assert image is not None
        width = float(ElementTree.fromstring(image).attrib["width"].removesuffix("pt"))
        assert 500 < width < 760
    assert "Dice (%)" in str(convergence(results))
    assert (overlays(results, "fedbn") or b"").startswith(b"\x89PNG")
    assert overlays(results, "none") is None


def test_a_run_without_tables_is_reported_without_pictures(tmp_path: Path) -> None:
    """Of an engine's run the server has the scores only."""
    run = write_segmented_run(tmp_path / "run", "fedavg", 0, 0.7, sites=("A", "B"), unit="mm")
    shutil.rmtree(run / "sites")
    results = read_results(run)
    assert (dice_boxes(results), overlays(results, "fedavg"), confusions(results, "fedavg")) == (None, None, ())
    assert results.metric("hausdorff95").unit == "mm"


def test_runs_of_different_scores_are_refused(folder: Path, tmp_path: Path) -> None:
    """A Dice and an accuracy stand in no table: the run and both scores are named."""
    copy = shutil.copytree(folder, tmp_path / "compare")
    summary = copy / "runs" / "fedbn" / "seed1" / "summary.json"
    content = json.loads(summary.read_text())
    one = {"accuracy": 0.5, "samples": 3}
    summary.write_text(json.dumps({**content, "sites": {site: {"window": one, "subject": one} for site in SITES}}))
    with pytest.raises(DataError, match=r"fedbn, seed 1 is scored by accuracy, but fedavg, seed 0 by dice"):
        read_results(copy)


@pytest.mark.parametrize("name", ["segmentation.csv", "examples.npz"])
def test_damaged_tables_and_examples_stop_the_report(folder: Path, tmp_path: Path, name: str) -> None:
    """The file is named, and what to do; nothing in it is unpickled."""
    run = shutil.copytree(folder / "runs" / "fedavg" / "seed0", tmp_path / "run")
    file = run / "sites" / "A" / name
    file.write_bytes(b"\x89nothing\xff")
    if name == "examples.npz":
        np.savez(file, subjects=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=rf"A.{name}.*remove this run's folder and run it again"):
        write_report(run)


def _examples(subjects: object, size: int = 2) -> bytes:
    held = io.BytesIO()
    planes = {f"{plane}_0": np.zeros((size, size), np.uint8) for plane in ("image", "truth", "prediction")}
    np.savez_compressed(held, subjects=np.array(subjects), **planes)
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (_examples(["a"])[:99], "cannot be read as examples"),
        (_examples(["a"]).replace(b"PK\x03\x04", b"PK\x03\x05", 1), "cannot be read as examples"),
        (_examples("a"), "cannot be read as examples"),
        (_examples(["a"], 0), "the slices of a do not fit one another"),
        (_examples(["a"], 8000), "unpacks to 192 MB, more than examples take"),
    ],
)
def test_examples_of_any_other_kind_are_refused(content: bytes, text: str, tmp_path: Path) -> None:
    """Cut short, changed, one name for a list, slices of no size, and what would fill the memory."""
    (tmp_path / "examples.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"examples\.npz.*{text}"):
        read_examples(tmp_path / "examples.npz")


def test_a_dollar_in_a_name_is_a_dollar() -> None:
    """Not the start of a formula, which two of them would be, and mostly a broken one."""
    with style():
        figure, (ax,) = sheet(1, height=1)
        ax.set_title("$a^$")
        assert b"svg" in svg(figure).encode()


def test_published_figures_may_be_of_another_score(results: Results) -> None:
    """They stand in the table of their score, by default in that of the main one."""
    from dataclasses import replace

    dice = Published("p", "window", "", {"x": {"A": (90.0, None)}})
    distance = Published("q", "window", "", {"x": {"A": (3.0, None)}}, "hausdorff95")
    more = replace(results, published=(dice, distance))
    found = {name: [row.source for row in summarise(more, metric=name).rows if row.source] for name in results.metrics}
    assert found == {"dice": ["p"], "hausdorff95": ["q"]}


def test_examples_keep_their_slices(folder: Path) -> None:
    """Four subjects with an image, the truth and the prediction each."""
    examples = read_examples(folder / "runs" / "fedavg" / "seed0" / "sites" / "A" / "examples.npz")
    assert list(examples) == ["a000", "a001", "a002", "a003"]
    assert {plane.shape[:2] for one in examples.values() for plane in one.values()} == {(96, 96)}


def test_confusions_pool_the_seeds(comparison: Path) -> None:
    """Three folds of ten subjects with four windows test six subjects: 24 windows; the diagonal is the accuracy."""
    results = read_results(comparison)
    north, south = confusions(results, "fedprox:mu=0.2")
    assert (north.site, north.counts.shape, north.counts.sum()) == ("NORTH", (2, 2), 24)
    right = [run.scores["window"]["NORTH"].of("accuracy") or 0 for run in results.of("fedprox:mu=0.2")]
    assert north.accuracy == pytest.approx(100 * np.mean(right))
    assert shown_methods(results) == ("local", "fedprox:mu=0.2")
    image = confusion_figure([north, south], "window", ("control", "autism"))
    assert 500 < float(ElementTree.fromstring(image).attrib["width"].removesuffix("pt")) < 760


def test_a_confusion_of_many_classes_has_no_figures_in_its_cells() -> None:
    """345 classes are colours only; a class that is in nobody's label leaves its row empty."""
    counts = np.diag(np.r_[0, np.ones(344, np.int64)])
    assert Confusion("A", counts).accuracy == 100
    assert confusion_figure([Confusion("A", counts)], "image").count("<text") < 60
