"""From folders of images to prepared sites."""

import json
from itertools import product
from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image
from small_images import gradient, nifti, picture, series

from monai_fedskew.data.datalist import site_datalist
from monai_fedskew.data.image_files import ImageFiles
from monai_fedskew.data.images import ImageDataset
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.prepare import Prepared, prepare_images
from monai_fedskew.data.integrity import verify_data
from monai_fedskew.data.manifest import SiteManifest, read_manifest, site_folders
from monai_fedskew.data.synthetic_volumes import write_prostate_volumes
from monai_fedskew.errors import ConfigError, DataError

ROWS = Options(size=(4, 4))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two sites, two classes, three pictures each; one in colours."""
    root = tmp_path / "data"
    for seed, (site, label, k) in enumerate(product("AB", ("cat", "dog"), range(3))):
        picture(root / site / label / f"{k}.png", gradient(seed=seed))
    return root


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Two sites of pictures with masks that number objects, sizes that differ, 3 pictures each."""
    root = tmp_path / "data"
    for site, width in (("A", 8), ("B", 11)):
        for k in range(3):
            picture(root / site / "images" / f"{k}.png", gradient(6, width + k, seed=k + width))
            mask = np.zeros((6, width + k), np.uint16)
            mask[1:3, 1:4], mask[4, 4:] = 700, 3
            picture(root / site / "labels" / f"{k}.png", mask)
    return root


def _manifest(out: Path, site: str = "A") -> SiteManifest:
    return read_manifest(out / site)


def _prepare(data: Path, out: Path, options: Options = ROWS, **more: bool) -> Prepared:
    return prepare_images(data, out, options, **more)


def test_rows_are_what_single_files_give(pictures: Path, tmp_path: Path) -> None:
    """A row of the array, its label and its id; `ImageFiles` gives the same numbers for the file alone."""
    _prepare(pictures, tmp_path / "out", Options(size=(4, 5), channels=3, value_range=(-1.0, 1.0)))
    assert list(site_folders(tmp_path / "out")) == ["A", "B"]
    site, data = _manifest(tmp_path / "out"), ImageDataset(tmp_path / "out" / "A", "all")
    assert (site.shape, site.label_names, site.store) == ((3, 4, 5), ("cat", "dog"), "vectors")
    assert [subject.id for subject in site.subjects] == ["cat/0", "cat/1", "cat/2", "dog/0", "dog/1", "dog/2"]
    files = [pictures / "A" / f"{subject.id}.png" for subject in site.subjects]
    single = ImageFiles(files, shape=site.shape, value_range=(-1, 1))
    for row, _ in enumerate(files):
        assert np.array_equal(data[row]["image"], single[row]["image"])
        assert int(data[row]["label"]) == row // 3
    values = np.load(tmp_path / "out" / "A" / "vectors.npy")
    assert site.summary["mean"] == pytest.approx(values.mean(), abs=1e-6)
    assert site.summary["std"] == pytest.approx(values.std(), abs=1e-6)
    verify_data(tmp_path / "out" / "A", site)


def test_the_manifest_tells_where_from_and_how(pictures: Path, tmp_path: Path) -> None:
    """SHA-256 of each source, the options in words, what images look like; the same in prepare.json."""
    _prepare(pictures, tmp_path / "out")
    site = _manifest(tmp_path / "out")
    assert list(site.sources) == [f"A/{subject.id}.png" for subject in site.subjects]
    assert {len(digest) for digest in site.sources.values()} == {64}
    assert site.notes["layout"] == "folders"
    assert (site.notes["size"], site.notes["range"], site.notes["images: size"]) == ("4x4", "0,1", "6x8")
    report = json.loads((tmp_path / "out" / "prepare.json").read_text())
    assert report["sites"]["A"] == {"images": 6, "subjects": 6, "train": 0, "validation": 0, "test": 0, "excluded": 0}
    assert report["summary"]["A"]["channels"] == "1"
    assert report["options"]["size"] == [4, 4]


