"""diagnose, from the command line to the files it leaves."""

import csv
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from monai_fedskew.cli.diagnose_models import draw_batches, objective_of, open_round
from monai_fedskew.cli.diagnose_output import Diagnosis, Picture, Sheet, publish
from monai_fedskew.cli.main import main
from monai_fedskew.data.synthetic import write_synthetic_study

FEATURES = 15
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prepared sites of 15 edges for the shipped bundle."""
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return write_synthetic_study(folder, sites=("EAST", "WEST"), subjects=16, windows=4, n_regions=6)


@pytest.fixture(scope="module")
def runs(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs of three methods, two rounds each."""
    found = {}
    for method in ("fedavg", "fedrdn+fedbn", "pooled"):
        found[method] = tmp_path_factory.mktemp("runs") / "run"
        call = ["simulate", "abide_connectome", "--data", str(prepared), "--method", method, "--rounds", "2"]
        call += ["--set", f"in_features={FEATURES}", "--set", "batch_size=16", "--set", "lr=0.1"]
        main([*call, "--out", str(found[method])])
    return found


def _hessian(run: Path, out: Path, *more: str) -> dict[str, Any]:
    call = ["diagnose", "hessian", str(run), "--out", str(out), "--probes", "20", "--deflate", "3", *more]
    main(call)
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def _hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_hessian_of_a_run_leaves_table_numbers_figure_and_page(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg has a row for all sites together, and the run is left as it was."""
    before = _hashes(runs["fedavg"])

    found = _hessian(runs["fedavg"], tmp_path / "out")

    values, said = found["values"], capsys.readouterr().out
    assert set(values["sites"]) == {"EAST", "WEST", "all sites"}
    east, west, every = (values["sites"][name] for name in ("EAST", "WEST", "all sites"))
    assert every["examples"] == east["examples"] + west["examples"]
    weighed = (east["loss"] * east["examples"] + west["loss"] * west["examples"]) / every["examples"]
    assert every["loss"] == pytest.approx(weighed, rel=1e-5)
    assert values["H_N"] >= 0
    assert -1 <= values["H_D"] <= 1
    assert [(pair["site"], pair["other"]) for pair in values["pairs"]] == [("EAST", "WEST")]
    assert found["settings"]["round"] == 2
    assert "products with the Hessian" in said
    assert "H_N" in said
    assert "Note: " in said
    assert (tmp_path / "out" / "hessian.png").read_bytes().startswith(PNG)
    page = (tmp_path / "out" / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page
    assert _hashes(runs["fedavg"]) == before


def test_with_private_batch_norm_there_is_no_row_for_all_sites(runs: dict[str, Path], tmp_path: Path) -> None:
    """Each site has its own model; a note says so, and equal calls give equal numbers."""
    one, two = (_hessian(runs["fedrdn+fedbn"], tmp_path / name) for name in ("one", "two"))
    assert set(one["values"]["sites"]) == {"EAST", "WEST"}
    assert any("no row for all sites" in note for note in one["notes"])
    assert one["values"] == two["values"]


def test_forms_and_models_are_choices(runs: dict[str, Path], tmp_path: Path) -> None:
    """The official form has an entry a tensor; received FedAvg models on one set of data are one: H_D is near 1.

    Of H_N the pairs with itself take half away and add nothing.
    """
    run = runs["fedavg"]
    call = ("--clients", "received", "--form", "official", "--probes", "100")
    official = _hessian(run, tmp_path / "official", *call)["values"]
    assert official["H_D"] > 0.95
    pair = official["pairs"][0]
    assert official["H_N"] == pytest.approx(pair["H_N"] / 2)
    assert official["H_D"] == pytest.approx((pair["H_D"] + 1) / 2)
    only = _hessian(run, tmp_path / "only", "--only", "fc3", "--top", "1")["values"]
    assert only["sites"]["EAST"]["parameters"] == 16 * 2 + 2


def test_one_site_has_no_pairs(runs: dict[str, Path], tmp_path: Path) -> None:
    """The pooled baseline trains one site: eigenvalues and trace, and no H_N."""
    found = _hessian(runs["pooled"], tmp_path / "out")
    assert set(found["values"]["sites"]) == {"pooled"}
    assert "H_N" not in found["values"]


def test_landscape_of_a_run(runs: dict[str, Path], tmp_path: Path) -> None:
    """A grid of numbers and a figure for the chosen site; its middle is the model's own loss."""
    out = tmp_path / "out"
    main(["diagnose", "landscape", str(runs["fedavg"]), "--out", str(out), "--site", "EAST", "--points", "5"])
    rows = list(csv.DictReader((out / "landscape_EAST.csv").read_text().splitlines()))
    assert len(rows) == 25
    assert float(rows[12]["first"]) == float(rows[12]["second"]) == 0.0
    table = next(csv.DictReader((out / "sites.csv").read_text().splitlines()))
    assert float(rows[12]["loss"]) == float(table["loss in the middle"])
    assert [path.name for path in out.glob("*.png")] == ["landscape_EAST.png"]


@pytest.mark.parametrize("method", ["fedavg", "fedrdn+fedbn"])
def test_the_best_round_is_the_model_that_was_exported(runs: dict[str, Path], method: str) -> None:
    """Shared and private entries, bit for bit, and inputs are normalised as the exported site does."""
    models = open_round(runs[method], which="best")
    for name in ("EAST", "WEST"):
        client = models.client(name)
        exported = load_file(runs[method] / "sites" / name / "model.safetensors")
        held = client.site.model.state_dict()
        assert held.keys() == exported.keys()
        assert all(torch.equal(held[key], value) for key, value in exported.items())
        batches = draw_batches(client, 2)
        assert batches[0][0].shape == (32, FEATURES)
        again = draw_batches(client, 2)
        assert all(torch.equal(one, other) for one, other in zip(batches[0], again[0], strict=True))
        assert objective_of(client, batches, ()).size == sum(p.numel() for p in client.site.model.parameters())
        client.close()


def _fails(call: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match=f"^{code}$"):
        main(call)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_is_no_run_or_no_longer_there_is_told(
    runs: dict[str, Path], prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run.json, a run of an engine, moved or changed data, a wrong site or parameter: one line, nothing written."""
    out, run = tmp_path / "out", tmp_path / "run"
    call = ["diagnose", "hessian", str(run), "--out", str(out)]
    assert "no RUN folder (no run.json)" in _fails(call, 2, capsys)
    shutil.copytree(runs["fedavg"], run)
    about = json.loads((run / "run.json").read_text())

    def write(**changes: Any) -> None:
        (run / "run.json").write_text(json.dumps({**about, **changes}))

    write(engine="flower")
    assert "was run on flower; the data are at the sites" in _fails(call, 2, capsys)
    moved = {name: {**one, "data": f"/nowhere/{name}"} for name, one in about["sites"].items()}
    write(sites=moved)
    assert "site EAST: no prepared data in /nowhere/EAST; tell where" in _fails(call, 1, capsys)
    other = {name: {**one, "manifest_sha256": "0"} for name, one in about["sites"].items()}
    write(sites=other)
    assert "holds other data than the run had" in _fails([*call, "--data", str(prepared)], 1, capsys)
    write(bundle={**about["bundle"], "sha256": "0"})
    assert "its configuration was changed since the run" in _fails(call, 2, capsys)
    (run / "run.json").write_text("{}")
    assert "run.json: lacks the key 'bundle'; remove this run's folder and run it again" in _fails(call, 1, capsys)
    write()
    assert "--only conv: site EAST has no such parameter" in _fails([*call, "--only", "conv"], 2, capsys)
    call[1] = "landscape"
    assert "--site NORTH: the run has EAST, WEST" in _fails([*call, "--site", "NORTH"], 2, capsys)
    assert "must be odd" in _fails([*call, "--points", "4"], 2, capsys)
    shutil.rmtree(run / "rounds")
    assert "holds no round yet" in _fails(call, 2, capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"settings": 5}, "settings must be an object, seen '5'"),
        ({"settings": {"rounds": "x"}}, "settings are no settings of a run (rounds='x' must be a whole number"),
        ({"settings": {"round": 1}}, "settings are no settings of a run"),
        ({"method": 5}, "method must be a text, seen '5'"),
        ({"method": "fedwhat"}, "method is 'fedwhat' ("),
        ({"overrides": 7}, "overrides must be an object, seen '7'"),
        ({"sites": {}}, "sites must be an object with a site, seen '{}'"),
        ({"sites": {"EAST": 5}}, "sites.EAST must be an object, seen '5'"),
        ({"sites": {"../EAST": {}}}, "a key of sites is '../EAST': "),
        ({"bundle": {"path": 5, "name": "a", "sha256": "0"}}, "bundle.path must be a text, seen '5'"),
        ({"partition": 5}, "partition must be an object, seen '5'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_damaged_record_is_told_by_file_key_and_value(
    changes: dict[str, Any], told: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each, before anything is computed."""
    about = json.loads((runs["fedavg"] / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**about, **changes}))
    (tmp_path / "rounds").symlink_to(runs["fedavg"] / "rounds")
    error = _fails(["diagnose", "hessian", str(tmp_path), "--out", str(tmp_path / "out")], 1, capsys)
    assert f"{tmp_path / 'run.json'}: {told}" in error


@pytest.mark.parametrize("command", ["hessian", "landscape"])
def test_a_run_of_a_partition_is_refused(
    command: str, prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its clients are no prepared sites; the line names the partition that run.json records."""
    run = tmp_path / "run"
    call = ["simulate", "abide_connectome", "--data", str(prepared), "--method", "fedavg", "--rounds", "1"]
    call += ["--set", f"in_features={FEATURES}", "--partition", "homogeneous", "--clients", "2", "--choose", "last"]
    main([*call, "--out", str(run)])
    capsys.readouterr()
    error = _fails(["diagnose", command, str(run), "--out", str(tmp_path / "out")], 2, capsys)
    assert "its 2 clients hold rows dealt by --partition homogeneous" in error


@pytest.mark.parametrize("reach", ["inf", "nan", "1e300", "0"])
def test_a_reach_that_cannot_be_is_refused_before_any_work(
    reach: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even before RUN is read."""
    call = ["diagnose", "landscape", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--reach", reach]
    assert f"--reach={float(reach)} must be a number of at least 1e-06 and at most" in _fails(call, 2, capsys)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (["--scale", "inf", "1"], "scale=inf"),
        (["--noise", "nan"], "noise=nan"),
        (["--noise", "-1"], "noise=-1.0"),
        (["--w-true", "1e300"], "w_true=1e+300"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_toy_numbers_that_cannot_be_are_told(
    option: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the value, and nothing is left."""
    call = ["diagnose", "toy", "--samples", "4", "--out", str(tmp_path / "out"), *option]
    assert f"toy: {told} must be a number" in _fails(call, 2, capsys)
    assert not any(tmp_path.iterdir())


def test_out_inside_a_file_is_found_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However deep below the file; RUN is not looked at."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        error = _fails(["diagnose", "hessian", str(tmp_path / "none"), "--out", str(out)], 2, capsys)
        assert f"--out {out}: {tmp_path / 'file'} is a file" in error


def test_a_failure_to_write_leaves_nothing_beside_out(tmp_path: Path) -> None:
    """A figure that cannot be drawn: the half-written folder is cleared away."""

    class Broken:
        def savefig(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("no figure")

    figure: Any = Broken()
    sheets = [Sheet("one", "One", ("a",), [(1,)])]
    diagnosis = Diagnosis("T", "S", {}, {}, sheets, [Picture("p", figure, "P")])
    with pytest.raises(RuntimeError, match="no figure"):
        publish(diagnosis, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_moved_data_are_found_with_data(runs: dict[str, Path], prepared: Path, tmp_path: Path) -> None:
    """--data says where the prepared sites are now."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(runs["fedavg"], run)
    shutil.copytree(prepared, moved)
    about = json.loads((run / "run.json").read_text())
    for name, one in about["sites"].items():
        one["data"] = f"/nowhere/{name}"
    (run / "run.json").write_text(json.dumps(about))
    main(["diagnose", "landscape", str(run), "--data", str(moved), "--out", str(tmp_path / "o"), "--points", "3"])
    assert (tmp_path / "o" / "landscape_WEST.png").is_file()


def test_memory_that_is_not_there_is_told(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network too big for second derivatives: what to take less of."""

    def too_big(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("monai_fedskew.cli.diagnose_curvature.top_eigenpairs", too_big)
    error = _fails(["diagnose", "hessian", str(runs["fedavg"]), "--out", str(tmp_path / "o")], 2, capsys)
    assert "do not fit into memory; take fewer batches (--batches 1)" in error


def test_gram_and_overwriting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An older result is replaced with --force only, and nothing that is no result ever."""
    out = tmp_path / "out"
    call = ["diagnose", "gram", "--draws", "2", "--points", "10", "--out", str(out)]
    main(call)
    found = json.loads((out / "result.json").read_text())
    rows = found["values"]["draws"]
    assert len(rows) == 3
    assert all(row["of G*"] >= row["smallest of G"] - 1e-12 for row in rows)
    assert found["values"]["closed_form_deviation_in_standard_errors"]["largest"] < 5
    capsys.readouterr()

    assert "exists; choose another folder or replace it with --force" in _fails(call, 2, capsys)
    main([*call, "--force", "--seed", "1"])
    assert json.loads((out / "result.json").read_text())["settings"]["seed"] == 1
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "result.json").write_text("[]")
    error = _fails([*call[:-1], str(tmp_path / "mine"), "--force"], 2, capsys)
    assert "holds no result of `fedskew diagnose`; it is left alone" in error
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_toy_and_synthetic_leave_their_figures_and_say_what_does_not_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Small sizes: every file, and notes on terminal, page and in result.json."""
    main(["diagnose", "toy", "--samples", "20", "--out", str(tmp_path / "toy")])
    call = ["diagnose", "synthetic", "--samples", "4", "--shorten", "100", "--repeats", "2"]
    main([*call, "--out", str(tmp_path / "synthetic")])
    said = capsys.readouterr().out
    names = {path.name for folder in ("toy", "synthetic") for path in (tmp_path / folder).iterdir()}
    assert {"curves.png", "surface_raw.png", "surface_standardised.png", "synthetic.png", "ends.csv"} <= names
    for folder in ("toy", "synthetic"):
        notes = json.loads((tmp_path / folder / "result.json").read_text())["notes"]
        assert all(f"Note: {note}" in said for note in notes)
        assert "What does and does not follow" in (tmp_path / folder / "index.html").read_text()
