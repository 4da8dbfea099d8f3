import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import nibabel
import numpy as np
import pytest
from click.testing import CliRunner, Result

from monai_fedskew.cli.abide import abide
from monai_fedskew.cli.main import main
from monai_fedskew.data.abide.atlas import harvard_oxford
from monai_fedskew.data.abide.timeseries import write_series
from monai_fedskew.data.manifest import read_manifest, site_folders

QC = "qc_rater_1,qc_anat_rater_2,qc_func_rater_2,qc_anat_rater_3,qc_func_rater_3"


def run(*words: object) -> Result:
    """Call a subcommand."""
    return CliRunner().invoke(abide, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four samples; one scan of OHSU is shorter than a window."""
    folder = tmp_path / "data"
    folder.mkdir()
    labels = sorted([*(region.label for region in harvard_oxford()), "3455"], key=int)
    lines = [f"SUB_ID,SITE_ID,FILE_ID,DX_GROUP,{QC}"]
    for k, (sample, volumes) in enumerate(
        [("NYU", 40), ("NYU", 40), ("UM_1", 40), ("UM_2", 40), ("OHSU", 20)], start=1
    ):
        values = np.random.default_rng(k).standard_normal((volumes, 111))
        write_series(folder / f"{sample}_{k:07d}_rois_ho.1D", labels, values)
        lines.append(f"{k},{sample},{sample}_{k:07d},{1 + k % 2},OK,OK,OK,OK,OK")
    (folder / "pheno.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_prepare_prints_what_it_made_and_left_out(data: Path, tmp_path: Path) -> None:
    """The tables show sites, windows and reasons; the end says seconds and memory."""
    result = run("prepare", data, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert list(site_folders(tmp_path / "out")) == ["NYU", "UM_1", "UM_2"]
    for text in (
        "prepare: 5 of 5",
        "20 volumes, shorter than the window of 32",
        "1 scans shorter than the window: OHSU 0000005",
        "dropped label 3455",
        "110 regions, 5995 features",
        "seconds",
        "MiB",
    ):
        assert text in result.output
    row = next(line.split() for line in result.output.splitlines() if line.split()[:1] == ["NYU"])
    assert row == ["NYU", "2", "1", "1", "18", "0"]


def test_options_reach_the_manifest(data: Path, tmp_path: Path) -> None:
    """Every option of prepare is recorded."""
    words = "--site UM --merge-samples --window 30 --stride 5 --estimator ledoit-wolf --no-fisher-z --clip-negative"
    words += " --constant-roi zero --all-subjects --store series --threads 1"
    result = run("prepare", data, "--out", tmp_path / "out", *words.split())
    assert result.exit_code == 0, result.output
    site = read_manifest(tmp_path / "out" / "UM")
    assert (site.window, site.stride, site.estimator, site.store, site.n_rows) == (30, 5, "ledoit-wolf", "series", 6)
    assert site.notes == {
        "protocol": "none",
        "samples": "merged",
        "subjects": "all",
        "fisher_z": "no",
        "clip_negative": "yes",
        "constant_roi": "zero",
        "exclude": "dead-roi",
        "dropped label": "3455: two stray voxels, no region of the atlas",
        "prepared by": f"monai-fedskew {version('monai-fedskew')}",
    }


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["{data}", "--site", "UM"], 2, "UM_1 and UM_2"),
        (["{data}", "--site", "MIT"], 2, "site 'MIT' is unknown; known: NYU, OHSU, UM_1, UM_2"),
        (["{data}", "--window", "2"], 2, "window=2"),
        (["{data}", "--protocol", "fedbn"], 2, "needs the samples UCLA_1, USM"),
        (["{data}", "--site", "OHSU"], 1, "no subject is left of 1"),
        (["{data}", "--site", "NYU", "--site", "NYU"], 2, "site NYU is named 2 times"),
        (["{tmp}/nowhere"], 1, "does not exist"),
        (["{tmp}/empty"], 1, "empty: no phenotypic table"),
    ],
)
def test_a_wrong_call_ends_in_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    """Exit code 2 for a wrong call, 1 for input that cannot be used; one line that says which."""
    (tmp_path / "empty").mkdir()
    words = [word.format(data=data, tmp=tmp_path) for word in words]
    with pytest.raises(SystemExit, match=f"^{code}$"):
        main(["abide", "prepare", *words, "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def _cut(data: Path) -> None:
    path = data / "NYU_0000002_rois_ho.1D"
    path.write_bytes(path.read_bytes()[:-300])


def _relabel(data: Path) -> None:
    path = data / "NYU_0000002_rois_ho.1D"
    path.write_text(path.read_text().replace("#4802", "#4803", 1))


def _without_diagnosis(data: Path) -> None:
    path = data / "pheno.csv"
    path.write_text(path.read_text().replace("DX_GROUP", "GROUP"))


def _empty(data: Path) -> None:
    for path in data.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("harm", "words", "text"),
    [
        (_cut, [], r"NYU_0000002_rois_ho.1D, line 41: \d+ values where the header has 111 labels"),
        (_relabel, [], "NYU_0000002_rois_ho.1D, line 1: the header lacks label 4802"),
        (_without_diagnosis, [], "pheno.csv: column DX_GROUP is missing"),
        (
            lambda data: None,
            ["--window", "41"],
            "no subject is left of 5; first: 0000001: 40 volumes, shorter than the",
        ),
        (_empty, [], "data: no phenotypic table"),
    ],
    ids=["truncated", "label missing", "no DX_GROUP", "short scans", "empty folder"],
)
def test_input_that_cannot_be_used_ends_in_one_line(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    harm: Callable[[Path], None],
    words: list[str],
    text: str,
) -> None:
    """Exit code 1, one line with file and place, and nothing is written."""
    harm(data)
    with pytest.raises(SystemExit, match="^1$"):
        main(["abide", "prepare", str(data), "--out", str(tmp_path / "out"), *words])
    error = capsys.readouterr().err
    assert re.search(text, error), error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("command", ["fetch", "extract", "prepare"])
def test_an_empty_name_is_no_folder(command: str) -> None:
    """'' does not mean the current folder."""
    result = run(command, "")
    assert result.exit_code == 2
    assert "the name is empty; give a folder, or . for this one" in result.output


def test_an_empty_output_is_refused(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--out '' is a wrong call, also with --force."""
    with pytest.raises(SystemExit, match="^2$"):
        main(["abide", "prepare", str(data), "--out", "", "--force"])
    assert capsys.readouterr().err.strip()


def test_a_name_of_a_site_cannot_leave_the_output(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SITE_ID '../evil' ends in one line and writes nothing."""
    table = data / "pheno.csv"
    table.write_text(table.read_text().replace(",OHSU,", ",../evil,"))
    with pytest.raises(SystemExit, match="^1$"):
        main(["abide", "prepare", str(data), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert "pheno.csv, line 6: SITE_ID is '../evil'" in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_existing_folder_needs_force(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second call ends with exit code 2 and one line, and changes nothing; with --force it replaces the folder."""
    words = ["prepare", data, "--site", "NYU", "--out", tmp_path / "out"]
    assert run(*words).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.raises(SystemExit, match="^2$"):
        main(["abide", *(str(word) for word in words)])
    error = capsys.readouterr().err
    assert "out exists; choose another, or replace it with --force" in error
    assert error.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before
    assert run(*words, "--force").exit_code == 0


def test_help_loads_nothing_heavy() -> None:
    """Help of every command comes without numpy, pandas, torch or nilearn, and names the options."""
    code = (
        "import sys; from click.testing import CliRunner; from monai_fedskew.cli.abide import abide\n"
        "for name in ('fetch', 'extract', 'prepare'):\n"
        "    result = CliRunner().invoke(abide, [name, '--help']); assert result.exit_code == 0; print(result.output)\n"
        "assert not {'numpy', 'pandas', 'torch', 'nilearn'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for option in (
        "--url",
        "--atlas",
        "--labels",
        "--mask",
        "--merge-samples",
        "--store",
        "--exclude",
        "--all-subjects",
    ):
        assert option in result.stdout


def test_prepare_needs_no_torch(data: Path, tmp_path: Path) -> None:
    """The ABIDE path runs on numpy and pandas alone."""
    code = (
        "import sys; from click.testing import CliRunner; from monai_fedskew.cli.abide import abide\n"
        f"result = CliRunner().invoke(abide, ['prepare', {str(data)!r}, '--out', {str(tmp_path / 'out')!r}])\n"
        "assert result.exit_code == 0, result.output\n"
        "assert not {'torch', 'monai', 'nilearn'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_extract_names_flat_regions(tmp_path: Path) -> None:
    """Extract reports the region without signal, and writes what prepare reads."""
    (tmp_path / "scans").mkdir()
    signal = np.random.default_rng(0).standard_normal((4, 1, 1, 12)).astype(np.float32)
    signal[2] = 0
    nibabel.save(nibabel.Nifti1Image(signal, np.eye(4)), tmp_path / "scans" / "A_0000001.nii.gz")
    atlas = nibabel.Nifti1Image(np.array([1, 2, 3, 9], np.int16).reshape(4, 1, 1), np.eye(4))
    nibabel.save(atlas, tmp_path / "atlas.nii.gz")
    (tmp_path / "labels.csv").write_text("index,name\n1,a\n2,b\n3,c\n")
    words = ["--atlas", tmp_path / "atlas.nii.gz", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "out"]
    result = run("extract", tmp_path / "scans", *words)
    assert result.exit_code == 0, result.output
    assert "constant ROI 3 (no signal inside the field of view): A_0000001_rois_atlas.1D" in result.output
    assert "1 scans in" in result.output
    assert "left out 1 labels of the atlas that labels.csv does not name: 9" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["A_0000001_rois_atlas.1D", "regions.csv"]


def test_extract_of_broken_input_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An atlas that is no NIfTI file: exit code 1, one line with its name, nothing written."""
    (tmp_path / "scans").mkdir()
    signal = np.random.default_rng(0).standard_normal((4, 1, 1, 12)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(signal, np.eye(4)), tmp_path / "scans" / "A_0000001.nii.gz")
    (tmp_path / "atlas.nii.gz").write_text("no image")
    (tmp_path / "labels.csv").write_text("index,name\n1,a\n")
    words = ["--atlas", tmp_path / "atlas.nii.gz", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit, match="^1$"):
        main(["abide", "extract", str(tmp_path / "scans"), *map(str, words)])
    error = capsys.readouterr().err
    assert "atlas.nii.gz: cannot be read as NIfTI" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_fetch_fails_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a server the command ends with exit code 1 and says how to go on."""
    with pytest.raises(SystemExit, match="^1$"):
        main(["abide", "fetch", str(tmp_path), "--protocol", "fedbn", "--url", "http://127.0.0.1:9"])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "run the same command again" in error
