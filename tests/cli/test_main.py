"""The command line as a whole: help at once, errors in one line with the right exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from monai_fedskew.cli.main import fedskew, main


def _fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    """`--help` of the group and of simulate import neither torch, monai nor pandas."""
    code = (
        "import sys; from monai_fedskew.cli.main import main\n"
        "for call in (['--help'], ['simulate', '--help'], ['compare', '--help'], ['abide', 'prepare', '--help'],\n"
        "             ['bundle', 'new', '--help'], ['report', '--help'], ['methods', '--help'], ['demo', '--help']):\n"
        "    main(call)\n"
        "print([name for name in ('torch', 'monai', 'pandas', 'nilearn', 'matplotlib') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("demo", "methods", "abide", "bundle", "simulate", "compare", "report"):
        assert f"\n  {name} " in out
    assert out.rstrip().endswith("[]")


def test_every_command_can_be_listed_and_loaded() -> None:
    """The table of commands and their modules agree."""
    import click

    context = click.Context(fedskew)
    for name in fedskew.list_commands(context):
        command = fedskew.get_command(context, name)
        assert command is not None
        assert command.help


def test_an_unknown_command_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2."""
    assert "No such command 'simulat'" in _fails(capsys, 2, "simulat")


def test_an_unknown_method_names_the_known_ones(
    capsys: pytest.CaptureFixture[str], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Exit 2, a suggestion, and nothing written."""
    out = tmp_path / "run"
    call = ["simulate", str(tiny_bundle), "--data", str(study), "--rounds", "1", "--out", str(out), "--method"]
    assert "unknown method 'fedbm'; did you mean fedbn?" in _fails(capsys, 2, *call, "fedbm")
    assert "method fedprox: unknown parameter 'nu'; it takes mu" in _fails(capsys, 2, *call, "fedprox:nu=1")
    assert "fedprox" in _fails(capsys, 2, *call, "fedprox:mu=-1")
    assert "method fedprox: mu='abc' must be a number" in _fails(capsys, 2, *call, "fedprox:mu=abc")
    assert "both take the stage" in _fails(capsys, 2, *call, "fedrdn+sitenorm")
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--site", "E"], "no site 'E'; prepared there: A, B, C, D"),
        (["--set", "learning_rate=1"], "--set learning_rate: no such id in train.yaml"),
        (["--set", "lr"], "--set lr: must be ID=VALUE"),
        (["--set", "lr=$print(1)"], "expressions are not taken"),
        (["--min-sites", "9"], "min_sites=9, but there are 4 sites"),
        (["--set", "norm=$torch.nn.Identity()"], "expressions are not taken"),
    ],
)
def test_wrong_options_name_the_option_and_the_value(
    more: list[str], says: str, capsys: pytest.CaptureFixture[str], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Exit 2 and one line."""
    call = ["simulate", str(tiny_bundle), "--data", str(study), "--method", "fedbn", "--rounds", "1"]
    assert says in _fails(capsys, 2, *call, *more, "--out", str(tmp_path / "run"))


def test_a_bundle_without_batch_norm_refuses_fedbn(
    capsys: pytest.CaptureFixture[str], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Exit 2; the text names the network class and what to change (case 02)."""
    import shutil

    bundle = tmp_path / "plain_bundle"
    shutil.copytree(tiny_bundle, bundle)
    config = bundle / "configs" / "train.yaml"
    config.write_text(config.read_text().replace("$torch.nn.BatchNorm1d(6)", "$torch.nn.Identity()"))
    call = ["simulate", str(bundle), "--data", str(study), "--rounds", "1", "--out", str(tmp_path / "run")]
    error = _fails(capsys, 2, *call, "--method", "fedbn")
    assert "no BatchNorm entries in Sequential" in error
    assert "norm='batch'" in error


def test_an_existing_output_folder_is_left_alone(
    capsys: pytest.CaptureFixture[str], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """Without --force exit 2; with it only what is a RUN folder is replaced."""
    (tmp_path / "letters.txt").write_text("mine")
    call = ["simulate", str(tiny_bundle), "--data", str(study), "--method", "fedbn", "--rounds", "1"]
    assert "exists; choose another folder" in _fails(capsys, 2, *call, "--out", str(tmp_path))
    assert "is no RUN folder" in _fails(capsys, 2, *call, "--out", str(tmp_path), "--force")
    assert (tmp_path / "letters.txt").read_text() == "mine"


def test_a_folder_without_sites_is_an_error(
    capsys: pytest.CaptureFixture[str], tiny_bundle: Path, tmp_path: Path
) -> None:
    """Exit 1, naming the folder and the command that makes one."""
    call = ["simulate", str(tiny_bundle), "--method", "fedbn", "--rounds", "1", "--out", str(tmp_path / "run")]
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in _fails(capsys, 1, *call, "--data", str(tmp_path / "empty"))


def test_a_manifest_edited_by_hand_is_refused(
    capsys: pytest.CaptureFixture[str], study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """A label changed in manifest.json is found before anything runs."""
    import shutil

    shutil.copytree(study, tmp_path / "data")
    manifest = tmp_path / "data" / "B" / "manifest.json"
    text = manifest.read_text()
    assert '"label": 1' in text
    manifest.write_text(text.replace('"label": 1', '"label": 0', 1))
    call = ["simulate", str(tiny_bundle), "--method", "fedbn", "--rounds", "1", "--out", str(tmp_path / "run")]
    error = _fails(capsys, 1, *call, "--data", str(tmp_path / "data"))
    assert "manifest.json" in error
    assert "prepare" in error
    assert not (tmp_path / "run").exists()


def test_compare_needs_a_study_or_methods(capsys: pytest.CaptureFixture[str], study: Path, tmp_path: Path) -> None:
    """Exit 2 with both ways to say it; an unknown study lists the known ones."""
    call = ["compare", "abide_connectome", "--data", str(study), "--out", str(tmp_path / "out")]
    assert "give --study NAME, or --method M" in _fails(capsys, 2, *call)
    assert "its studies: demo, fedbn_table1" in _fails(capsys, 2, *call, "--study", "table2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [("nvflare", "nvflare job --study s --method fedavg --rounds 1 --out {out}", "nvflare")],
)
def test_a_missing_engine_names_its_extra(package: str, call: str, extra: str, tmp_path: Path) -> None:
    """Without the package a command says what to install, exit 2, and writes nothing."""
    code = f"import sys; sys.modules[{package!r}] = None; from monai_fedskew.cli.main import main; main(sys.argv[1:])"
    arguments = call.format(out=tmp_path / "out").split()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'monai-fedskew[{extra}]'" in done.stderr
    assert not (tmp_path / "out").exists()
