import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from monai_fedskew.cli.main import main
from monai_fedskew.cli.report import report
from monai_fedskew.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent.parent / "reports"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small comparison."""
    from folders import write_comparison

    return write_comparison(tmp_path / "compare", {"local": 0.5, "fedbn": 0.7}, (0, 1))


def test_report_writes_the_page_and_prints_path_and_table(folder: Path) -> None:
    """`report DIR` leaves report.html and table.csv in DIR and prints where they are."""
    done = CliRunner().invoke(report, [str(folder)], catch_exceptions=False)

    assert done.exit_code == 0
    assert (folder / "report.html").is_file()
    assert f"report: {folder / 'report.html'}" in done.output
    assert (folder / "table.csv").is_file()
    assert "worst site" in done.output


def test_report_takes_another_file(folder: Path, tmp_path: Path) -> None:
    """`--out` says where the page goes; its folder is made."""
    out = tmp_path / "pages" / "mine.html"

    done = CliRunner().invoke(report, [str(folder), "--out", str(out)], catch_exceptions=False)

    assert done.exit_code == 0
    assert out.is_file()
    assert f"table:  {out.with_suffix('.csv')}" in done.output
    assert sorted(path.name for path in out.parent.iterdir()) == ["mine.csv", "mine.html"]
    assert not (folder / "report.html").exists()
    assert not (folder / "table.csv").exists()


def test_report_of_another_folder_is_refused(tmp_path: Path) -> None:
    """A folder that is neither is a wrong call that names what is missing."""
    with pytest.raises(ConfigError, match=r"found neither compare.json"):
        CliRunner().invoke(report, [str(tmp_path)], catch_exceptions=False)


def test_report_without_a_finished_run_ends_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and one line with the first reason; no page and no table."""
    for summary in folder.rglob("summary.json"):
        summary.unlink()
    (folder / "failures.json").write_text(json.dumps({"local|0": "site NORTH: the loss is nan"}))

    with pytest.raises(SystemExit, match="^1$"):
        main(["report", str(folder)])

    error = capsys.readouterr().err
    assert "no run has finished (4 missing; the first, local, seed 0: site NORTH: the loss is nan)" in error
    assert error.count("\n") == 1
    assert not list(folder.glob("*.html"))
    assert not list(folder.glob("*.csv"))


@pytest.mark.parametrize("name", ["mine.html", "mine.csv"])
def test_an_existing_page_or_table_is_replaced_with_force_only(folder: Path, tmp_path: Path, name: str) -> None:
    """Neither is touched without --force, and nothing is written beside it."""
    (tmp_path / name).write_text("mine")
    call = [str(folder / "runs" / "local" / "seed0"), "--out", str(tmp_path / "mine.html")]
    with pytest.raises(ConfigError, match=f"{name} exists; choose another file with --out, or replace it with --force"):
        CliRunner().invoke(report, call, catch_exceptions=False)
    assert [path.read_text() for path in tmp_path.glob("mine.*")] == ["mine"]

    CliRunner().invoke(report, [*call, "--force"], catch_exceptions=False)
    assert (tmp_path / "mine.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "mine.csv").read_text().startswith("level,")


@pytest.mark.parametrize("name", ["report.html", "table.csv"])
def test_a_folder_in_the_place_of_a_file_is_refused(folder: Path, name: str) -> None:
    """Nothing is written, neither page nor table."""
    (folder / name).mkdir()
    with pytest.raises(ConfigError, match=f"{name} is a folder, no regular file, and is left alone"):
        CliRunner().invoke(report, [str(folder)], catch_exceptions=False)
    assert [path.name for path in folder.iterdir() if path.suffix in (".html", ".csv")] == [name]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/dev/full", "/dev/full is a device or pipe"),
        ("page.csv", "the page is HTML"),
        ("run.json", "the page is HTML"),
    ],
)
def test_a_target_that_is_no_page_is_refused(folder: Path, tmp_path: Path, out: str, message: str) -> None:
    """A device stays a device, even with --force."""
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(report, [str(folder), "--out", str(tmp_path / out), "--force"], catch_exceptions=False)
    assert not Path("/dev/full").is_file()
