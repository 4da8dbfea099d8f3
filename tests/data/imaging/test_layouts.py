"""Layouts on disk, each generated as small as it can be."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_images import gradient, nifti, picture

from monai_fedskew.data.imaging.layouts import LAYOUTS, find_images
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.errors import ConfigError, DataError


def _touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def _facts(found: list[ImageSource], *fields: str) -> list[tuple[object, ...]]:
    return sorted(tuple(getattr(source, name) for name in fields) for source in found)


def test_folders_give_the_class_and_below_it_the_subject(tmp_path: Path) -> None:
    """SITE/CLASS/image and SITE/CLASS/SUBJECT/image; hidden and other files are no images."""
    _touch(tmp_path, "A/cat/1.png", "A/cat/s7/2.jpg", "A/dog/3.tiff", "A/dog/.4.png", "A/dog/notes.txt", "docs/x.txt")
    layout, found = find_images(tmp_path)
    assert layout == "folders"
    assert _facts(found, "site", "label", "id", "group") == [
        ("A", "cat", "cat/1", ""),
        ("A", "cat", "cat/s7/2", "s7"),
        ("A", "dog", "dog/3", ""),
    ]


def test_folders_of_splits_give_the_split(tmp_path: Path) -> None:
    """SITE/train|val|test/CLASS/image; a class beside them, or an image in no class, is refused."""
    _touch(tmp_path, "A/train/cat/1.png", "A/val/cat/2.png", "A/test/cat/3.png")
    _, found = find_images(tmp_path)
    assert _facts(found, "id", "label", "split") == [
        ("test/cat/3", "cat", "test"),
        ("train/cat/1", "cat", "train"),
        ("val/cat/2", "cat", "validation"),
    ]
    _touch(tmp_path, "A/dog/4.png")
    with pytest.raises(DataError, match="site A: .*dog lies beside"):
        find_images(tmp_path)
    (tmp_path / "A/dog/4.png").unlink()
    (tmp_path / "A/dog").rmdir()
    _touch(tmp_path, "B/cat/1.png", "B/2.png")
    with pytest.raises(DataError, match=r"site B: .*2\.png lies in no class"):
        find_images(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("A/images/x.png", "A/labels/x.png"),
        ("A/images/x.png", "A/masks/x_mask.png"),
        ("A/imagesTr/x.nii.gz", "A/labelsTr/x.nii.gz"),
        ("A/x.nii.gz", "A/x_seg.nii.gz"),
        ("A/x.png", "A/x_Segmentation.png"),
    ],
)
def test_masks_go_with_images_by_name(names: tuple[str, str], tmp_path: Path) -> None:
    """Folders of images and labels, or suffixes side by side."""
    _touch(tmp_path, *names)
    layout, found = find_images(tmp_path)
    assert layout == "masks"
    assert _facts(found, "site", "id", "files", "mask") == [("A", "x", (tmp_path / names[0],), tmp_path / names[1])]


def test_an_image_without_mask_is_named(tmp_path: Path) -> None:
    """No image is silently left out."""
    _touch(tmp_path, "A/images/x.png", "A/images/y.png", "A/labels/x.png")
    with pytest.raises(DataError, match=r"site A: .*y\.png has no mask"):
        find_images(tmp_path)


@pytest.mark.parametrize("place", ["images", "office_caltech_10", "."])
def test_office_has_one_name_a_class(place: str, tmp_path: Path) -> None:
    """FedBN's archive, ours, and the plain one; Office-31's names of classes become Caltech's."""
    _touch(tmp_path / place, "amazon/back_pack/1.jpg", "caltech/backpack/1.jpg", "dslr/laptop_computer/1.jpg")
    _touch(tmp_path / place, "amazon_train.pkl")
    layout, found = find_images(tmp_path)
    assert layout == "office_caltech10"
    assert _facts(found, "site", "label") == [("amazon", "backpack"), ("caltech", "backpack"), ("dslr", "laptop")]


def test_domainnet_lists_are_the_split(tmp_path: Path) -> None:
    """Images of no list have no split; ten classes are a layout of their own; a line without its image is named."""
    _touch(tmp_path, *(f"{d}/{c}/{n}.jpg" for d in ("real", "sketch") for c in ("bird", "ant") for n in "123"))
    for domain in ("real", "sketch"):
        (tmp_path / f"{domain}_train.txt").write_text(f"{domain}/bird/1.jpg 0\n{domain}/ant/1.jpg 1\n")
        (tmp_path / f"{domain}_test.txt").write_text(f"{domain}/bird/2.jpg 0\n")
    layout, found = find_images(tmp_path)
    assert layout == "domainnet"
    assert _facts([one for one in found if one.site == "real"], "id", "split") == [
        ("ant/1", "train"),
        ("ant/2", ""),
        ("ant/3", ""),
        ("bird/1", "train"),
        ("bird/2", "test"),
        ("bird/3", ""),
    ]
    assert {source.label for source in find_images(tmp_path, "domainnet10")[1]} == {"bird"}
    (tmp_path / "real_test.txt").write_text("real/bird/9.jpg 0\n")
    with pytest.raises(DataError, match=r"real_test\.txt, line 1: real/bird/9\.jpg does not exist"):
        find_images(tmp_path)


def test_digits_five_are_pictures_not_pickles(tmp_path: Path) -> None:
    """Folders of classes with a given split; FedBN's partitions are not opened, and the error says what to do."""
    _touch(tmp_path, "MNIST/train/0/1.png", "MNIST/test/1/2.png", "MNIST_M/train/0/1.png", "MNIST_M/test/0/3.png")
    layout, found = find_images(tmp_path)
    assert layout == "digits_five"
    assert _facts(found, "site", "label", "split")[0] == ("MNIST", "0", "train")
    _touch(tmp_path, "SVHN/partitions/train_part0.pkl")
    with pytest.raises(DataError, match=r"site SVHN: .*train_part0\.pkl is not opened: a pickle can run code"):
        find_images(tmp_path)


