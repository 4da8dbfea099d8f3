"""fedskew flower: the app folder, and the outcome of a run."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from monai_fedskew.cli import flower
from monai_fedskew.cli.main import main

OPTIONS = ["flower", "app", "--study", "My.Study", "--method", "fedrdn+fedbn", "--sites", "3", "--rounds", "4"]


def _write(out: Path, *more: str) -> None:
    main([*OPTIONS, "--out", str(out), *more])


def test_an_app_folder_holds_settings_and_two_import_lines(tmp_path: Path) -> None:
    """No code but the two lines, every setting of a run, and commands that name the study."""
    _write(tmp_path / "app", "--local-epochs", "2", "--seed", "7", "--min-sites", "2", "--timeout", "60")
    about = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = about["tool"]["flwr"]["app"]["config"]
    assert config["study"] == "My.Study"
    assert (config["method"], config["sites"], config["timeout"], config["resume"]) == ("fedrdn+fedbn", 3, 60, False)
    assert (config["rounds"], config["local_epochs"], config["seed"], config["min_sites"]) == (4, 2, 7, 2)
    assert about["project"]["name"] == "fedskew-my-study"
    code = [line for path in (tmp_path / "app").rglob("*.py") for line in path.read_text().splitlines()]
    assert sorted(line for line in code if line and not line.startswith('"""')) == [
        "app = client",
        "app = server",
        "from monai_fedskew.engines.flower import client",
        "from monai_fedskew.engines.flower import server",
    ]
    readme = (tmp_path / "app" / "README.md").read_text()
    for word in (
        "$FEDSKEW_RUNS/My.Study",
        "--enable-supernode-auth",
        "register node-key.pub study --name NYU",
        "--resume",
    ):
        assert word in readme


def test_flower_builds_the_app_folder(tmp_path: Path) -> None:
    """Flower's own check of a folder passes: license, dependency, names of the two apps."""
    _write(tmp_path / "app")
    own = {**os.environ, "HOME": str(tmp_path), "FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    call = [Path(sys.executable).with_name("flwr"), "build", "--app", str(tmp_path / "app")]
    done = subprocess.run(call, env=own, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.rglob("*.fab"))) == 1


@pytest.mark.parametrize("more", [("--min-sites", "4"), ("--min-sites", "3", "--fraction", "0.5")])
def test_sites_that_can_never_be_enough_are_refused(
    more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three sites, of which all or half take part in a round; nothing is written."""
    with pytest.raises(SystemExit, match="2"):
        _write(tmp_path / "app", *more)
    assert "wait for more sites, or ask for fewer a round" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_only_an_app_folder_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --force nothing, with it an app folder of ours, never another folder."""
    _write(tmp_path / "app")
    before = (tmp_path / "app" / "pyproject.toml").read_text()
    with pytest.raises(SystemExit, match="2"):
        _write(tmp_path / "app", "--seed", "1")
    assert "exists; choose another --out, or replace it with --force" in capsys.readouterr().err
    assert (tmp_path / "app" / "pyproject.toml").read_text() == before
    _write(tmp_path / "app", "--seed", "1", "--force")
    assert "seed = 1" in (tmp_path / "app" / "pyproject.toml").read_text()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("two years of work")
    with pytest.raises(SystemExit, match="2"):
        _write(tmp_path / "thesis", "--force")
    assert "is not an app folder" in capsys.readouterr().err
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "two years of work"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["--method", "fedbm"], "did you mean fedbn"),
        (["--method", "pooled"], "method pooled: a baseline without messages"),
        (["--method", "local"], "method local: a baseline without messages"),
        (["--study", "../up"], "study='../up'"),
    ],
)
def test_a_wrong_call_writes_nothing(
    change: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown method, one that no engine can run, a name that is no folder name: exit 2."""
    with pytest.raises(SystemExit, match="2"):
        _write(tmp_path / "app", *change)
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_rounds_must_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As for simulate."""
    with pytest.raises(SystemExit, match="2"):
        main([*OPTIONS[:-2], "--out", str(tmp_path / "app")])
    assert "--rounds is missing" in capsys.readouterr().err


def _flwr(folder: Path, status: str, details: str) -> Path:
    """Stand in for Flower's command line, which talks to a SuperLink; notes what it was called with."""
    script = folder / "flwr"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"with pathlib.Path({str(folder / 'calls')!r}).open('a') as calls:\n"
        "    calls.write(' '.join(sys.argv[1:]) + '\\n')\n"
        "print('Using SuperLink: study')\n"
        f"run = {{'status': {status!r}, 'status-details': {details!r}}}\n"
        "told = {'run': {'success': True, 'run-id': '42'}, 'list': {'success': True, 'runs': [run]}, 'log': {}}\n"
        "print(json.dumps(told[sys.argv[1]]))\n"
    )
    script.chmod(0o755)
    return script


def test_a_run_that_failed_exits_1_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Flower has as the run's status decides, and its details are shown with the command that goes on."""
    _write(tmp_path / "app")
    script = _flwr(tmp_path, "finished:failed", "ServerApp failed with exception: 1 of 3 sites are connected")
    monkeypatch.setattr(flower, "_program", lambda: str(script))
    with pytest.raises(SystemExit, match="1"):
        main(["flower", "run", str(tmp_path / "app"), "study"])
    told = capsys.readouterr().err
    assert "run 42 is finished:failed: ServerApp failed with exception: 1 of 3 sites are connected" in told
    assert f"fedskew flower run {tmp_path / 'app'} study --resume" in told


def test_a_run_that_was_completed_exits_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started with resume=true when asked, followed, and looked up."""
    _write(tmp_path / "app")
    monkeypatch.setattr(flower, "_program", lambda: str(_flwr(tmp_path, "finished:completed", "")))
    main(["flower", "run", str(tmp_path / "app"), "study", "--resume"])
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"run {tmp_path / 'app'} study --run-config resume=true --format json",
        "log 42 study --stream",
        "list study --run-id 42 --format json",
    ]


def test_what_flower_says_of_a_run_it_does_not_start_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No JSON, as when the SuperLink is not reached: its own words, and exit 1."""
    _write(tmp_path / "app")
    script = tmp_path / "flwr"
    script.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(flower, "_program", lambda: str(script))
    with pytest.raises(SystemExit, match="1"):
        main(["flower", "run", str(tmp_path / "app")])
    assert "flwr run: Connection refused" in capsys.readouterr().err