def test_threads_change_nothing(pictures: Path, tmp_path: Path) -> None:
    """Byte for byte."""
    for threads in (1, 3):
        prepare_images(pictures, tmp_path / str(threads), ROWS, threads=threads)
    for name in ("A/vectors.npy", "A/manifest.json", "prepare.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes()


def test_a_given_list_is_the_split_and_the_rest_is_left_out(pictures: Path, tmp_path: Path) -> None:
    """The published train and test, whatever the fold; images that are not listed are counted with the reason."""
    lines = [f"A/{c}/{k}.png,{'test' if k == 2 else 'train'}" for c in ("cat", "dog") for k in range(3)]
    table = tmp_path / "splits.csv"
    table.write_text("\n".join(["path,split", *lines, "B/cat/0.png,train", "B/dog/0.png,test"]) + "\n")
    _prepare(pictures, tmp_path / "out", Options(size=(4, 4), splits=table))
    for fold in (0, 3):
        test = ImageDataset(tmp_path / "out" / "A", "test", fold=fold, validation_fraction=0)
        assert test.subject_ids.tolist() == ["cat/2", "dog/2"]
    left_out = _manifest(tmp_path / "out", "B").excluded
    assert [item.id for item in left_out] == ["cat/1", "cat/2", "dog/1", "dog/2"]
    assert {item.reason for item in left_out} == {"not in the list of splits"}
    assert "B,cat/1,not in the list of splits" in (tmp_path / "out" / "excluded.csv").read_text()


def test_no_split_cuts_a_subject(pictures: Path, tmp_path: Path) -> None:
    """The pattern's group is the subject; a given list that cuts one is refused with both images."""
    _prepare(pictures, tmp_path / "out", Options(size=(4, 4), subject_pattern=r"/(\d)"))
    assert [subject.group for subject in _manifest(tmp_path / "out").subjects] == ["0", "1", "2", "0", "1", "2"]
    table = tmp_path / "splits.csv"
    table.write_text("path,split\nA/cat/0.png,train\nA/dog/0.png,test\n")
    with pytest.raises(DataError, match="site A: subject '0' is in train with cat/0 and in test with dog/0"):
        _prepare(pictures, tmp_path / "two", Options(size=(4, 4), subject_pattern=r"/(\d)", splits=table))
    with pytest.raises(ConfigError, match=r"--subject-pattern 'p\(x\)' fits nothing in 'cat/0' of site A"):
        _prepare(pictures, tmp_path / "two", Options(subject_pattern="p(x)"))


def test_sites_and_classes_are_chosen(pictures: Path, tmp_path: Path) -> None:
    """Only these; an unknown one lists what there is."""
    _prepare(pictures, tmp_path / "out", Options(size=(4, 4), sites=("B",), classes=("dog",)))
    assert list(site_folders(tmp_path / "out")) == ["B"]
    assert _manifest(tmp_path / "out", "B").label_names == ("dog",)
    with pytest.raises(ConfigError, match="--site C is none of these: A, B"):
        _prepare(pictures, tmp_path / "two", Options(sites=("C",)))
    with pytest.raises(ConfigError, match="--classes cow is none of these: cat, dog"):
        _prepare(pictures, tmp_path / "two", Options(classes=("cow",)))


def test_names_of_labels_are_those_of_all_sites(pictures: Path, tmp_path: Path) -> None:
    """A site that lacks a class keeps its number and is warned of; stated names give the order and must be complete."""
    for path in (pictures / "B" / "cat").iterdir():
        path.unlink()
    done = _prepare(pictures, tmp_path / "out")
    assert _manifest(tmp_path / "out", "B").labels.tolist() == [1, 1, 1]
    assert "site B: no image of cat" in done.warnings
    _prepare(pictures, tmp_path / "two", Options(size=(4, 4), label_names=("dog", "cat")))
    assert _manifest(tmp_path / "two", "B").labels.tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="site [AB]: class 'dog' is none of the label names cat"):
        _prepare(pictures, tmp_path / "three", Options(size=(4, 4), label_names=("cat",)))


