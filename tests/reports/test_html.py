import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from monai_fedskew.reports import write_csv, write_report
from monai_fedskew.reports.participation import absences
from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import read_results

VOID = {"meta", "img", "br", "wbr"}


class Outline(HTMLParser):
    """Checks that tags are balanced, and keeps images and tables."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tables = 0
        self.captions = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is opened."""
        if tag == "img":
            self.images.append(dict(attrs))
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that what is closed was opened last."""
        assert self.open.pop() == tag


@pytest.fixture
def copy(comparison: Path, tmp_path: Path) -> Path:
    """A comparison that a test may change."""
    return shutil.copytree(comparison, tmp_path / "compare")


def test_page_is_whole_and_stands_alone(copy: Path) -> None:
    """Tags are balanced, images are inline and described, tables have captions, nothing is fetched or run."""
    page = write_report(copy)
    text = page.read_text()
    outline = Outline()
    outline.feed(text)

    assert page == copy / "report.html"
    assert outline.open == []
    assert outline.tables == outline.captions
    assert len(outline.images) == 7  # convergence, two levels of bars, two methods' confusions, sites, brain
    assert all(image["alt"] and str(image["src"]).startswith("data:image/") for image in outline.images)
    assert not re.search(r"<script|<link|src=\"http|url\(|@import", text)
    assert len(text) < 5_000_000
    for word in (
        "Synthetic comparison",
        "worst site",
        "mean over sites",
        "can give is 0.25",
        "constant ROI 4801",
        "Features: pearson; windows of 32 volumes, 1 apart.",
        "equal",
    ):
        assert word in text


def test_page_of_one_run_says_there_is_nothing_to_compare(copy: Path) -> None:
    """A RUN folder gets a page without differences and without bold."""
    text = write_report(copy / "runs" / "fedavg" / "seed0").read_text()

    assert "One run has nothing to be compared with" in text
    assert "<strong>" not in text


def test_everything_from_the_folder_is_escaped(copy: Path) -> None:
    """Markup in titles, sources, reasons and commands is shown, not obeyed."""
    evil = "<script>alert('x')</script>"
    plan = json.loads((copy / "compare.json").read_text())
    published = {"source": evil, "note": evil, "values": {evil: {"NORTH": [1.0, 1.0]}}}
    (copy / "compare.json").write_text(
        json.dumps({**plan, "title": evil, "published": published, "command": ["x", evil]})
    )
    history = copy / "runs" / "local" / "seed0" / "history.jsonl"
    history.write_text(
        history.read_text() + json.dumps({"round": 1, "site": evil, "event": "failed", "reason": evil}) + "\n"
    )

    text = write_report(copy).read_text()

    assert "<script" not in text
    assert text.count("&lt;script&gt;alert") >= 6


def test_missing_runs_and_absent_sites_are_said(copy: Path) -> None:
    """A run that did not finish and a site that failed in two rounds are in the page."""
    (copy / "runs" / "fedavg" / "seed1" / "summary.json").unlink()
    history = copy / "runs" / "local" / "seed0" / "history.jsonl"
    lines = [json.dumps({"round": r, "site": "SOUTH", "event": "failed", "reason": "out of disk"}) for r in (2, 3)]
    history.write_text(history.read_text() + "\n".join(lines) + "\n")

    text = write_report(copy).read_text()

    assert "1 of 9 runs have no result" in text
    assert "fedavg seed 1: did not finish" in text
    assert "2-3 (2)" in text
    assert "out of disk" in text
    (absence,) = absences(read_results(copy))
    assert (absence.method, absence.site, absence.what, absence.count) == ("local", "SOUTH", "failed", 2)


def test_page_without_data_folder_leaves_the_edges_out(copy: Path) -> None:
    """When the prepared data are gone, the page says so instead of failing."""
    for file in copy.glob("runs/*/*/run.json"):
        file.write_text(re.sub(r'"data": "[^"]*"', '"data": "/nowhere/at/all"', file.read_text()))

    text = write_report(copy).read_text()

    assert "This section is left out: no site&#39;s data can be read any more" in text


def test_page_without_history_says_so(copy: Path) -> None:
    """Runs without a history have no curves, no claim about participation, and a warning; an empty one is named too."""
    for file in copy.glob("runs/*/*/history.jsonl"):
        file.unlink()
    (copy / "runs" / "local" / "seed2" / "history.jsonl").write_text("")

    text = write_report(copy).read_text()

    assert "No run recorded scores or losses over rounds" in text
    assert "The runs recorded no participation" in text
    assert "local seeds 0-1, fedavg seeds 0-2, fedprox:mu=0.2 seeds 0-2: history.jsonl is missing" in text
    assert "local seed 2: history.jsonl is empty" in text


def test_page_of_a_cut_history_says_which_rounds_are_gone(copy: Path) -> None:
    """A file that ends in the middle of round 2 gives a warning, and no claim that every site took part."""
    history = copy / "runs" / "local" / "seed0" / "history.jsonl"
    lines = history.read_text().splitlines()
    rounds = [json.loads(line)["round"] for line in lines]
    history.write_text("\n".join(lines[: rounds.index(2) + 1]) + "\n")

    text = write_report(copy / "runs" / "local" / "seed0").read_text()

    assert "local seed 0: rounds 2-3 are missing or incomplete" in text
    assert "In the rounds that the histories hold, every site took part" in text
    assert "every round of every finished run" not in text


def test_page_of_a_site_with_one_class_says_where_a_score_is_missing(copy: Path) -> None:
    """Balanced accuracy and AUC are left out of the mean there, with a count; the accuracy stays."""
    run = copy / "runs" / "local" / "seed0"
    summary = json.loads((run / "summary.json").read_text())
    summary["sites"]["SOUTH"]["window"]["balanced_accuracy"] = None
    (run / "summary.json").write_text(json.dumps(summary))

    text = write_report(run).read_text()

    assert "No balanced accuracy at SOUTH in 1 of 1 seeds (0): it has no value where the test subjects lack" in text
    assert "No area under the curve at NORTH in 1 of 1 seeds (0), SOUTH in 1 of 1 seeds (0)" in text
    assert "guessing gives 50 %" in text


def test_same_folder_gives_the_same_page(copy: Path) -> None:
    """A report is a function of its folder."""
    assert write_report(copy, copy / "a.html").read_text() == write_report(copy, copy / "b.html").read_text()


def test_csv_lies_beside_the_page(copy: Path) -> None:
    """The table is also written as CSV, all metrics and levels."""
    text = write_csv(copy).read_text()

    assert text.startswith("level,metric,source,method,site,mean_percent,std_percent,seeds,flops_per_sample,")
    assert "\nsubject,balanced_accuracy,ours,fedavg,mean," in text


def test_ranges_are_short() -> None:
    """Round numbers in a row become a range."""
    assert as_ranges([]) == ""
    assert as_ranges([5, 1, 2, 3, 7]) == "1-3, 5, 7"
