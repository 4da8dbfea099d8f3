"""run.json: one folder, one run."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.run_folder import locked, open_run, write_json

ABOUT: dict[str, Any] = {
    "method": "fedbn",
    "overrides": {"lr": 0.1},
    "settings": {"rounds": 3, "weights": "equal", "seed": 0},
    "sites": {"A": {"manifest_sha256": "aa"}, "B": {"manifest_sha256": "bb"}},
    "bundle": {"name": "b", "sha256": "cc"},
    "started": "today",
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    about = copy.deepcopy(ABOUT)
    *folders, last = path.split("/")
    inner = about
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return about


def test_a_new_folder_gets_its_record(tmp_path: Path) -> None:
    """Missing parents are made; the record is what was given."""
    open_run(tmp_path / "a" / "run", ABOUT, resume=False, force=False)
    assert json.loads((tmp_path / "a" / "run" / "run.json").read_text()) == ABOUT


def test_an_existing_run_is_left_alone(tmp_path: Path) -> None:
    """Neither --resume nor --force: an error with both ways out, and nothing changed."""
    open_run(tmp_path, ABOUT, resume=False, force=False)
    with pytest.raises(ConfigError, match="exists; choose another folder, --resume it or replace it with --force"):
        open_run(tmp_path, _changed("method", "local"), resume=False, force=False)
    assert json.loads((tmp_path / "run.json").read_text()) == ABOUT


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """--out names a file: an error, and the file stays."""
    (tmp_path / "run").write_text("mine")
    for force in (False, True):
        with pytest.raises(ConfigError, match="run is a file; choose a folder"):
            open_run(tmp_path / "run", ABOUT, resume=False, force=force)
    assert (tmp_path / "run").read_text() == "mine"


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    """The second is refused while the first holds the folder, and let in afterwards."""
    with locked(tmp_path / "run"):
        with pytest.raises(ConfigError, match="another process is writing"), locked(tmp_path / "run"):
            pass
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path / "run"):
        pass


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    """Old rounds go with it; a folder that is no run is never deleted."""
    open_run(tmp_path / "run", ABOUT, resume=False, force=False)
    (tmp_path / "run" / "rounds").mkdir()
    open_run(tmp_path / "run", ABOUT, resume=False, force=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is no RUN folder"):
        open_run(tmp_path / "letters", ABOUT, resume=False, force=True)
    assert (tmp_path / "letters" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("method", "local", "method was 'fedbn', now it is 'local'"),
        ("overrides", {"lr": 0.2}, r"lr.*0\.1.*0\.2"),
        ("settings/weights", "samples", "weights was 'equal', now it is 'samples'"),
        ("settings/seed", 1, "seed was 0, now it is 1"),
        ("sites/B", {"manifest_sha256": "xx"}, "site B was 'bb', now it is 'xx'"),
        ("sites", {"A": {"manifest_sha256": "aa"}}, "site B was 'bb', now it is None"),
        ("bundle", {"name": "b", "sha256": "dd"}, "bundle configuration was 'cc', now it is 'dd'"),
    ],
)
def test_resume_refuses_another_run(path: str, value: Any, says: str, tmp_path: Path) -> None:
    """What differs is named with both values."""
    open_run(tmp_path, ABOUT, resume=False, force=False)
    with pytest.raises(ConfigError, match=says):
        open_run(tmp_path, _changed(path, value), resume=True, force=False)


@pytest.mark.parametrize(("path", "value"), [("settings/rounds", 9), ("started", "tomorrow"), ("bundle/name", "moved")])
def test_resume_takes_the_same_run(path: str, value: Any, tmp_path: Path) -> None:
    """More rounds, another day, a moved bundle: the same run."""
    open_run(tmp_path, ABOUT, resume=False, force=False)
    open_run(tmp_path, _changed(path, value), resume=True, force=False)


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """What cannot be written leaves the old file as it was."""
    write_json(tmp_path / "a.json", {"x": 1})
    endless: dict[str, Any] = {}
    endless["x"] = endless
    with pytest.raises(ValueError, match="Circular reference"):
        write_json(tmp_path / "a.json", endless)
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
