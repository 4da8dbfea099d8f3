import json
import re
import shutil
from pathlib import Path

import pytest
from folders import windows_of, write_plan, write_run, write_site

from monai_fedskew import BundleSite, Settings
from monai_fedskew.errors import DataError
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.study import run_study
from monai_fedskew.reports import render_table, write_csv, write_report
from monai_fedskew.reports.distributed import DATA_STAY, kept_entries, reported_sites
from monai_fedskew.reports.history import Event, gap
from monai_fedskew.reports.participation import absences, arrivals
from monai_fedskew.reports.results import read_results

NORM = ("1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var", "1.weight")


@pytest.fixture(scope="session")
def engine_run(study: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's RUN folder: D comes in round 2, C fails there and at the end, B is gone in round 3."""
    from laws import method
    from loopback import loopback

    def lose(site: str, request: Request, reply: Reply) -> Reply | Failure:
        is_second = request.cast is not None and request.task == "fit" and request.cast.round == 2
        return Failure("out of\ndisk") if site == "C" and (is_second or request.task == "finish") else reply

    root = tmp_path_factory.mktemp("engine")
    sources = {site: BundleSite(tiny_bundle, site, study / site) for site in ("A", "B", "C", "D")}
    how = method("fedbn"), Settings(rounds=3)
    sites = loopback(*how, sources, root, absent={"D": (1,), "B": (3,)}, spoil=lose)
    run_study(*how, sites, study="pilot", run=root / "run", engine="nvflare")
    return root / "run"


@pytest.fixture
def copy(engine_run: Path, tmp_path: Path) -> Path:
    """A RUN folder that a test may change."""
    return shutil.copytree(engine_run, tmp_path / "run")


def test_the_page_says_what_ran_and_what_stayed_at_the_sites(copy: Path) -> None:
    """Engine, study, rounds, chosen round, entries that stay, late and absent sites; nothing is drawn of no data."""
    page = write_report(copy).read_text()
    blocks = re.sub(r"</?(ul|li|p|td|th|tr)\b[^>]*>", " ", page)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", blocks))

    for words in (
        "pilot: fedbn on NVIDIA FLARE",
        "fedbn ran on NVIDIA FLARE, study pilot. Model scored: best (round",
        "rounds: 3",
        DATA_STAY,
        "1 of 4 sites has no test scores. The mean and the worst site are those of the others. C: out of disk",
        "mean and worst over 3 of 4 sites",
        "D joined in round 2.",
        "0 B out of reach 3 (1) not connected",
        "0 C failed 2 (1) out of disk",
        "fedbn: 5 entries of the network stay at every site",
        ", ".join(NORM),
        "the data, and with them the names of the edges, stay at the sites",
        "Bars start at zero",
    ):
        assert words in text
    for words in ("history of some runs", "Data of each site", "Left out when", "No balanced accuracy", "Features:"):
        assert words not in text
    assert page.count("<img") == 2  # convergence and bars


def test_sites_are_known_by_what_they_reported(engine_run: Path) -> None:
    """Subjects and windows of the surveys: 16 subjects less those for validation and test, 4 windows each."""
    results = read_results(engine_run)

    told = {one.site: (one.subjects, one.windows, one.kept, one.notes) for one in reported_sites(results)}
    assert told == {
        "A": (9, 36, 5, ()),
        "B": (9, 36, 5, ()),
        "C": (9, 36, 5, ("no test scores",)),
        "D": (9, 36, 5, ("joined in round 2",)),
    }
    assert [(one.where, one.names) for one in kept_entries(results)] == [("every site", NORM)]


def test_a_late_site_is_an_arrival_and_no_gap(engine_run: Path) -> None:
    """The rounds before it joined are neither an absence nor missing of the history."""
    results = read_results(engine_run)

    assert results.gaps == ()
    assert [(one.site, one.round) for one in arrivals(results)] == [("D", 2)]
    assert [(one.site, one.what, one.rounds) for one in absences(results)] == [
        ("B", "out of reach", "3"),
        ("C", "failed", "2"),
    ]


def test_a_history_is_whole_from_the_round_in_which_a_site_joined() -> None:
    """A lost round after that is a gap; a site that was never let in has none."""
    events = [Event(number, "A", "trained", "") for number in (1, 2, 3)]
    late = [Event(2, "B", "failed", "survey: no answer"), Event(3, "B", "joined", ""), Event(3, "B", "trained", "")]
    stranger = Event(2, "X", "excluded", "another network")

    assert gap(Path(__file__), 3, (), [*events, *late, stranger], ("A", "B")) == ""
    assert gap(Path(__file__), 4, (), [*events, *late], ("A", "B")) == "rounds 4 are missing or incomplete"
    assert gap(Path(__file__), 3, (), [*events, *late[1:2]], ("A", "B")) == ""
    assert gap(Path(__file__), 3, (), [*events[1:], *late], ("A", "B")) == "rounds 1 are missing or incomplete"


def test_a_stranger_was_not_let_in(copy: Path) -> None:
    """A site that came late and does not fit has sent no update that could be left out."""
    history = copy / "history.jsonl"
    line = {"round": 2, "site": "X", "event": "excluded", "reason": "another network"}
    history.write_text(history.read_text() + json.dumps(line) + "\n")

    results = read_results(copy)

    assert ("X", "not let in") in [(one.site, one.what) for one in absences(results)]
    assert results.gaps == ()


def test_the_terminal_hears_of_all_that(engine_run: Path) -> None:
    """Sites without scores, where it ran, what stayed there, who was late or absent."""
    text = render_table(engine_run)

    assert "fedbn: mean and worst over 3 of 4 sites\n" in text
    assert "Sites without test scores:\nC: out of disk\n" in text
    assert "fedbn on NVIDIA FLARE, study pilot: 3 rounds; scored: the model of round" in text
    assert f"{DATA_STAY}\n\nLate and absent sites:\nD: joined in round 2\n" in text
    assert "B: out of reach in round 3 (not connected)\nC: failed in round 2 (out of disk)\n" in text


def test_means_are_those_of_the_summary(copy: Path) -> None:
    """Over the sites that were scored, in the table as in summary.json."""
    summary = json.loads((copy / "summary.json").read_text())
    mean, worst = summary["mean"]["window"], summary["worst"]["window"]

    text = write_csv(copy).read_text()

    assert mean["accuracy_sites"] == 3
    assert f"window,accuracy,ours,fedbn,mean,{100 * mean['accuracy']:.4f},,1,,,,,,\n" in text
    assert f"window,accuracy,ours,fedbn,worst ({worst['site']}),{100 * worst['accuracy']:.4f},,1,,,,,,\n" in text


def test_without_any_scored_site_there_is_an_error_with_the_reasons(copy: Path) -> None:
    """It says that the rounds are not lost."""
    summary = json.loads((copy / "summary.json").read_text())
    summary |= {"sites": {}, "unfinished": dict.fromkeys("ABCD", "not connected"), "mean": {}, "worst": {}}
    (copy / "summary.json").write_text(json.dumps(summary))

    for read in (render_table, write_report):
        with pytest.raises(DataError, match=r"no site has test scores \(A: not connected; B: .*resume the study"):
            read(copy)
    assert not (copy / "report.html").exists()


def test_all_sites_scored_and_nothing_kept(copy: Path) -> None:
    """No warning, no note; that all entries are shared is said."""
    summary = json.loads((copy / "summary.json").read_text())
    summary["sites"]["C"] = summary["sites"]["A"]
    (copy / "summary.json").write_text(json.dumps({**summary, "unfinished": {}}))
    details = json.loads((copy / "run.json").read_text())
    for site in details["sites"].values():
        site["private_keys"] = []
    (copy / "run.json").write_text(json.dumps(details))

    text = write_report(copy).read_text()

    assert "no test scores" not in text
    assert "mean and worst over" not in text
    assert "no entry of the network stays at every site; all are shared" in text


def test_sites_that_keep_different_entries_are_told_apart(copy: Path) -> None:
    """Bundles may differ in what they keep."""
    details = json.loads((copy / "run.json").read_text())
    details["sites"]["D"]["private_keys"] = ["1.weight"]
    (copy / "run.json").write_text(json.dumps(details))

    kept = kept_entries(read_results(copy))

    assert [(one.where, len(one.names)) for one in kept] == [("A, B, C", 5), ("D", 1)]


def test_text_of_sites_and_engine_is_escaped(copy: Path) -> None:
    """Reasons come from other machines."""
    evil = "<script>alert('x')</script>"
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "unfinished": {"C": evil}}))
    details = json.loads((copy / "run.json").read_text())
    details["sites"]["A"]["private_keys"] = [evil]
    (copy / "run.json").write_text(json.dumps({**details, "engine": evil, "study": evil}))

    text = write_report(copy).read_text()

    assert "<script" not in text
    assert text.count("&lt;script&gt;alert") >= 5


