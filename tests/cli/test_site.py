"""`fedskew site`: a hospital's file, its checks and its private state, from the command line."""

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from monai_fedskew.cli.main import main
from monai_fedskew.core.private import StateKey
from monai_fedskew.sites.site_file import read_site_file
from monai_fedskew.sites.state_folder import list_held
from monai_fedskew.sites.store import SiteStore

HOLDER = (
    "import sys; from pathlib import Path; from monai_fedskew.sites.state_folder import take\n"
    "taken = take(Path(sys.argv[1])); print('taken', flush=True); sys.stdin.read()"
)


@pytest.fixture
def file(study: Path, tiny_bundle: Path, tmp_path: Path) -> Path:
    """A hospital's file as `fedskew site init` writes it, for data and a bundle of its own."""
    shutil.copytree(study / "A", tmp_path / "data" / "A")
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    path = tmp_path / "fedskew.json"
    call = ["site", "init", "--bundle", str(tmp_path / "bundle"), "--data", str(tmp_path / "data"), "--site", "A"]
    main([*call, "--set", "lr=0.01", "--out", str(path)])
    return path


@pytest.fixture
def kept(file: Path) -> Path:
    """The folder of state of that hospital, with two runs of one study and one of another."""
    store = SiteStore(file.parent / "state")
    for study, run, rounds in (("abide", "r1", (3, 4)), ("abide", "r2", (7,)), ("early", "r1", (1,))):
        for round in rounds:
            state = {"model/1.weight": torch.ones(6), "model/1.num_batches_tracked": torch.tensor(4)}
            store.write(StateKey(study, run, "A", "a" * 64), round, state, keep=(3,))
    store.close()
    return store.root


def _fails(capsys: pytest.CaptureFixture[str], call: list[str]) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(call)
    held = capsys.readouterr()
    return int(str(stopped.value.code)), held.out + held.err


def test_init_writes_what_reads_back(file: Path) -> None:
    """The folder of several sites is taken for the site's; data below the file are named relative to it."""
    held = read_site_file(file, "A")
    assert (held.data, held.state) == (file.parent / "data" / "A", file.parent / "state")
    assert dict(held.overrides) == {"lr": 0.01}
    content = json.loads(file.read_text())
    assert (content["data"], content["bundle"], content["output"]) == ("data/A", "bundle", "results")


def test_init_leaves_an_existing_file_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force is given; data that are not there are named."""
    call = ["site", "init", "--bundle", "abide_connectome", "--site", "A", "--out", str(file)]
    code, text = _fails(capsys, [*call, "--data", str(file.parent / "data")])
    assert (code, "exists; choose another file, or --force" in text) == (2, True)
    code, text = _fails(capsys, [*call, "--data", "nowhere", "--force"])
    assert (code, "no such folder" in text) == (1, True)
    main([*call, "--data", str(file.parent / "data"), "--force"])
    assert read_site_file(file).bundle.name == "abide_connectome"


def test_check_says_line_by_line_what_is_fine(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, data, name, bundle with the method, folders; and nothing is written."""
    before = sorted(file.parent.rglob("*"))
    main(["site", "check", str(file), "--method", "fedrdn+fedbn"])
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if "site file:" in line)
    assert [line.split()[0] for line in lines[start:-1]] == ["ok"] * 6
    assert "64 samples of 16 subjects, as prepared" in lines[start + 1]
    assert "fedrdn+fedbn fits its network" in lines[start + 3]
    assert lines[-1] == "ready"
    assert sorted(path for path in file.parent.rglob("*") if "__pycache__" not in str(path)) == before


