"""Private state on disk: whole or absent, found again anywhere, and never another network's."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from monai_fedskew.core.private import StateKey, Store
from monai_fedskew.errors import ConfigError, DataError, StateError
from monai_fedskew.sites.state_folder import drop, list_held, rounds_in
from monai_fedskew.sites.store import SiteStore, read_about

KEY = StateKey("study", "run", "NYU", "a" * 64)
OTHER = StateKey("study", "run", "NYU", "b" * 64)
FOLDER = "study/NYU/aaaaaaaaaaaa/run"
HOLDER = (
    "import sys, torch; from pathlib import Path; from monai_fedskew.core.private import StateKey\n"
    "from monai_fedskew.sites.store import SiteStore; store = SiteStore(Path(sys.argv[1]))\n"
    "store.write(StateKey('study', 'run', 'NYU', 'a' * 64), 1, {'model/w': torch.ones(1)}, keep=())\n"
    "print('written', flush=True); sys.stdin.read()"
)


def _state(value: float = 1.0) -> dict[str, Tensor]:
    return {"model/w": torch.full((2,), value)}


def test_every_kind_of_tensor_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Scalars, counters, booleans, halves, empty tensors, NaN, and no tensor at all."""
    state = {
        "model/0.weight": torch.randn(3, 2),
        "model/0.num_batches_tracked": torch.tensor(7),
        "part.x/mask": torch.tensor([True, False]),
        "optimizer/half": torch.ones(3, dtype=torch.bfloat16),
        "part.x/empty": torch.zeros(0, 4),
        "part.x/nan": torch.tensor([float("nan"), float("-inf")]),
    }
    store: Store = SiteStore(tmp_path / "state")
    store.write(KEY, 1, state, keep=())
    back = store.read(KEY, 1)
    assert back.keys() == state.keys()
    for name, value in state.items():
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape)
        assert torch.equal(back[name].reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))
    store.write(KEY, 2, {}, keep=())
    assert store.read(KEY, 2) == {}


def test_rounds_not_to_be_kept_go(tmp_path: Path) -> None:
    """Also those of rounds that the server has gone back over."""
    store = SiteStore(tmp_path)
    for round in (1, 2, 3, 4):
        store.write(KEY, round, _state(round), keep=(2, round - 1))
    assert rounds_in(tmp_path / FOLDER) == (2, 3, 4)
    store.write(KEY, 3, _state(30), keep=(2,))
    assert rounds_in(tmp_path / FOLDER) == (2, 3)
    assert store.read(KEY, 3)["model/w"].tolist() == [30.0, 30.0]


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    """Patient-derived: folders 0700, files 0600, whatever the umask lets through."""
    SiteStore(tmp_path / "state").write(KEY, 1, _state(), keep=())
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert len(found) == 8
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_copied_folder_is_read_on_another_machine(tmp_path: Path) -> None:
    """Nothing absolute is in it, by content or by link."""
    SiteStore(tmp_path / "here").write(KEY, 3, _state(3), keep=())
    shutil.copytree(tmp_path / "here", tmp_path / "elsewhere" / "there")
    shutil.rmtree(tmp_path / "here")
    for path in (tmp_path / "elsewhere").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes()
    moved = SiteStore(tmp_path / "elsewhere" / "there")
    assert moved.read(KEY, 3)["model/w"].tolist() == [3.0, 3.0]
    moved.write(KEY, 4, _state(4), keep=(3,))
    assert rounds_in(tmp_path / "elsewhere" / "there" / FOLDER) == (3, 4)


