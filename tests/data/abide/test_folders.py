import os
import subprocess
import sys
from pathlib import Path

import pytest

from monai_fedskew.data.abide.folders import check_folders, whole_or_nothing
from monai_fedskew.errors import ConfigError, DataError


def check(out: Path, *, force: bool = True) -> None:
    """Check `out` for data in the folder beside it."""
    (out.parent / "data").mkdir()
    check_folders(out.parent / "data", out, force=force, mark="mark")


def dead_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def folder(path: Path, *names: str) -> Path:
    """Make a folder with empty files."""
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("")
    return path


def names(path: Path) -> list[str]:
    """What is in a folder."""
    return sorted(item.name for item in path.iterdir())


def test_what_a_killed_call_left_is_swept_at_the_next(tmp_path: Path) -> None:
    """Folders of processes that ended go; those of running ones, of other outputs and files stay."""
    ended, running = dead_process(), os.getppid()
    for name in (
        f".out.{ended}",
        f".out.{ended}.old",
        f".out.{os.getpid()}",
        f".out.{running}",
        f".out2.{ended}",
        ".out.x",
    ):
        folder(tmp_path / name, "half")
    folder(tmp_path / "out", "mark")
    check(tmp_path / "out")
    assert names(tmp_path) == sorted([f".out.{running}", f".out2.{ended}", ".out.x", "data", "out"])


def test_what_another_call_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    """Of two calls for one new folder the second to end fails: without --force nothing is replaced."""
    with pytest.raises(ConfigError, match="by another call meanwhile; it is kept"), whole_or_nothing(tmp_path / "out"):
        folder(tmp_path / "out", "theirs")
    assert (names(tmp_path), names(tmp_path / "out")) == (["out"], ["theirs"])


def test_an_output_moved_aside_by_a_killed_call_comes_back(tmp_path: Path) -> None:
    """Between the two renames of --force neither the old nor the new folder has its name: the old one gets it."""
    ended = dead_process()
    folder(tmp_path / f".out.{ended}", "new")
    folder(tmp_path / f".out.{ended}.old", "mark", "old")
    with pytest.raises(ConfigError, match="out exists"):
        check(tmp_path / "out", force=False)
    assert names(tmp_path) == ["data", "out"]
    assert names(tmp_path / "out") == ["mark", "old"]


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    """--force onto a symbolic link would replace the link; one to nowhere is refused too."""
    folder(tmp_path / "real", "mark")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="out is a symbolic link; name the folder .*real itself"):
        check(tmp_path / "out")
    (tmp_path / "lost").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="lost is a symbolic link"):
        check_folders(tmp_path / "data", tmp_path / "lost", force=False, mark="mark")


def test_an_output_needs_a_name_and_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """'' and '.' mean this folder, which no new one can be; below a file there is no folder."""
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "data")
    for out in ("", ".", "..", "/"):
        with pytest.raises(ConfigError, match="has no name of its own"):
            check_folders(tmp_path / "data", Path(out), force=True, mark="mark")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="x would lie below .*file, which is a file"):
        check_folders(tmp_path / "data", tmp_path / "file" / "y" / "x", force=True, mark="mark")
    with pytest.raises(ConfigError, match="is no earlier output"):
        check_folders(tmp_path / "data", tmp_path / "file", force=True, mark="mark")
    assert names(tmp_path) == ["data", "file"]


def test_folders_above_go_with_an_error(tmp_path: Path) -> None:
    """A call that fails leaves none of the folders it made; one that succeeds leaves them all."""
    with pytest.raises(DataError, match="stop"), whole_or_nothing(tmp_path / "a" / "b" / "out"):
        raise DataError("stop")
    assert names(tmp_path) == []
    with whole_or_nothing(tmp_path / "a" / "b" / "out"):
        pass
    assert (tmp_path / "a" / "b" / "out").is_dir()
