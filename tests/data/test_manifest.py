import dataclasses
import json
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


def test_sites_are_found_in_order(tmp_path: Path) -> None:
    """Every folder with a manifest is a site, hidden ones and others are not; none is an error."""
    with pytest.raises(DataError, match="holds no site"):
        site_folders(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        site_folders(tmp_path / "absent")
    for name in ("USM", "NYU", ".partial", "other"):
        (tmp_path / name).mkdir()
        if name != "other":
            (tmp_path / name / "manifest.json").write_text("{}")
    assert list(site_folders(tmp_path)) == ["NYU", "USM"]