def test_check_names_what_must_be_mended(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed data, a value the bundle cannot use, a folder that is in the way; exit code 1."""
    vectors = file.parent / "data" / "A" / "vectors.npy"
    np.save(vectors, np.load(vectors)[::-1])
    (file.parent / "in_the_way").write_text("")
    content = {**json.loads(file.read_text()), "overrides": {"norm": "$1"}, "output": "in_the_way/results"}
    file.write_text(json.dumps(content))
    code, text = _fails(capsys, ["site", "check", str(file)])
    assert code == 1
    assert "PROBLEM  data: site A" in text
    assert "PROBLEM  bundle: --set norm='$1': expressions are not taken here" in text
    assert "PROBLEM  output: " in text
    assert text.endswith("3 to mend\n")


def test_check_refuses_what_no_engine_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The baselines have no messages."""
    code, text = _fails(capsys, ["site", "check", str(file), "--method", "pooled"])
    assert (code, "PROBLEM  bundle: method pooled: a baseline without messages" in text) == (1, True)


def test_check_notices_settings_that_would_be_left_out(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bundle holds settings for A, but the engine knows the site as kit-1."""
    (file.parent / "bundle" / "configs" / "site_a.yaml").write_text("lr: 0.5\n")
    content = json.loads(file.read_text())
    del content["site"]
    file.write_text(json.dumps({**content, "prepared_as": "A"}))
    code, text = _fails(capsys, ["site", "check", str(file)])
    assert (code, "does not say which site this is" in text) == (2, True)
    code, text = _fails(capsys, ["site", "check", str(file), "--site", "kit-1"])
    assert code == 1
    assert "so site_a.yaml is not used; copy it to site_kit-1.yaml" in text


def test_list_is_a_table(file: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By --file or by --state alike."""
    capsys.readouterr()
    main(["site", "state", "list", "--file", str(file)])
    table = capsys.readouterr().out
    assert table.splitlines()[0].split("  ")[0] == "STUDY"
    assert [line.split()[:5] for line in table.splitlines()[1:]] == [
        ["abide", "A", "r1", "a" * 12, "3,"],
        ["abide", "A", "r2", "a" * 12, "7"],
        ["early", "A", "r1", "a" * 12, "1"],
    ]
    main(["site", "state", "list", "--state", str(kept)])
    assert capsys.readouterr().out == table


def test_nothing_yet_is_no_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A site that has not trained."""
    main(["site", "state", "list", "--file", str(file)])
    assert "nothing in" in capsys.readouterr().out


def test_show_names_entries_and_no_value(file: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Types and shapes, the whole hash, the rounds."""
    capsys.readouterr()
    main(["site", "state", "show", "abide", "--run", "r1", "--file", str(file)])
    text = capsys.readouterr().out
    assert "    model/1.weight               float32 (6,)\n    model/1.num_batches_tracked  int64 ()\n" in text
    assert "a" * 64 in text
    assert "rounds:  3, 4" in text
    code, text = _fails(capsys, ["site", "state", "show", "abide", "--run", "r9", "--file", str(file)])
    assert (code, "no private state of study abide, run r9; there is abide (run r1, site A), " in text) == (2, True)


def test_drop_asks_says_what_is_lost_and_deletes(
    file: Path, kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a yes nothing goes; --yes does not ask; other studies stay."""
    call = ["site", "state", "drop", "abide", "--file", str(file)]
    monkeypatch.setattr("click.confirm", lambda text: False)
    code, text = _fails(capsys, call)
    assert code == 1
    assert "cannot be made again" in text
    assert text.endswith("nothing was deleted\n")
    assert len(list_held(kept)) == 3
    main([*call, "--run", "r2", "--yes"])
    main([*call, "--yes"])
    assert [held.study for held in list_held(kept)] == ["early"]
    assert [path.name for path in kept.iterdir()] == ["early"]


def test_drop_is_refused_while_a_process_holds_any_of_it(
    file: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is deleted."""
    call = [sys.executable, "-c", HOLDER, str(kept / "abide" / "A" / ("a" * 12) / "r2")]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        code, text = _fails(capsys, ["site", "state", "drop", "abide", "--yes", "--file", str(file)])
        holder.communicate()
    assert (code, f"process {holder.pid} on" in text) == (2, True)
    assert len(list_held(kept)) == 3
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