def test_about_says_what_it_is(tmp_path: Path) -> None:
    """Names, the whole hash, every entry with dtype and shape; written again when the entries change."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    about = read_about(tmp_path / FOLDER)
    assert [about[name] for name in ("schema", "study", "run", "site", "network")] == [
        1,
        "study",
        "run",
        "NYU",
        "a" * 64,
    ]
    assert about["entries"] == {"model/w": "float32 (2,)"}
    assert set(about["versions"]) == {"monai-fedskew", "torch", "safetensors"}
    store.write(KEY, 2, {**_state(), "optimizer/step": torch.tensor(1)}, keep=())
    assert read_about(tmp_path / FOLDER)["entries"]["optimizer/step"] == "int64 ()"


def test_a_missing_round_names_those_there_are(tmp_path: Path) -> None:
    """And how to go on."""
    store = SiteStore(tmp_path)
    with pytest.raises(
        StateError, match="site NYU: no private state of round 3 of study study, run run .* nothing was"
    ):
        store.read(KEY, 3)
    store.write(KEY, 1, _state(), keep=())
    store.write(KEY, 2, _state(), keep=(1,))
    with pytest.raises(StateError, match="there is that of round 1, 2: go on .* drop study --run run --site 'NYU'"):
        store.read(KEY, 3)


def test_the_state_of_another_network_is_refused(tmp_path: Path) -> None:
    """Said so, with its entries; beside this network's once that has written something."""
    store = SiteStore(tmp_path)
    store.write(OTHER, 3, {f"model/{i}": torch.ones(2) for i in range(7)}, keep=())
    with pytest.raises(
        StateError,
        match=r"of this network \(aaaaaaaaaaaa\); that of round 3 was written by another \(bbbbbbbbbbbb\), with the "
        r"entries model/0 float32 \(2,\);.* model/4 float32 \(2,\); 2 more: use that network again",
    ):
        store.read(KEY, 3)
    store.write(
        StateKey("study", "before", "NYU", "a" * 64), 1, {f"model/{i}": torch.ones(6) for i in range(2)}, keep=()
    )
    with pytest.raises(
        StateError, match=r"differs in model/0 float32 \(2,\), now float32 \(6,\);.* model/2 .*, now absent"
    ):
        store.read(KEY, 3)