def test_only_an_engine_may_keep_its_data_to_itself(copy: Path) -> None:
    """A simulated run without data folder is a damaged one."""
    details = json.loads((copy / "run.json").read_text())
    del details["engine"]
    (copy / "run.json").write_text(json.dumps(details))

    with pytest.raises(DataError, match="sites.A lacks the key 'data'"):
        read_results(copy)


def test_a_comparison_may_hold_a_run_of_an_engine(engine_run: Path, tmp_path: Path) -> None:
    """It stands beside a simulated one; what its sites did not send is left out with the reason."""
    folder = tmp_path / "compare"
    data = {site: write_site(folder / "data", site, has_xyz=False) for site in "ABCD"}
    write_run(folder / "runs" / "local" / "seed0", "local", 0, data, {s: windows_of(data[s], 0.6, 0) for s in data})
    shutil.copytree(engine_run, folder / "runs" / "fedbn" / "seed0")
    write_plan(folder, ("local", "fedbn"), (0,))

    text = write_report(folder).read_text()

    assert "fedbn, seed 0, C: out of disk" in text
    assert "a site has no score in 1 of 1 runs" in text
    assert "Data of each site" in text
    assert "What each site reported" in text
    assert "fedbn, seed 0, D: joined in round 2" in render_table(folder)