def test_a_damaged_image_ends_the_call_and_leaves_nothing(pictures: Path, tmp_path: Path) -> None:
    """Site and file in one error; with the option it is left out and listed."""
    bad = pictures / "B" / "dog" / "1.png"
    bad.write_bytes(bad.read_bytes()[:60])
    with pytest.raises(DataError, match=rf"site B: {bad} cannot be read"):
        _prepare(pictures, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    _prepare(pictures, tmp_path / "out", Options(size=(4, 4), skips_unreadable=True))
    (left_out,) = _manifest(tmp_path / "out", "B").excluded
    assert left_out.id == "dog/1"
    assert "cannot be read" in left_out.reason


def test_what_somebody_should_look_at_is_said(pictures: Path, tmp_path: Path) -> None:
    """Copies, constant images, files that are no images."""
    (pictures / "A" / "cat" / "0.png").write_bytes((pictures / "B" / "dog" / "0.png").read_bytes())
    picture(pictures / "A" / "cat" / "1.png", np.full((6, 8), 9, np.uint8))
    (pictures / "A" / "notes.txt").write_text("")
    done = _prepare(pictures, tmp_path / "out")
    assert f"site A: {pictures / 'A' / 'cat' / '1.png'} is the same value everywhere" in done.warnings
    assert any(
        "site B: 1 images are copies of others, byte for byte, 1 of them across" in text for text in done.warnings
    )
    assert done.ignored == {".txt": 1}


def test_rows_need_one_shape(pictures: Path, tmp_path: Path) -> None:
    """Colours beside grey, sizes that differ: the first that differs is named, and the option that helps."""
    picture(pictures / "B" / "cat" / "0.png", np.repeat(gradient()[..., None], 3, axis=2))
    with pytest.raises(DataError, match=r"site B: .*0\.png is 3x4x4 .* before it are 1x4x4; .* --size and --channels"):
        _prepare(pictures, tmp_path / "out")
    _prepare(pictures, tmp_path / "out", Options(size=(4, 4), channels=1))


def test_an_existing_folder_is_replaced_only_with_force(pictures: Path, tmp_path: Path) -> None:
    """And never one that is no earlier output, nor one among the images."""
    _prepare(pictures, tmp_path / "out")
    with pytest.raises(ConfigError, match="out exists; choose another, or replace it with --force"):
        _prepare(pictures, tmp_path / "out")
    _prepare(pictures, tmp_path / "out", Options(size=(3, 3)), force=True)
    assert _manifest(tmp_path / "out").shape == (1, 3, 3)
    with pytest.raises(ConfigError, match="would lie among the images"):
        _prepare(pictures, pictures / "A" / "out")
    with pytest.raises(ConfigError, match=r"no earlier output \(no prepare.json in it\)"):
        _prepare(pictures, pictures, force=True)


def test_masks_that_number_objects_become_one_label(cells: Path, tmp_path: Path) -> None:
    """Without the option an error says so; with it the masks are written anew as 0 and 1, images stay in place."""
    with pytest.raises(DataError, match="has values up to 700; .* --binary-masks"):
        _prepare(cells, tmp_path / "out", Options())
    options = Options(binary_masks=True, label_names=("background", "nucleus"))
    _prepare(cells, tmp_path / "out", options)
    site = _manifest(tmp_path / "out")
    assert (site.store, site.label_names, site.shape) == ("files", ("background", "nucleus"), (1, 6, 9))
    assert site.subjects[0].files == ("../../data/A/images/0.png",)
    assert site.subjects[0].mask == "masks/0.png"
    stored = np.asarray(Image.open(cells / "A" / "labels" / "0.png"))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "A" / "masks" / "0.png")), stored > 0)
    verify_data(tmp_path / "out" / "A", site)
    entries = site_datalist(tmp_path / "out" / "A", "all")
    assert all(Path(entry[key]).is_file() for entry in entries for key in ("image", "label"))


def test_a_study_and_its_images_move_together(cells: Path, tmp_path: Path) -> None:
    """Paths are relative below the folder that holds OUT; elsewhere absolute, or copied."""
    options = Options(binary_masks=True)
    (tmp_path / "study").mkdir()
    cells.rename(tmp_path / "study" / "data")
    _prepare(tmp_path / "study" / "data", tmp_path / "study" / "out", options)
    _prepare(tmp_path / "study" / "data", tmp_path / "far" / "out", options)
    _prepare(tmp_path / "study" / "data", tmp_path / "own" / "out", Options(binary_masks=True, has_copies=True))
    assert Path(_manifest(tmp_path / "far" / "out").subjects[0].files[0]).is_absolute()
    (tmp_path / "study").rename(tmp_path / "moved")
    assert len(site_datalist(tmp_path / "moved" / "out" / "A", "all")) == 3
    assert _manifest(tmp_path / "own" / "out").subjects[0].files == ("images/0.png",)
    with pytest.raises(DataError, match=r"0\.png of image '0' does not exist"):
        site_datalist(tmp_path / "far" / "out" / "A", "all")


def test_values_of_masks_need_names(cells: Path, tmp_path: Path) -> None:
    """Few values are numbered; names that end too early name the image and the value."""
    for path in cells.glob("*/labels/*.png"):
        picture(path, np.asarray(Image.open(path)).clip(0, 4))
    _prepare(cells, tmp_path / "out", Options())
    names = ("background", "label 1", "label 2", "label 3", "label 4")
    assert _manifest(tmp_path / "out").label_names == names
    assert _manifest(tmp_path / "out").subjects[0].mask == "../../data/A/labels/0.png"
    with pytest.raises(DataError, match=r"site B: the mask of 2 has value 4, the label names end at 1 \(cell\)"):
        _prepare(cells, tmp_path / "two", Options(label_names=("background", "cell")))
    with pytest.raises(ConfigError, match="--size is for classification"):
        _prepare(cells, tmp_path / "two")


