"""The commands `fedskew images prepare | layouts`."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from small_images import gradient, picture

from monai_fedskew.cli.images import images
from monai_fedskew.cli.main import main
from monai_fedskew.data.datalist import site_datalist
from monai_fedskew.data.images import ImageDataset
from monai_fedskew.data.manifest import read_manifest


def run(*words: object) -> Result:
    """Call a subcommand."""
    return CliRunner().invoke(images, [str(word) for word in words])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two sites, two classes, two pictures each."""
    for seed in range(8):
        site, label, k = "AB"[seed // 4], ("cat", "dog")[seed // 2 % 2], seed % 2
        picture(tmp_path / "data" / site / label / f"{k}.png", gradient(seed=seed))
    return tmp_path / "data"


def test_prepare_prints_what_images_look_like(data: Path, tmp_path: Path) -> None:
    """Tables of counts and looks, what was left alone, warnings, seconds and memory; no columns of splits if none."""
    (data / "A" / "readme.md").write_text("")
    picture(data / "B" / "dog" / "1.png", np.zeros((6, 8), np.uint8))
    result = run("prepare", data, "--out", tmp_path / "out", "--size", "4x4")
    assert result.exit_code == 0, result.output
    row = next(line.split() for line in result.output.splitlines() if line.split()[:1] == ["all"])
    assert row == ["all", "8", "8", "0"]
    for text in (
        "prepare: 8 of 8 B",
        "6x8",
        "files left alone: 1 .md",
        "WARNING: site B: ",
        "layout folders; labels cat",
    ):
        assert text in result.output
    assert "train" not in result.output
    assert "rows of 1x4x4" in result.output


def test_options_reach_the_manifest(data: Path, tmp_path: Path) -> None:
    """Every option that changes what is written is in the notes."""
    table = data / "list.csv"
    lines = [
        f"{path.relative_to(data)},{'test' if path.stem == '1' else 'train'}" for path in sorted(data.rglob("*.png"))
    ]
    table.write_text("\n".join(["path,split", *lines]))
    words = "--site A --classes cat,dog --label-names dog,cat --size 3x5 --channels 3 --range -1,1 --skip-unreadable"
    words += rf" --subject-pattern /(\d) --threads 2 --splits {table}"
    result = run("prepare", data, "--out", tmp_path / "out", *words.split())
    assert result.exit_code == 0, result.output
    site = read_manifest(tmp_path / "out" / "A")
    assert (site.shape, site.label_names) == ((3, 3, 5), ("dog", "cat"))
    notes = {key: value for key, value in site.notes.items() if not key.startswith(("images", "prepared"))}
    assert notes == {
        "layout": "folders",
        "splits": "list.csv",
        "classes": "cat, dog",
        "subject pattern": r"/(\d)",
        "size": "3x5",
        "channels": "3",
        "range": "-1,1",
        "unreadable": "left out",
    }
    assert re.search(r"A +4 +2 +2 +0 +2 +0", result.output)


def test_a_table_of_labels(data: Path, tmp_path: Path) -> None:
    """--labels says where images belong; --splits none deals folds in spite of its column split."""
    table = data / "t.csv"
    lines = [f"{path.relative_to(data)},{path.parent.name},train" for path in sorted(data.rglob("*.png"))]
    table.write_text("\n".join(["image,label,split", *lines]))
    result = run("prepare", data, "--out", tmp_path / "out", "--labels", table, "--splits", "none")
    assert result.exit_code == 0, result.output
    site = read_manifest(tmp_path / "out" / "A")
    assert (site.store, site.subjects[0].split, site.notes["labels"]) == ("files", "", "t.csv")
    assert site.subjects[0].files == ("../../data/A/cat/0.png",)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--size 64", "'64' is no size; give HxW such as 64x64"),
        ("--range 1", "'1' is no range; give two numbers such as 0,1"),
        ("--layout pictures", "layout 'pictures' is unknown; give auto or one of"),
        ("--splits absent.csv", "'absent.csv' does not exist"),
    ],
)
def test_wrong_calls_end_in_one_line(
    words: str, text: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the option, what to give; nothing is written."""
    with pytest.raises(SystemExit, match="^2$"):
        main(["images", "prepare", str(data), "--out", str(tmp_path / "out"), *words.split()])
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_layouts_are_listed_in_the_order_they_are_tried() -> None:
    """One line each, with the name that --layout takes."""
    result = run("layouts")
    names = [line.split()[0] for line in result.output.splitlines() if not line.startswith(" ")]
    assert names[0] == "office_caltech10"
    assert names[-1] == "folders"
    assert {"domainnet", "digits_five", "prostate_mri", "camelyon17", "decathlon"} <= set(names)


def test_help_and_prepare_load_little(data: Path, tmp_path: Path) -> None:
    """Help comes without numpy and pandas; preparing needs neither torch nor MONAI."""
    code = (
        "import sys; from click.testing import CliRunner; from monai_fedskew.cli.images import images\n"
        "result = CliRunner().invoke(images, ['prepare', '--help']); print(result.output)\n"
        "assert not {'numpy', 'pandas', 'torch', 'PIL'} & set(sys.modules)\n"
        f"words = ['prepare', {str(data)!r}, '--out', {str(tmp_path / 'out')!r}, '--size', '4x4']\n"
        "result = CliRunner().invoke(images, words); assert result.exit_code == 0, result.output\n"
        "assert not {'torch', 'monai'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for option in (
        "--layout",
        "--labels",
        "--splits",
        "--binary-masks",
        "--copy",
        "--skip-unreadable",
        "--subject-pattern",
    ):
        assert option in result.stdout


def test_office_with_the_published_list(testdata: Path, tmp_path: Path) -> None:
    """Real images: the list of FedBN as it is; 125 train and 32 test of dslr, ten classes, every value in 0..1."""
    root = testdata / "office_caltech10"
    if not root.is_dir():
        pytest.skip(f"real data not found: {root}")
    words = ["--out", tmp_path / "out", "--site", "dslr", "--size", "16x16", "--splits", root / "splits_fedbn.csv"]
    result = run("prepare", root, *words)
    assert result.exit_code == 0, result.output
    site = read_manifest(tmp_path / "out" / "dslr")
    assert (len(site.label_names), site.shape, site.notes["layout"]) == (10, (3, 16, 16), "office_caltech10")
    splits = {name: ImageDataset(tmp_path / "out" / "dslr", name) for name in ("train", "validation", "test")}
    assert len(splits["test"]) == 32
    assert len(splits["train"]) + len(splits["validation"]) == 125
    first = Image.open(root / "images" / "dslr" / f"{site.subjects[0].id}.jpg").resize(
        (16, 16), Image.Resampling.BILINEAR
    )
    stored = np.load(tmp_path / "out" / "dslr" / "vectors.npy")
    assert np.allclose(stored[0].reshape(3, 16, 16), np.moveaxis(np.asarray(first), -1, 0) / 255, atol=1e-6)
    assert 0 <= stored.min() < stored.max() <= 1


def test_nuclei_with_masks_of_objects(testdata: Path, tmp_path: Path) -> None:
    """Real microscopes: object numbers become nucleus, images stay in place, two kinds of sizes and channels."""
    root = testdata / "dsb2018_nuclei"
    if not root.is_dir():
        pytest.skip(f"real data not found: {root}")
    words = ["--site", "brightfield_1024", "--site", "histology_256x320", "--binary-masks"]
    result = run("prepare", root, "--out", tmp_path / "out", *words, "--label-names", "background,nucleus")
    assert result.exit_code == 0, result.output
    site = read_manifest(tmp_path / "out" / "histology_256x320")
    assert (site.shape, site.label_names, len(site.subjects)) == ((3, 256, 320), ("background", "nucleus"), 40)
    entry = site_datalist(tmp_path / "out" / "brightfield_1024", "test")[0]
    mask = np.asarray(Image.open(entry["label"]))
    assert Path(entry["image"]).parent == root / "brightfield_1024" / "images"
    assert set(np.unique(mask)) == {0, 1}
    assert mask.shape == (512, 512)
