"""compare: wrong calls are found before anything is written, a resume is the same comparison, a failure stays alone."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from variants import bundle_with

from monai_fedskew.cli.main import main
from monai_fedskew.data.synthetic import write_synthetic_study

METHODS = ("--method", "fedavg", "--method", "fedprox:mu=1e30")
SETS = ("--set", "in_features=10", "--set", "batch_size=16")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small prepared sites of 10 edges."""
    return write_synthetic_study(tmp_path_factory.mktemp("prepared") / "data", sites=("EAST", "WEST"), n_regions=5)


@pytest.fixture(scope="module")
def ended(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A comparison of which one method fails (with mu = 1e30 every update is infinite): folder, exit code, errors."""
    out, errors = tmp_path_factory.mktemp("compare") / "out", io.StringIO()
    with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as stopped:
        main(_call(prepared, out, *METHODS))
    return out, int(str(stopped.value.code)), errors.getvalue()


@pytest.fixture(scope="module")
def finished(ended: tuple[Path, int, str]) -> Path:
    """Its folder."""
    return ended[0]


def _call(prepared: Path, out: Path, *more: str) -> list[str]:
    call = ["compare", "abide_connectome", "--data", str(prepared), "--out", str(out), "--seeds", "1", "--jobs", "1"]
    rounds = () if "--rounds" in more else ("--rounds", "2")
    return [*call, *rounds, "--local-epochs", "2", "--choose", "last", *SETS, *more]


def _fails(capsys: pytest.CaptureFixture[str], code: int, call: list[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(call)
    captured = capsys.readouterr()
    assert stopped.value.code == code, captured.err
    assert "Traceback" not in captured.err
    return captured.err


def test_a_failing_run_leaves_the_others_finished(finished: Path) -> None:
    """The other run has its summary, and the table and the page are there."""
    assert json.loads((finished / "runs" / "fedavg" / "seed0" / "summary.json").read_text())["method"] == "fedavg"
    assert not (finished / "runs" / "fedprox_mu=1e30" / "seed0" / "summary.json").exists()
    assert "fedavg" in (finished / "table.txt").read_text()
    assert (finished / "report.html").is_file()


def test_the_reason_of_a_failure_is_printed(ended: tuple[Path, int, str]) -> None:
    """Exit 1; which run, why, and how many."""
    _, code, errors = ended
    assert code == 1
    assert "1 of 2 runs failed: fedprox:mu=1e30, seed 0: round 1: every site failed" in errors
    assert "--resume" in errors


@pytest.mark.parametrize(
    ("more", "key", "values"),
    [
        (("--rounds", "1"), "rounds", ("2", "1")),
        (("--set", "lr=0.5"), "lr", ("0.5",)),
        (("--set", "batch_size=8"), "batch_size", ("16", "8")),
        (("--weights", "equal"), "weights", ("samples", "equal")),
        (("--local-epochs", "3"), "local_epochs", ("2", "3")),
        (("--fraction", "0.5"), "fraction", ("1.0", "0.5")),
    ],
)
def test_a_resume_with_other_settings_is_refused(
    more: tuple[str, ...], key: str, values: tuple[str, ...], finished: Path, prepared: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The finished runs would be mixed with others: the key and both values are named, and nothing is touched."""
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    call = _call(prepared, finished, *METHODS, *more, "--resume")
    error = _fails(capsys, 2, call)
    assert key in error
    assert all(value in error for value in values)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


def test_a_folder_that_is_no_comparison_is_refused(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --resume, with --force and with neither: what lies there stays."""
    (tmp_path / "letters.txt").write_text("mine")
    for flag in ("--resume", "--force", None):
        call = _call(prepared, tmp_path, "--method", "fedavg", *([flag] if flag else []))
        assert str(tmp_path) in _fails(capsys, 2, call)
        assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]
        assert (tmp_path / "letters.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--method", "fedbn", "--method", "fedbn"), "fedbn"),
        (("--method", "fedbm"), "did you mean fedbn"),
        (("--method", "fedbn", "--set", "learning_rate=1"), "--set learning_rate: no such id"),
        (("--method", "fedbn", "--min-sites", "3"), "min_sites=3, but there are 2 sites"),
        (("--method", "fedbn", "--site", "NORTH"), "no site 'NORTH'; prepared there: EAST, WEST"),
        (("--method", "fedbn", "--set", "fold=9"), "fold"),
    ],
)
def test_a_wrong_call_writes_nothing(
    more: tuple[str, ...], says: str, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 at once, not one failed run after the other."""
    assert says in _fails(capsys, 2, _call(prepared, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--set", "learning_rate=1"), "--set learning_rate: no such id"),
        (("--min-sites", "3"), "min_sites=3, but there are 2 sites"),
        (("--site", "NORTH"), "no site 'NORTH'"),
        (("--set", "in_features=11"), "10 features, the network takes 11"),
    ],
)
def test_a_wrong_call_of_one_run_writes_nothing(
    more: tuple[str, ...], says: str, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """simulate looks at the same things first."""
    call = ["simulate", "abide_connectome", "--data", str(prepared), "--method", "fedbn", "--rounds", "1", *SETS, *more]
    assert says in _fails(capsys, 2, [*call, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_fedbn_without_batch_norm_writes_nothing(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 02: the network is looked at before the folder is made, in simulate and in compare."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: config.update(norm="$torch.nn.Identity()"))
    for command in ("simulate", "compare"):
        call = [command, str(bundle), "--data", str(study), "--method", "fedbn", "--rounds", "1"]
        assert "no BatchNorm entries" in _fails(capsys, 2, [*call, "--out", str(tmp_path / "out")])
        assert not (tmp_path / "out").exists()