def test_prostate_volumes_end_to_end(tmp_path: Path) -> None:
    """Six hospitals differ in orientation, spacing and intensity, and the summary says so; nothing is copied."""
    write_prostate_volumes(tmp_path / "data", sites=("BIDMC", "UCL"), cases=2, coarseness=8)
    done = _prepare(tmp_path / "data", tmp_path / "out", Options())
    assert done.layout == "prostate_mri"
    assert (done.surveys["BIDMC"]["orientation"], done.surveys["UCL"]["orientation"]) == ("LPS 2", "RSA 2")
    assert done.surveys["BIDMC"]["spacing mm"] == "4x4x3"
    assert done.manifests[0].label_names == ("background", "prostate")
    assert done.manifests[0].summary["mean"] > 5 * done.manifests[1].summary["mean"]
    assert not list((tmp_path / "out").rglob("*.nii.gz"))
    assert not done.warnings


def test_images_that_are_normalised_already_are_warned_of(tmp_path: Path) -> None:
    """Statistics of sites would find nothing."""
    for k in range(2):
        values = np.random.default_rng(k).normal(size=(20, 20, 20)).astype(np.float32)
        nifti(tmp_path / "data" / "A" / "x" / f"{k}.nii.gz", values)
    done = _prepare(tmp_path / "data", tmp_path / "out", Options())
    assert any(
        text.startswith("site A: 2 of 2 images have mean 0 and standard deviation 1 already") for text in done.warnings
    )


def test_pictures_and_volumes_do_not_mix(tmp_path: Path) -> None:
    """One site, one number of axes."""
    picture(tmp_path / "data" / "A" / "x" / "0.png", gradient())
    nifti(tmp_path / "data" / "A" / "x" / "1.nii.gz", np.arange(27.0).reshape(3, 3, 3))
    with pytest.raises(DataError, match=r"site A: .*1\.nii\.gz has 3 spatial axes, images before it 2"):
        _prepare(tmp_path / "data", tmp_path / "out", Options())


def test_a_dicom_series_becomes_nifti_in_the_site(tmp_path: Path) -> None:
    """A folder below the class is one image; its NIfTI lies in the site's folder. As rows it is read as it is."""
    pytest.importorskip("pydicom", reason="the extra dicom is not installed")
    for k in range(2):
        series(tmp_path / "data" / "A" / "x" / f"scan{k}", np.arange(24).reshape(3, 4, 2) + k)
    _prepare(tmp_path / "data", tmp_path / "out", Options())
    site = _manifest(tmp_path / "out")
    assert [subject.files for subject in site.subjects] == [("images/x/scan0.nii.gz",), ("images/x/scan1.nii.gz",)]
    assert site.shape == (1, 2, 4, 3)
    image = nibabel.load(tmp_path / "out" / "A" / "images" / "x" / "scan1.nii.gz")
    assert image.get_fdata()[0, 0].tolist() == [-998.0, -982.0, -966.0]
    verify_data(tmp_path / "out" / "A", site)
    _prepare(tmp_path / "data", tmp_path / "rows", Options(size=(2, 4, 3)))
    rows = ImageDataset(tmp_path / "rows" / "A", "all")
    turned = nibabel.as_closest_canonical(image).get_fdata()
    assert np.array_equal(rows[1]["image"][0], turned.astype(np.float32))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(size=(10**6, 10**6)), r"12 rows of 1 x 1000000 x 1000000 take 48000 GB, .* smaller --size"),
        (Options(value_range=(-1.0, 1.0)), "--range is for rows"),
        (Options(binary_masks=True), "these images have none"),
        (Options(layout="table"), "does not have the layout table"),
    ],
)
def test_options_that_the_images_do_not_allow(options: Options, text: str, pictures: Path, tmp_path: Path) -> None:
    """Known as soon as the images are found; nothing is written."""
    with pytest.raises((ConfigError, DataError), match=text):
        _prepare(pictures, tmp_path / "out", options)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": (4,)}, "--size 4: give HxW or HxWxD"),
        ({"value_range": (1.0, 1.0)}, "--range 1,1: the first must be lower"),
        ({"value_range": (0.0, float("nan"))}, "--range 0,nan: give two finite numbers"),
        ({"value_range": (0.0, 1e39)}, r"--range 0,1e\+39: give two finite numbers"),
        ({"label_names": ("a", "")}, "--label-names a,: a name is empty"),
        ({"store": "files", "size": (4, 4)}, "--size changes images, --store files leaves them"),
        ({"has_copies": True, "size": (4, 4)}, "--copy is for images that stay files"),
        ({"layout": "masks", "table": Path("t.csv")}, "--labels t.csv says where images belong, and so does"),
        ({"label_names": ("a", "a")}, "--label-names has 'a' twice"),
    ],
)
def test_options_that_cannot_go_together(options: dict[str, object], text: str) -> None:
    """Before any image is read."""
    with pytest.raises(ConfigError, match=text):
        Options(**options)  # type: ignore[arg-type]
