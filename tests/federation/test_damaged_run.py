"""A RUN folder of an engine with pieces gone or edited: one error that names the file, or it goes on, nothing lost."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from laws import method
from loopback import loopback

from monai_fedskew.errors import ConfigError, DataError, FedSkewError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.run_folder import locked, open_run
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.study import run_study


def _study(sources: Any, folder: Path, rounds: int, *, resume: bool = False) -> dict[str, Any]:
    settings = Settings(rounds=rounds)
    transport = loopback(method("fedbn"), settings, sources, folder)
    transport.round = (checkpoint.latest(folder / "run") or 0) if resume else 0
    try:
        return run_study(
            method("fedbn"), settings, transport, study="s", run=folder / "run", engine="loopback", resume=resume
        )
    finally:
        for resident in transport.residents.values():
            resident.close()
            resident.store.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def done(study: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds at two sites with their state, to be copied."""
    from monai_fedskew.sites.bundle import BundleSite

    folder = tmp_path_factory.mktemp("done")
    _study({site: BundleSite(tiny_bundle, site, study / site) for site in "AB"}, folder, 3)
    return folder


@pytest.fixture
def two(sources: dict[str, Any]) -> dict[str, Any]:
    """The two sites."""
    return {site: sources[site] for site in "AB"}


def _damaged(done: Path, to: Path, name: str, change: Any) -> Path:
    shutil.copytree(done, to, dirs_exist_ok=True)
    path = to / "run" / name
    path.write_text(change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change}))
    return path


@pytest.mark.parametrize("text", ["[]", "null", "3", "{", ""])
def test_a_damaged_summary_is_made_again(text: str, done: Path, two: Any, tmp_path: Path) -> None:
    """From the last round: nothing is trained."""
    _damaged(done, tmp_path, "summary.json", text)
    assert _study(two, tmp_path, 3, resume=True)["unfinished"] == {}


@pytest.mark.parametrize(
    "change",
    ["[" * 100_000, {"settings": []}, {"settings": {"rounds": "3"}}, {"sites": []}, {"sites": {"A": 3}}],
    ids=["deep", "settings", "rounds", "sites", "site"],
)
def test_a_damaged_run_json_is_named(change: Any, done: Path, two: Any, tmp_path: Path) -> None:
    """And nothing is touched."""
    path = _damaged(done, tmp_path, "run.json", change)
    with pytest.raises(DataError, match="run.json: cannot be read"):
        _study(two, tmp_path, 4, resume=True)
    assert (path.parent / "summary.json").is_file()


@pytest.mark.parametrize(
    "change",
    [{"best": [1]}, {"best": ["x", "y"]}, {"since": {}}, {"since": {"A": 9}}, {"sites": "ABC"}, {"sites": []}]
    + [{"run": "../x"}, {"run": 3}],
)
def test_a_damaged_checkpoint_is_named(change: Any, done: Path, two: Any, tmp_path: Path) -> None:
    """Before a site is asked."""
    _damaged(done, tmp_path, "rounds/3/round.json", change)
    with pytest.raises(DataError, match="checkpoint .*3: cannot be read .* go back a round"):
        _study(two, tmp_path, 4, resume=True)


def test_the_round_before_the_last_can_be_gone_back_to(done: Path, two: Any, tmp_path: Path) -> None:
    """As an error about the last one advises; also where the best round changed in between."""
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    rounds = tmp_path / "run" / "rounds"
    best = checkpoint.load(tmp_path / "run", 2).best
    assert best is not None
    assert (rounds / str(best[0])).is_dir()
    shutil.rmtree(rounds / "3")
    first = json.loads((done / "run" / "summary.json").read_text())
    assert _study(two, tmp_path, 3, resume=True)["sites"] == first["sites"]


def test_a_best_round_that_is_gone_is_named(done: Path, two: Any, tmp_path: Path) -> None:
    """There is no folder to delete then."""
    _damaged(done, tmp_path, "rounds/3/round.json", {"best": [99, 0.5]})
    with pytest.raises(DataError, match="99: is not there; put it back, or start anew in another folder"):
        _study(two, tmp_path, 4, resume=True)


def test_a_history_without_its_checkpoints_is_not_begun_anew(done: Path, two: Any, tmp_path: Path) -> None:
    """All rounds are gone: training again from the start in silence would wipe what is left."""
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "run" / "rounds")
    before = (tmp_path / "run" / "history.jsonl").read_text()
    with pytest.raises(DataError, match="tells of 3 rounds, but there is no checkpoint beside it"):
        _study(two, tmp_path, 4, resume=True)
    assert (tmp_path / "run" / "history.jsonl").read_text() == before


@pytest.mark.parametrize("more", [{"resume": True}, {"force": True}], ids=["resume", "force"])
def test_a_refused_second_process_touches_nothing(more: Any, done: Path, tmp_path: Path) -> None:
    """Neither the summary nor the folder of a run that another process writes."""
    shutil.copytree(done / "run", tmp_path, dirs_exist_ok=True)
    about = json.loads((tmp_path / "run.json").read_text())
    before = sorted(tmp_path.rglob("*"))
    with locked(tmp_path), pytest.raises(ConfigError, match="another process is writing to it"):
        open_run(tmp_path, about, **{"resume": False, "force": False, **more})
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".lock"] == [
        path for path in before if path.name != ".lock"
    ]


def test_a_run_folder_below_a_file_is_one_error(two: Any, tmp_path: Path) -> None:
    """Whoever calls: an engine or the command line."""
    (tmp_path / "run").write_text("")
    with pytest.raises(FedSkewError, match="is a file; choose a folder"):
        _study(two, tmp_path, 1)