def test_prostate_volumes_are_one_a_patient(tmp_path: Path) -> None:
    """Two kinds of spelling of the masks; other files of the folder are no cases."""
    _touch(tmp_path, "HK/Case00.nii.gz", "HK/Case00_segmentation.nii.gz", "HK/readme.nii.gz")
    _touch(tmp_path, "ISBI_1.5/Case07.nii.gz", "ISBI_1.5/Case07_Segmentation.nii.gz")
    layout, found = find_images(tmp_path)
    assert layout == "prostate_mri"
    assert _facts(found, "site", "id", "group") == [("HK", "Case00", "Case00"), ("ISBI_1.5", "Case07", "Case07")]
    assert LAYOUTS[layout].binary_masks
    assert LAYOUTS[layout].label_names(tmp_path) == ("background", "prostate")


def _camelyon(root: Path) -> Path:
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for k, (patient, center, tumor) in enumerate([("004", 0, 1), ("004", 0, 0), ("017", 0, 1), ("020", 1, 0)]):
        name = f"patient_{patient}_node_4"
        picture(root / "patches" / name / f"patch_{name}_x_{32 * k}_y_7.png", gradient(seed=k))
        lines.append(f"{k},{patient},4,{32 * k},7,{tumor},0,{center},{k % 2}")
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def test_camelyon_sites_are_hospitals_and_patients_stay_whole(tmp_path: Path) -> None:
    """Patient numbers keep their zeros; WILDS's split, which cuts patients, is not taken."""
    layout, found = find_images(_camelyon(tmp_path))
    assert layout == "camelyon17"
    assert _facts(found, "site", "group", "label", "split") == [
        ("center_0", "patient_004", "normal", ""),
        ("center_0", "patient_004", "tumor", ""),
        ("center_0", "patient_017", "tumor", ""),
        ("center_1", "patient_020", "normal", ""),
    ]
    found[0].files[0].unlink()
    with pytest.raises(DataError, match=r"metadata\.csv, line 2: .*_x_0_y_7\.png does not exist"):
        find_images(tmp_path)


def _decathlon(folder: Path, **changes: object) -> None:
    volume = np.zeros((2, 2, 2))
    for kind in ("imagesTr", "labelsTr"):
        nifti(folder / kind / "p_00.nii.gz", volume)
    content = {
        "labels": {"0": "background", "1": "PZ", "2": "TZ"},
        "numTraining": 1,
        "training": [{"image": "./imagesTr/p_00.nii.gz", "label": "./labelsTr/p_00.nii.gz"}],
        "test": ["./imagesTs/p_01.nii.gz"],
        **changes,
    }
    (folder / "dataset.json").write_text(json.dumps(content))


def test_decathlon_lists_of_one_site_or_of_several(tmp_path: Path) -> None:
    """A list in the folder is a site by its name; names of labels come from the list, also in nnU-Net's order."""
    _decathlon(tmp_path / "Task05")
    layout, found = find_images(tmp_path / "Task05")
    assert (layout, found[0].site, found[0].id, found[0].split) == ("decathlon", "Task05", "p_00", "")
    _decathlon(tmp_path / "other", labels={"background": 0, "PZ": 1, "TZ": 2})
    assert {source.site for source in find_images(tmp_path)[1]} == {"Task05", "other"}
    assert LAYOUTS["decathlon"].label_names(tmp_path) == ("background", "PZ", "TZ")
    _decathlon(tmp_path / "other", labels={"0": "background", "1": "gland"})
    with pytest.raises(DataError, match="names the labels background, gland, .* sites must agree"):
        LAYOUTS["decathlon"].label_names(tmp_path)


def test_a_decathlon_list_with_labelled_test_images_is_a_split(tmp_path: Path) -> None:
    """As MONAI's datalists; a label that is a number is a class; several images are channels."""
    entries = [{"image": ["imagesTr/p_00.nii.gz", "labelsTr/p_00.nii.gz"], "label": 1}]
    _decathlon(tmp_path, training=entries, test=[{"image": "imagesTr/p_00.nii.gz", "label": 0}])
    _, found = find_images(tmp_path)
    assert [(len(one.files), one.label, one.split) for one in found] == [(2, "1", "train"), (1, "0", "test")]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"numTraining": 2}, "numTraining is 2, training has 1 entries"),
        ({"training": [{"image": "imagesTr/none.nii.gz", "label": 0}], "numTraining": None}, r"training\[0\] names"),
        ({"training": [], "numTraining": 0}, "lists no image with a label"),
        ({"training": [{"image": [], "label": 0}]}, r"training\[0\] names \[\]"),
        ({"training": [{"image": "imagesTr/p_00.nii.gz", "label": True}]}, r"training\[0\] names True"),
    ],
)
def test_a_damaged_decathlon_list_is_named(changes: dict[str, object], text: str, tmp_path: Path) -> None:
    """A list that promises more than it has, or names no file or one that is not there."""
    _decathlon(tmp_path, **changes)
    with pytest.raises(DataError, match=text):
        find_images(tmp_path)


def test_a_layout_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Unknown names list what there is; an empty folder says what is simplest."""
    with pytest.raises(ConfigError, match="layout 'x' is unknown; give auto or one of office_caltech10"):
        find_images(tmp_path, "x")
    with pytest.raises(DataError, match="does not have the layout masks"):
        find_images(tmp_path, "masks")
    with pytest.raises(DataError, match="no layout that is known.* SITE/CLASS/image"):
        find_images(tmp_path)
