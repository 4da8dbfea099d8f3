"""Sites whose images stay files, as a datalist and with given splits."""

import hashlib
import json
from pathlib import Path

import pytest

from monai_fedskew.data import manifest as manifest_module
from monai_fedskew.data.datalist import site_datalist
from monai_fedskew.data.image_sites import write_file_site
from monai_fedskew.data.integrity import verify_data
from monai_fedskew.data.manifest import Subject, read_manifest
from monai_fedskew.data.splits import split
from monai_fedskew.errors import ConfigError, DataError


def _site(root: Path, subjects: list[Subject], *, forget: str = "") -> Path:
    """A site whose files hold their own names."""
    sources = {}
    for name in (name for subject in subjects for name in (*subject.files, *filter(None, [subject.mask]))):
        path = root / "A" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        sources[name] = hashlib.sha256(name.encode()).hexdigest()
    sources.pop(forget, None)
    return write_file_site(root / "A", subjects, label_names=["background", "cell"], shape=(1, 8, 8), sources=sources)


def _patients(count: int = 6, images: int = 2) -> list[Subject]:
    """Images of patients, two each."""
    return [
        Subject(f"p{k // images}-{k % images}", 0, k, k + 1, f"p{k // images}", "", (f"../in/{k}.png",), f"m/{k}.png")
        for k in range(count * images)
    ]


def test_entries_name_files_mask_patient_and_digest(tmp_path: Path) -> None:
    """Paths are absolute wherever the call comes from, and the digest is that of image and mask."""
    first = site_datalist(_site(tmp_path, _patients()), "all")[0]
    assert first["image"] == str(tmp_path / "in" / "0.png")
    assert first["label"] == str(tmp_path / "A" / "m" / "0.png")
    assert (first["subject"], first["row"], first["site"]) == ("p0", 0, "A")
    assert first["digest"].split() == [hashlib.sha256(name).hexdigest() for name in (b"../in/0.png", b"m/0.png")]


def test_images_of_one_patient_are_never_on_two_sides(tmp_path: Path) -> None:
    """Folds are dealt over patients; each image is tested once over all folds."""
    site, tested = _site(tmp_path, _patients()), []
    for fold in range(3):
        parts = {
            name: site_datalist(site, name, fold=fold, folds=3, validation_fraction=0.3)
            for name in ("train", "validation", "test")
        }
        people = [{entry["subject"] for entry in entries} for entries in parts.values()]
        assert sum(len(entries) for entries in parts.values()) == 12
        assert len(set.union(*people)) == sum(len(one) for one in people) == 6
        tested += [entry["row"] for entry in parts["test"]]
    assert sorted(tested) == list(range(12))


def test_a_given_list_is_the_split_whatever_the_fold(tmp_path: Path) -> None:
    """Of its training patients a part is kept for validation where the list has none."""
    given = ["train"] * 8 + ["test"] * 4
    subjects = [
        Subject(f"i{k}", 0, k, k + 1, f"p{k // 2}", name, (f"{k}.png",))  # type: ignore[arg-type]
        for k, name in enumerate(given)
    ]
    manifest = read_manifest(_site(tmp_path, subjects))
    for fold in (0, 4):
        parts = split(manifest, fold=fold, validation_fraction=0.25)
        assert parts.test == ("i10", "i11", "i8", "i9")
        assert len(parts.validation) == 2
        assert {*parts.train, *parts.validation} == {f"i{k}" for k in range(8)}
    assert split(manifest, fold=0, validation_fraction=0).validation == ()


def test_several_files_are_the_channels_of_one_image(tmp_path: Path) -> None:
    """A class stands where there is no mask."""
    entry = site_datalist(_site(tmp_path, [Subject("a", 1, 0, 1, files=("t1.nii", "t2.nii"))]), "all")[0]
    assert [Path(name).name for name in entry["image"]] == ["t1.nii", "t2.nii"]
    assert entry["label"] == 1


@pytest.mark.parametrize(
    ("subjects", "forget", "match"),
    [
        ([Subject("a", 0, 0, 1)], "", "a has 0 files and 1 rows"),
        ([Subject("a", 0, 0, 2, files=("a.png",))], "", "a has 1 files and 2 rows"),
        ([Subject("a", 0, 0, 1, files=("a.png",))], "a.png", "'sources' lacks 'a.png' of a"),
        (
            [Subject("a", 0, 0, 1, "p", "train", ("a.png",)), Subject("b", 0, 1, 2, "p", "test", ("b.png",))],
            "",
            "group 'p' is in the train and the test split",
        ),
        (
            [Subject("a", 0, 0, 1, "", "train", ("a.png",)), Subject("b", 0, 1, 2, "", "", ("b.png",))],
            "",
            "b and a: one has a split",
        ),
    ],
)
def test_what_contradicts_itself_is_not_written(
    subjects: list[Subject], forget: str, match: str, tmp_path: Path
) -> None:
    """The error names the image and what was seen."""
    with pytest.raises(DataError, match=match):
        _site(tmp_path, subjects, forget=forget)
    assert not (tmp_path / "A" / "manifest.json").exists()


def test_a_file_that_is_gone_or_changed_is_named(tmp_path: Path) -> None:
    """A changed file is found by its SHA-256, a missing one at once, both by their absolute path."""
    site = _site(tmp_path, _patients())
    verify_data(site, read_manifest(site))
    (tmp_path / "in" / "3.png").write_bytes(b"other")
    with pytest.raises(DataError, match=rf"site A: .*{tmp_path}.*3.png was changed after it was prepared"):
        verify_data(site, read_manifest(site))
    (tmp_path / "in" / "3.png").unlink()
    with pytest.raises(DataError, match=rf"site A: {tmp_path}/in/3.png of image 'p1-1' does not exist"):
        read_manifest(site)


def test_an_unknown_split_and_an_array_are_refused(tmp_path: Path, study: Path) -> None:
    """Rows of an array have other readers."""
    with pytest.raises(ConfigError, match="split is 'val'"):
        site_datalist(_site(tmp_path, _patients()), "val")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="its rows lie in one array, not in files"):
        site_datalist(study / "A", "all")
    with pytest.raises(DataError, match=f"no prepared site at {tmp_path}/nowhere"):
        site_datalist(tmp_path / "nowhere", "all")


def test_what_only_images_have_is_left_out_of_other_manifests(tmp_path: Path, study: Path) -> None:
    """A subject without a given split or files is written as before those came; one with a foreign key is refused."""
    for folder, keys in ((study / "A", set()), (_site(tmp_path, _patients()), {"files", "mask"})):
        first = json.loads((folder / "manifest.json").read_text())["subjects"][0]
        assert first.keys() - {"id", "label", "start", "stop", "group"} == keys
    path = tmp_path / "A" / "manifest.json"
    content = json.loads(path.read_text())
    content["subjects"][0]["colour"] = "red"
    content["manifest_sha256"] = manifest_module._checksum(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="key 'subjects' is"):
        read_manifest(tmp_path / "A")
