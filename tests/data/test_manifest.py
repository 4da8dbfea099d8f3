import dataclasses
import hashlib
import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.manifest import (
    Excluded,
    Region,
    SiteManifest,
    Subject,
    read_manifest,
    site_folders,
    write_manifest,
)
from monai_fedskew.errors import DataError


def manifest(**changes: object) -> SiteManifest:
    """A small valid manifest with some fields changed."""
    site = SiteManifest(
        site="A",
        label_names=("control", "autism"),
        kind="edges",
        regions=(Region("10", "Left Thalamus", (-10.0, -19.0, 6.0)), Region("11"), Region("12")),
        features=(),
        subjects=(Subject("0000001", 1, 0, 2), Subject("0000002", 0, 2, 5, "family")),
        excluded=(Excluded("0000003", "constant ROI 4801"),),
        estimator="pearson",
        window=32,
        sources={"A_0000001_rois_ho.1D": "ab" * 32},
        summary={"mean": 0.25, "std": 1.0, "windows": 5.0},
        notes={"protocol": "none"},
    )
    return dataclasses.replace(site, **changes)


def written(folder: Path, site: SiteManifest) -> Path:
    """Write a manifest and its data."""
    np.save(folder / "vectors.npy", np.zeros((site.n_rows, site.n_features), np.float32))
    write_manifest(folder, site)
    return folder


def test_a_manifest_comes_back_as_written(tmp_path: Path) -> None:
    """Reading gives an equal value, with regions, groups and exclusions, and the digest of the array."""
    found = read_manifest(written(tmp_path, manifest()))
    assert found == manifest(data_digest=found.data_digest)
    assert found.data_digest == f"crc32:{zlib.crc32(bytes(5 * 3 * 4)):08x}"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_rows_know_subject_and_label() -> None:
    """Rows 0-1 are the first subject's, 2-4 the second's; edges are named after their pair, row by row."""
    site = manifest()
    assert site.labels.tolist() == [1, 1, 0, 0, 0]
    assert site.labels.dtype == np.int64
    assert site.row_subjects.tolist() == [0, 0, 1, 1, 1]
    assert (site.n_features, site.n_rows) == (3, 5)
    assert site.feature_names == ("10-11", "10-12", "11-12")
    assert [subject.group for subject in site.subjects] == ["0000001", "family"]


def test_plain_features_keep_their_names() -> None:
    """A site without regions names its columns itself."""
    site = manifest(kind="features", regions=(), features=("age", "sex"))
    assert (site.n_features, site.feature_names) == (2, ("age", "sex"))


@pytest.mark.parametrize(("key", "value"), [("window", 31), ("label_names", ["autism", "control"]), ("site", "B")])
def test_a_manifest_edited_by_hand_is_refused(tmp_path: Path, key: str, value: object) -> None:
    """Any change after writing is found and the message says what to do."""
    path = written(tmp_path, manifest()) / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))
    with pytest.raises(DataError, match="manifest_sha256.*changed after it was written.*prepare the data again"):
        read_manifest(tmp_path)


def test_a_damaged_or_foreign_manifest_is_refused(tmp_path: Path) -> None:
    """Absent, cut off, another schema, no object: each has its message."""
    with pytest.raises(DataError, match="does not exist"):
        read_manifest(tmp_path)
    path = tmp_path / "manifest.json"
    for text, message in (("{", "no valid JSON"), ("[]", "holds a list"), ('{"schema": 9}', "'schema' is 9")):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_manifest(tmp_path)


def test_data_must_agree_with_the_manifest(tmp_path: Path) -> None:
    """A data file that is absent, of another shape or no array is refused."""
    written(tmp_path, manifest())
    np.save(tmp_path / "vectors.npy", np.zeros((4, 3), np.float32))
    with pytest.raises(DataError, match=r"shape \(4, 3\), but the manifest describes \(5, 3\)"):
        read_manifest(tmp_path)
    np.save(tmp_path / "vectors.npy", np.zeros((5, 3)))
    with pytest.raises(DataError, match="holds float64, expected float32 in C order"):
        read_manifest(tmp_path)
    np.save(tmp_path / "vectors.npy", np.asfortranarray(np.zeros((5, 3), np.float32)))
    with pytest.raises(DataError, match="holds float32 in Fortran order, expected float32 in C order"):
        read_manifest(tmp_path)
    (tmp_path / "vectors.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as an array"):
        read_manifest(tmp_path)
    (tmp_path / "vectors.npy").unlink()
    with pytest.raises(DataError, match="does not exist although"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("subjects", "message"),
    [
        ((Subject("a", 0, 0, 2), Subject("b", 1, 3, 4)), "rows 3 to 4"),
        ((Subject("a", 0, 0, 0),), "rows 0 to 0"),
        ((Subject("a", 2, 0, 1),), "label 2 of 2"),
        ((Subject("a", 0, 0, 1), Subject("a", 0, 1, 2)), "appears twice"),
    ],
)
def test_rows_without_order_are_not_written(tmp_path: Path, subjects: tuple[Subject, ...], message: str) -> None:
    """Gaps, empty subjects, unknown labels and repeated subjects are errors at writing."""
    with pytest.raises(DataError, match=message):
        write_manifest(tmp_path, manifest(subjects=subjects))
    assert not (tmp_path / "manifest.json").exists()


