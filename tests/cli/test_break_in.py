"""What a break-in test found: nothing given from outside is evaluated, and damage is named in one line."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monai_fedskew.cli.main import main
from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.federation.run_folder import locked


def _call(bundle: Path, data: Path, out: Path, *more: str) -> list[str]:
    call = ["simulate", str(bundle), "--data", str(data), "--method", "fedavg", "--rounds", "2", "--choose", "last"]
    return [*call, "--out", str(out), *more]


def _fails(capsys: pytest.CaptureFixture[str], call: list[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main(call)
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return int(str(stopped.value.code)), error


@pytest.mark.parametrize(
    "value",
    [
        "lr=$open('pwned', 'w')",
        "lr= $open('pwned', 'w')",
        "lr='$open(1)'",
        'lr=["$open(1)"]',
        "lr='@momentum'",
        "lr='%x'",
        "network_def={_target_: os.system, command: touch pwned}",
        "lr={a: {_target_: os.system}}",
    ],
)
def test_nothing_given_with_set_is_evaluated(
    value: str, study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expressions, references and objects to build belong in the bundle; exit 2 before anything is written."""
    code, error = _fails(capsys, _call(tiny_bundle, study, tmp_path / "run", "--set", value))
    assert code == 2
    assert "not taken here" in error or "would build an object" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["output_dir", "dataset_dir", "site", "bundle_root"])
def test_what_the_run_decides_cannot_be_set(
    key: str, study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise two sites would read one folder, or write to one."""
    code, error = _fails(capsys, _call(tiny_bundle, study, tmp_path / "run", "--set", f"{key}=/elsewhere"))
    assert (code, f"--set {key}: is decided by the run" in error) == (2, True)


@pytest.mark.parametrize("value", ["lr=x", "fold=9", "batch_size=x", "dropout=7"])
def test_a_value_the_bundle_cannot_use_is_named_with_its_cause(
    value: str, study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the override and the innermost reason, not the parser's wrapping."""
    code, error = _fails(capsys, _call(tiny_bundle, study, tmp_path / "run", "--set", value))
    assert code == 2
    assert value.partition("=")[0] in error
    assert "Failed to instantiate" not in error
    assert not (tmp_path / "run").exists()


def test_an_exponent_is_a_number(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """`1e-3`, which YAML 1.1 reads as text."""
    main(_call(tiny_bundle, study, tmp_path / "run", "--set", "lr=1e-3"))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["overrides"]["lr"] == 0.001


def test_a_path_that_cannot_be_written_is_one_line(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--out is a file, or below one."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, error = _fails(capsys, _call(tiny_bundle, study, out))
        assert code in (1, 2)
        assert "file" in error


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "{"),
        ("run.json", "[]"),
        ("history.jsonl", "null\n" * 40),
        ("history.jsonl", ""),
        ("history.jsonl", None),
        ("rounds/2/round.json", "null"),
        ("rounds/2/round.json", '{"round": 9}'),
        ("rounds/2/server.safetensors", "x"),
    ],
)
def test_damage_is_named_on_resume(
    name: str, content: str | None, study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 and the file's name; no history is lost without a word."""
    run = tmp_path / "run"
    main(_call(tiny_bundle, study, run))
    (run / "summary.json").unlink()
    path = run / name
    path.unlink() if content is None else path.write_text(content)
    code, error = _fails(capsys, _call(tiny_bundle, study, run, "--resume"))
    assert code == 1
    assert Path(name).name.partition(".")[0] in error or "rounds/2" in error


def test_two_processes_cannot_write_one_run(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is told so, exit 2."""
    run = tmp_path / "run"
    main(_call(tiny_bundle, study, run))
    (run / "summary.json").unlink()
    with locked(run):
        code, error = _fails(capsys, _call(tiny_bundle, study, run, "--resume"))
    assert (code, "another process is writing" in error) == (2, True)


def test_resume_and_force_are_not_both(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One goes on, the other replaces."""
    code, error = _fails(capsys, _call(tiny_bundle, study, tmp_path / "run", "--resume", "--force"))
    assert (code, "give one of them" in error) == (2, True)


def test_a_wrong_call_with_force_keeps_the_old_run(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is deleted before the call is known to be right."""
    run = tmp_path / "run"
    main(_call(tiny_bundle, study, run))
    before = (run / "summary.json").read_text()
    capsys.readouterr()
    code, _ = _fails(capsys, _call(tiny_bundle, study, run, "--force", "--set", "nosuch=1"))
    assert code == 2
    assert (run / "summary.json").read_text() == before


def test_changed_data_are_noticed(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of vectors.npy in another order, same shape: exit 1 naming site and file."""
    import numpy as np

    shutil.copytree(study, tmp_path / "data")
    path = tmp_path / "data" / "B" / "vectors.npy"
    np.save(path, np.load(path)[::-1])
    code, error = _fails(capsys, _call(tiny_bundle, tmp_path / "data", tmp_path / "run"))
    assert code == 1
    assert "site B" in error
    assert "vectors.npy" in error


def test_sigterm_ends_a_comparison_with_its_workers(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """No process of it is left a moment later, and the folder can be resumed."""
    call = [sys.executable, "-m", "monai_fedskew.cli.main", "compare", str(tiny_bundle), "--data", str(study)]
    call += ["--method", "fedavg", "--method", "fedbn", "--rounds", "2000", "--seeds", "1", "--jobs", "2"]
    out = tmp_path / "cmp"
    running: Any = subprocess.Popen([*call, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    history = out / "runs" / "fedavg" / "seed0" / "history.jsonl"
    deadline = time.monotonic() + 90
    while not (history.is_file() and history.stat().st_size > 1000) and time.monotonic() < deadline:
        time.sleep(0.2)
    running.send_signal(signal.SIGTERM)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130, error.decode()[-1500:]
    size = history.stat().st_size
    time.sleep(1.5)
    assert history.stat().st_size == size


def test_sites_of_other_labels_or_channels_are_refused_before_anything_is_written(
    image_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One network could not serve them; in the rounds one site would fail again and again, and be scored."""
    pixels = np.zeros((8, 1, 8, 8), np.float32)
    write_image_site(tmp_path / "labels" / "A", pixels, [0, 1] * 4, label_names="ab")
    write_image_site(tmp_path / "labels" / "B", pixels, [0, 1] * 4, label_names="abc")
    write_image_site(tmp_path / "colours" / "A", pixels, [0, 1] * 4, label_names="ab")
    write_image_site(tmp_path / "colours" / "B", pixels.repeat(3, axis=1), [0, 1] * 4, label_names="ab")
    for data, words in (("labels", "site B: label names"), ("colours", r"site B: channels and dimensions of images")):
        code, error = _fails(capsys, _call(image_bundle, tmp_path / data, tmp_path / "run"))
        assert code == 1
        assert words in error
        assert "at site A" in error
    assert not (tmp_path / "run").exists()


def test_what_two_steps_find_wrong_leaves_nothing_behind(
    study: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The corrected call must not meet the folder of the wrong one."""
    call = [*_call(tiny_bundle, study, tmp_path / "run"), "--method", "fedmix:mean_batch=15"]
    _, error = _fails(capsys, call)
    assert "site A: fewer training subjects than mean_batch=15" in error
    assert not (tmp_path / "run").exists()
