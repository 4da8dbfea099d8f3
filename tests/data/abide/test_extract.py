from pathlib import Path

import nibabel
import numpy as np
import pytest

from monai_fedskew.data.abide.connectome import Edges
from monai_fedskew.data.abide.extract import extract
from monai_fedskew.data.abide.prepare import Options, prepare
from monai_fedskew.data.abide.timeseries import read_series
from monai_fedskew.data.manifest import read_manifest
from monai_fedskew.errors import ConfigError, DataError


def save(path: Path, values: np.ndarray, size: float = 3.0) -> Path:
    """Write a NIfTI file of cubic voxels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([size, size, size, 1])), path)
    return path


def labels_csv(path: Path, labels: list[int]) -> Path:
    """Write a table of regions."""
    path.write_text("label,name\n" + "".join(f"{label},Region {label}\n" for label in labels))
    return path


@pytest.fixture
def lost(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    """Case 26: a 1 mm atlas with a region of one voxel, and a 3 mm scan; returns atlas, table and signal."""
    atlas = np.zeros((12, 12, 12), np.int16)
    atlas[:6], atlas[6:] = 10, 3455
    atlas[5, 5, 5] = 101
    atlas[2:4, 2:4, 2:4] = 802
    signal = np.random.default_rng(0).standard_normal((4, 4, 4, 20)).astype(np.float32)
    table = labels_csv(tmp_path / "labels.csv", [3455, 10, 802, 101])
    return save(tmp_path / "atlas.nii.gz", atlas, 1), table, signal


def test_no_region_is_lost(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """Case 26: four columns in ascending label order, also for the region of one voxel; regions.csv has its centre."""
    atlas, table, signal = lost
    save(tmp_path / "scans/A_0000001_func_preproc.nii.gz", signal)
    done = extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    assert done.files == ("A_0000001_rois_atlas.1D",)
    assert done.flat == {}
    series = read_series(tmp_path / "out" / done.files[0], ["10", "101", "802", "3455"])
    assert series.labels == ("10", "101", "802", "3455")
    assert series.values.shape == (20, 4)
    # voxel (5, 5, 5) mm lies between scan voxels 1 (3 mm) and 2 (6 mm): weights 1/3 and 2/3 along each axis
    w = np.array([1, 2]) / 3
    expected = np.einsum("ijkt,i,j,k->t", signal[1:3, 1:3, 1:3].astype(float), w, w, w)
    np.testing.assert_allclose(series.values[:, 1], expected, rtol=1e-5, atol=1e-6)
    assert "101,Region 101,5.0,5.0,5.0" in (tmp_path / "out/regions.csv").read_text()


def test_nan_voxels_do_not_count(tmp_path: Path) -> None:
    """Case 26: the mean is over the finite voxels, neither NaN nor drawn to zero; one bad volume is enough."""
    atlas = save(tmp_path / "atlas.nii.gz", np.repeat(np.array([1, 2], np.int16), 8).reshape(4, 2, 2))
    signal = np.random.default_rng(0).standard_normal((4, 2, 2, 9)).astype(np.float32) + 100
    signal[0, 0, 0], signal[3, 1, 1, 4] = np.nan, np.inf
    save(tmp_path / "scans/a.nii", signal)
    extract(tmp_path / "scans", atlas, labels_csv(tmp_path / "labels.csv", [1, 2]), tmp_path / "out")
    values = read_series(tmp_path / "out/a_rois_atlas.1D", ["1", "2"]).values
    np.testing.assert_allclose(values[:, 0], signal[:2].reshape(8, 9)[1:].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(values[:, 1], signal[2:].reshape(8, 9)[:-1].mean(axis=0), rtol=1e-6)


def test_a_3d_scan_is_refused(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """Case 26: a ValueError with the file's name and '4D'; a truncated file is named too."""
    atlas, table, signal = lost
    path = save(tmp_path / "scans/func_3d.nii.gz", signal[..., 0])
    with pytest.raises(ValueError, match="func_3d.nii.gz: expected a 4D image"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    save(path, signal)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match="func_3d.nii.gz: cannot be read as NIfTI"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("has_mask", [True, False])
def test_voxels_outside_the_brain_do_not_count(tmp_path: Path, has_mask: bool) -> None:
    """Case 27: a region half outside is the mean of its inside, 10 + sin; one fully outside is a named flat column.

    With a mask and without: the zeros that brain extraction leaves never change. Counting them would give 5.006.
    """
    t = np.arange(40)
    atlas, brain, signal = (
        np.zeros((6, 6, 6), np.int16),
        np.zeros((6, 6, 6), np.uint8),
        np.zeros((6, 6, 6, 40), np.float32),
    )
    atlas[:2], atlas[2:4], atlas[4:], brain[1:4] = 1, 2, 3, 1
    signal[1], signal[2:4] = 10 + np.sin(t / 3), 20 + np.cos(t / 3)
    save(tmp_path / "scans/A_0000001.nii.gz", signal)
    atlas_path = save(tmp_path / "atlas.nii.gz", atlas)
    mask = save(tmp_path / "mask.nii.gz", brain) if has_mask else None
    table = labels_csv(tmp_path / "labels.csv", [1, 2, 3])
    done = extract(tmp_path / "scans", atlas_path, table, tmp_path / "out", mask=mask)
    assert done.flat == {"A_0000001_rois_atlas.1D": ("3",)}
    values = read_series(tmp_path / "out/A_0000001_rois_atlas.1D", ["1", "2", "3"]).values
    np.testing.assert_allclose(values[:, 0], 10 + np.sin(t / 3), rtol=1e-6)
    np.testing.assert_allclose(values[:, 1], 20 + np.cos(t / 3), rtol=1e-6)
    assert (values[:, 2] == 0).all()
    assert values[:, 0].mean() == pytest.approx(10.012, abs=1e-3)


def test_extracted_series_can_be_prepared(tmp_path: Path) -> None:
    """The table is copied along; prepare takes regions from regions.csv, and 3455 is a region if the atlas has it."""
    draw = np.random.default_rng(1)
    atlas = save(tmp_path / "atlas.nii.gz", np.array([10, 101, 3455, 7], np.int16).reshape(4, 1, 1))
    for k in (1, 2):
        save(
            tmp_path / f"scans/A_000000{k}_func_preproc.nii.gz", draw.standard_normal((4, 1, 1, 30)).astype(np.float32)
        )
    (tmp_path / "scans/pheno.csv").write_text("SUB_ID,FILE_ID,SITE_ID,DX_GROUP\n1,A_0000001,A,1\n2,A_0000002,A,2\n")
    extract(tmp_path / "scans", atlas, labels_csv(tmp_path / "labels.csv", [10, 101, 3455]), tmp_path / "series")
    prepare(tmp_path / "series", tmp_path / "out", Options(quality_checked=False, edges=Edges(20)))
    site = read_manifest(tmp_path / "out/A")
    assert site.feature_names == ("10-101", "10-3455", "101-3455")
    assert [region.xyz for region in site.regions] == [(0, 0, 0), (3, 0, 0), (6, 0, 0)]
    assert site.n_rows == 22
    assert "dropped label" not in site.notes


def test_wrong_input_is_named(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """A label the atlas lacks, a table without labels, no scan, an atlas that is no volume, an existing folder."""
    atlas, table, signal = lost
    save(tmp_path / "scans/a.nii.gz", signal)
    wrong = labels_csv(tmp_path / "wrong.csv", [10, 102])
    with pytest.raises(DataError, match="atlas.nii.gz: label 102 of .*wrong.csv is not in the atlas"):
        extract(tmp_path / "scans", atlas, wrong, tmp_path / "out")
    wrong.write_text("name\nx\n")
    with pytest.raises(DataError, match="wrong.csv: column 'label'"):
        extract(tmp_path / "scans", atlas, wrong, tmp_path / "out")
    wrong.write_text("label\nx\n")
    with pytest.raises(DataError, match="wrong.csv, line 2: labels must be whole numbers, found 'x'"):
        extract(tmp_path / "scans", atlas, wrong, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no NIfTI file"):
        extract(tmp_path / "empty", atlas, table, tmp_path / "out")
    save(tmp_path / "atlas4d.nii.gz", signal)
    with pytest.raises(DataError, match="atlas4d.nii.gz: expected a 3D image"):
        extract(tmp_path / "scans", tmp_path / "atlas4d.nii.gz", table, tmp_path / "out", force=True)
    save(tmp_path / "scans/more/a_func_preproc.nii", signal)
    with pytest.raises(DataError, match="another scan below .* is named a too"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="out exists"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out")


def test_a_broken_image_or_table_is_named(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """Atlas and mask that are no NIfTI or cut off, a mask of four dimensions, and a table that is no text or has a
    label twice: one error each, and nothing is written.
    """
    atlas, table, signal = lost
    scans, out = tmp_path / "scans", tmp_path / "out"
    save(scans / "a.nii.gz", signal)
    text = tmp_path / "text.nii.gz"
    text.write_text("no image")
    cut = save(tmp_path / "cut.nii.gz", np.random.default_rng(0).integers(0, 99, (12, 12, 12)).astype(np.int16), 1)
    cut.write_bytes(cut.read_bytes()[:-200])
    for broken in (text, cut):
        with pytest.raises(DataError, match=f"{broken.name}: cannot be read as NIfTI"):
            extract(scans, broken, table, out)
        with pytest.raises(DataError, match=f"{broken.name}: cannot be read as NIfTI"):
            extract(scans, atlas, table, out, mask=broken)
    with pytest.raises(DataError, match=r"mask4d.nii.gz: expected a 3D image"):
        extract(scans, atlas, table, out, mask=save(tmp_path / "mask4d.nii.gz", signal))
    (tmp_path / "mask4d.nii.gz").unlink()
    with pytest.raises(DataError, match=r"twice.csv: label 101 appears twice \(line 4\)"):
        extract(scans, atlas, labels_csv(tmp_path / "twice.csv", [10, 101, 101]), out)
    (tmp_path / "binary.csv").write_bytes(b"label,name\n\xff\xfe\n")
    with pytest.raises(DataError, match="binary.csv: cannot be read as CSV"):
        extract(scans, atlas, tmp_path / "binary.csv", out)
    assert not out.exists()


def test_an_atlas_holds_labels(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """NaN, 2.5 and 3e9 are no labels and are not cut to one; a folder or text is no image; 9.999 is 10."""
    atlas, table, signal = lost
    save(tmp_path / "scans/a.nii.gz", signal)
    whole = np.asarray(nibabel.load(atlas).dataobj).astype(np.float32)
    for value in (np.nan, 2.5, 3e9, -np.inf):
        values = whole.copy()
        values[1, 2, 3] = value
        with pytest.raises(
            DataError, match=r"float.nii.gz: voxel \(1, 2, 3\) is .* \(1 such voxels\); an atlas holds whole"
        ):
            extract(tmp_path / "scans", save(tmp_path / "float.nii.gz", values, 1), table, tmp_path / "out")
    with pytest.raises(DataError, match="scans: is a folder; name a NIfTI file"):
        extract(tmp_path / "scans", tmp_path / "scans", table, tmp_path / "out")
    with pytest.raises(DataError, match="labels.csv: cannot be read as NIfTI"):
        extract(tmp_path / "scans", table, table, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = extract(tmp_path / "scans", save(tmp_path / "float.nii.gz", whole - 0.001, 1), table, tmp_path / "out")
    assert done.flat == {}


@pytest.mark.parametrize(("value", "fault"), [(0.0, "is singular"), (np.nan, "has values that are not finite")])
def test_images_need_a_place_in_space(
    lost: tuple[Path, Path, np.ndarray], tmp_path: Path, value: float, fault: str
) -> None:
    """A singular affine, or one with NaN, is one error for scan, atlas and mask."""
    atlas, table, signal = lost

    def nowhere(path: Path, values: np.ndarray) -> Path:
        path.parent.mkdir(exist_ok=True)
        image = nibabel.Nifti1Image(values, None)
        image.header["sform_code"] = 1
        for row, name in enumerate(("srow_x", "srow_y", "srow_z")):
            image.header[name] = np.diag([value, 1, 1, 1])[row]
        nibabel.save(image, path)
        return path

    save(tmp_path / "scans/a.nii.gz", signal)
    bad = nowhere(tmp_path / "bad.nii.gz", np.ones((12, 12, 12), np.int16))
    with pytest.raises(DataError, match=f"bad.nii.gz: the affine {fault}"):
        extract(tmp_path / "scans", bad, table, tmp_path / "out")
    with pytest.raises(DataError, match=f"bad.nii.gz: the affine {fault}"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out", mask=bad)
    nowhere(tmp_path / "more/scan.nii.gz", signal)
    with pytest.raises(DataError, match=f"scan.nii.gz: the affine {fault}"):
        extract(tmp_path / "more", atlas, table, tmp_path / "out")


def test_a_scan_of_one_volume_and_an_empty_mask_are_named(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """Both would give flat columns only."""
    atlas, table, signal = lost
    save(tmp_path / "scans/a.nii.gz", signal)
    mask = save(tmp_path / "mask.nii.gz", np.full((4, 4, 4), np.nan, np.float32))
    with pytest.raises(DataError, match="mask.nii.gz: no voxel of the mask is above 0"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out", mask=mask)
    save(tmp_path / "scans/a.nii.gz", signal[..., :1])
    with pytest.raises(DataError, match="a.nii.gz: 1 volume in the scan, a series needs at least 3"):
        extract(tmp_path / "scans", atlas, table, tmp_path / "out")


def test_tables_of_other_encodings(lost: tuple[Path, Path, np.ndarray], tmp_path: Path) -> None:
    """UTF-8 with a byte order mark is read; latin-1, UTF-16 and a folder are one error each."""
    atlas, table, signal = lost
    save(tmp_path / "scans/a.nii.gz", signal)
    text = "label,name\n10,Cortex é\n101,b\n"
    for encoding, message in (("latin-1", "byte 0xe9 is not UTF-8"), ("utf-16", "byte 0xf[ef] is not UTF-8")):
        table.write_bytes(text.encode(encoding))
        with pytest.raises(DataError, match=f"labels.csv: cannot be read as CSV: {message}"):
            extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    with pytest.raises(DataError, match="scans: cannot be read as CSV .*directory"):
        extract(tmp_path / "scans", atlas, tmp_path / "scans", tmp_path / "out")
    table.write_bytes(text.encode("utf-8-sig"))
    done = extract(tmp_path / "scans", atlas, table, tmp_path / "out")
    assert done.unnamed == (802, 3455)
    assert "10,Cortex é," in (tmp_path / "out/regions.csv").read_text(encoding="utf-8")