def resigned(folder: Path, **changes: object) -> Path:
    """Change a written manifest and give it a checksum that fits."""
    path = folder / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    content.pop("manifest_sha256")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "manifest_sha256": hashlib.sha256(text.encode()).hexdigest()}))
    return folder


def test_a_manifest_of_another_version_is_no_edited_one(tmp_path: Path) -> None:
    """Keys that this version does not know, or misses, are said to be of another version."""
    path = written(tmp_path, manifest()) / "manifest.json"
    content = json.loads(path.read_text())
    content["data_sha256"] = content.pop("data_digest")
    path.write_text(json.dumps(content))
    message = "another version of monai_fedskew .key data_digest is missing, 'data_sha256' is unknown.; prepare the"
    with pytest.raises(DataError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("site", 5),
        ("window", "x"),
        ("window", True),
        ("window", -1),
        ("stride", 0),
        ("summary", 5),
        ("summary", {"mean": "x"}),
        ("notes", 5),
        ("notes", {"protocol": 5}),
        ("sources", []),
        ("label_names", "control"),
        ("features", [1]),
        ("estimator", None),
        ("data_digest", 0),
        ("regions", [{"label": "10", "name": "", "xyz": "abc"}]),
        ("regions", [{"label": "10", "name": ""}]),
        ("subjects", [{"id": "a", "label": "x", "start": 0, "stop": 5, "group": ""}]),
        ("subjects", [{"id": "a", "label": 0, "start": 0.0, "stop": 5, "group": ""}]),
        ("subjects", {"a": 1}),
        ("excluded", ["a"]),
        ("kind", []),
        ("store", 7),
    ],
)
def test_a_value_of_the_wrong_type_is_named(tmp_path: Path, key: str, value: object) -> None:
    """Whoever writes a manifest, also with the right checksum: one error names the key and what it should be."""
    written(tmp_path, manifest())
    with pytest.raises(DataError, match=f"manifest.json: key '{key}' is .*, expected "):
        read_manifest(resigned(tmp_path, **{key: value}))


def test_series_need_a_window_to_be_cut_by(tmp_path: Path) -> None:
    """Rows computed on the fly are edges of windows."""
    written(tmp_path, manifest())
    with pytest.raises(DataError, match="store 'series' with window 0 and kind 'edges'"):
        read_manifest(resigned(tmp_path, store="series", window=0))


def test_a_manifest_that_is_a_folder_is_one_error(tmp_path: Path) -> None:
    """What cannot be opened as a file is named."""
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match="manifest.json cannot be read"):
        read_manifest(tmp_path)


def named(root: Path, name: str) -> Path:
    """Write a site with data into a folder of its name."""
    (root / name).mkdir()
    return written(root / name, manifest(site=name))


def test_sites_are_found_in_order(tmp_path: Path) -> None:
    """Every folder with a manifest is a site, hidden ones and others are not; none is an error."""
    with pytest.raises(DataError, match="holds no site"):
        site_folders(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        site_folders(tmp_path / "absent")
    (tmp_path / "a file").write_text("")
    with pytest.raises(DataError, match="does not exist or is no folder"):
        site_folders(tmp_path / "a file")
    for name in ("USM", "NYU"):
        named(tmp_path, name)
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "NYU", tmp_path / ".partial")
    assert list(site_folders(tmp_path)) == ["NYU", "USM"]


def test_a_copied_folder_is_no_other_site(tmp_path: Path) -> None:
    """NYU copied to NYU_copy would train as two sites with the same subjects."""
    shutil.copytree(named(tmp_path, "NYU"), tmp_path / "NYU_copy")
    with pytest.raises(DataError, match="key 'site' is 'NYU', but the folder is named 'NYU_copy'.*rename it back"):
        site_folders(tmp_path)
    (tmp_path / "NYU_copy" / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="'schema' is None"):
        site_folders(tmp_path)


@pytest.mark.parametrize("data", ["vectors.npy", "series.npy"])
def test_a_site_without_manifest_is_not_missed(tmp_path: Path, data: str) -> None:
    """Data without a manifest, or with a link to nowhere, would leave the federation unnoticed."""
    named(tmp_path, "NYU")
    (tmp_path / "USM").mkdir()
    (tmp_path / "USM" / data).write_bytes(b"")
    with pytest.raises(DataError, match=f"USM: {data} but no manifest.json, so this site would be missed"):
        site_folders(tmp_path)
    (tmp_path / "USM" / data).unlink()
    (tmp_path / "USM" / "manifest.json").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="USM: a link but no manifest.json"):
        site_folders(tmp_path)


def test_names_that_are_read_as_words_of_a_configuration_are_refused(tmp_path: Path) -> None:
    """In the manifest, on writing and on reading, and as the name of a folder."""
    name = "$__import__('os').getpid()"
    with pytest.raises(DataError, match=r"manifest.json: key 'site' is .*character '\$' is not allowed"):
        written(tmp_path, manifest(site=name))
    written(tmp_path, manifest())
    with pytest.raises(DataError, match=r"manifest.json: key 'site' is .*character '\$' is not allowed"):
        read_manifest(resigned(tmp_path, site=name))
    (tmp_path / "root").mkdir()
    shutil.copytree(named(tmp_path / "root", "A"), tmp_path / "root" / "@lr")
    with pytest.raises(DataError, match="the name of a folder is '@lr': character '@' is not allowed"):
        site_folders(tmp_path / "root")