def test_a_hash_is_compared_whole(tmp_path: Path) -> None:
    """Two networks may share the twelve digits that name a folder."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    with pytest.raises(StateError, match=f"belongs to network '{'a' * 64}', not '{'a' * 12 + 'c' * 52}'"):
        store.read(StateKey("study", "run", "NYU", "a" * 12 + "c" * 52), 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [("run", "run 'run', not 'new'"), ("site", "site 'NYU', not 'new'"), ("round", "round '1', not '5'")],
)
def test_a_file_in_a_wrong_place_is_refused(change: str, said: str, tmp_path: Path) -> None:
    """Copied by hand from another run, site or round."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    names = {"study": "study", "run": "run", "site": "NYU", "network": "a" * 64}
    key = KEY if change == "round" else StateKey(**{**names, change: "new"})
    round = 5 if change == "round" else 1
    target = tmp_path / key.study / key.site / key.network[:12] / key.run / f"{round}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / FOLDER / "1.safetensors", target)
    with pytest.raises(StateError, match=f"belongs to {said}; put back"):
        store.read(key, round)


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "text"])
def test_damage_is_named_with_what_to_do(damage: str, tmp_path: Path) -> None:
    """Also a single bit in a value, which the file format does not notice."""
    store = SiteStore(tmp_path)
    for round in (1, 2):
        store.write(KEY, round, _state(), keep=(1,))
    path = tmp_path / FOLDER / "2.safetensors"
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-3], "empty": b"", "flipped": flipped, "text": b"not tensors at all"}[damage])
    with pytest.raises(DataError, match=r"2.safetensors: is damaged .*put back a copy .* \(there is round 1\)"):
        store.read(KEY, 2)
    assert store.read(KEY, 1)["model/w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("when", "rounds"), [("before", (1,)), ("after", (1, 2))])
def test_a_killed_process_leaves_the_rounds_before_whole(when: str, rounds: tuple[int, ...], tmp_path: Path) -> None:
    """SIGKILL in the middle of a write, or between it and the clearing of old rounds; the next write clears up."""
    script = Path(__file__).parent / "killed_store.py"
    assert subprocess.run([sys.executable, str(script), str(tmp_path), when]).returncode == -9
    folder, store = tmp_path / FOLDER, SiteStore(tmp_path)
    assert rounds_in(folder) == rounds
    assert bool(list(folder.glob(".*.partial"))) == (when == "before")
    for round in rounds:
        assert store.read(KEY, round)["model/w"].tolist() == [float(round)] * 4
    store.write(KEY, 3, _state(), keep=(1,))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "1.safetensors", "3.safetensors", "about.json"]


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    """The second is refused while the first lives, may read and write elsewhere, and is let in afterwards."""
    store = SiteStore(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"written\n"
        with pytest.raises(
            ConfigError, match=rf"another process \(process {first.pid} on .*\) holds this private state"
        ):
            store.write(KEY, 2, _state(2), keep=())
        with pytest.raises(ConfigError, match=f"process {first.pid}"):
            drop(tmp_path, list_held(tmp_path)[0])
        assert store.read(KEY, 1)["model/w"].tolist() == [1.0]
        store.write(StateKey("study", "other", "NYU", "a" * 64), 1, _state(), keep=())
        first.communicate()
    store.write(KEY, 2, _state(2), keep=())
    assert rounds_in(tmp_path / FOLDER) == (2,)


def test_one_process_may_open_a_run_twice(tmp_path: Path) -> None:
    """A site that is rebuilt does not wait for the old one to be cleared away."""
    old, new = SiteStore(tmp_path), SiteStore(tmp_path)
    old.write(KEY, 1, _state(), keep=())
    new.write(KEY, 2, _state(), keep=(1,))
    with pytest.raises(ConfigError, match="in use by this process"):
        drop(tmp_path, list_held(tmp_path)[0])
    old.close()
    new.write(KEY, 3, _state(), keep=(1,))
    assert rounds_in(tmp_path / FOLDER) == (1, 3)


def test_what_is_held_is_listed_and_dropped(tmp_path: Path) -> None:
    """Sizes and times come from the files, so that damage does not hide a run; empty folders go, the root stays."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    store.write(StateKey("early", "r", "NYU", "c" * 64), 4, _state(), keep=())
    store.close()
    (tmp_path / FOLDER / "about.json").write_text("{")
    early, late = list_held(tmp_path)
    assert (early.study, early.run, early.site, early.network, early.rounds) == ("early", "r", "NYU", "c" * 12, (4,))
    assert late.size == (tmp_path / FOLDER / "1.safetensors").stat().st_size
    assert late.written is not None
    with pytest.raises(DataError, match="about.json: cannot be read .* the next round writes it anew"):
        read_about(late.folder)
    drop(tmp_path, late)
    assert [path.name for path in tmp_path.iterdir()] == ["early"]
    drop(tmp_path, early)
    assert list_held(tmp_path) == []
    (tmp_path / "somebodys" / "own" / "photos" / "2020").mkdir(parents=True)  # --state names the wrong folder
    assert list_held(tmp_path) == []
    with pytest.raises(DataError, match="no such folder"):
        list_held(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change", [{"versions": None}, {"versions": [1]}, {"entries": [["a", "b"]]}, {"network": 3}, "[" * 100_000]
)
def test_an_about_that_was_edited_is_named(change: Any, tmp_path: Path) -> None:
    """Before anything of it is used."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    path = tmp_path / FOLDER / "about.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match="about.json: cannot be read"):
        read_about(path.parent)


def test_a_round_that_is_a_folder_or_a_dead_link_is_not_there(tmp_path: Path) -> None:
    """The others are listed and can be dropped."""
    store = SiteStore(tmp_path)
    store.write(KEY, 1, _state(), keep=())
    store.close()
    (tmp_path / FOLDER / "2.safetensors").mkdir()
    (tmp_path / FOLDER / "3.safetensors").symlink_to(tmp_path / "nowhere")
    (held,) = list_held(tmp_path)
    assert held.rounds == (1,)
    drop(tmp_path, held)
    assert list(tmp_path.iterdir()) == []
