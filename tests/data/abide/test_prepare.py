import csv
import dataclasses
import json
import logging
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.abide.atlas import harvard_oxford
from monai_fedskew.data.abide.connectome import Edges
from monai_fedskew.data.abide.prepare import Options, prepare
from monai_fedskew.data.abide.report import exclusions, site_table
from monai_fedskew.data.abide.timeseries import read_series, write_series
from monai_fedskew.data.abide.windows import ScanCache, read_rows
from monai_fedskew.data.integrity import verify_data
from monai_fedskew.data.manifest import read_manifest, site_folders
from monai_fedskew.errors import ConfigError, DataError

HO = [region.label for region in harvard_oxford()]
HO111 = sorted([*HO, "3455"], key=int)
Study = Callable[..., Path]


def scan(folder: Path, file_id: str) -> Path:
    """Find the series of a subject."""
    return next(folder.rglob(f"{file_id}_rois_ho.1D"))


def rewrite(path: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change the values of a file of series."""
    values = read_series(path, HO111).values
    change(values)
    write_series(path, HO111, values)


def column(label: str, value: float) -> Callable[[np.ndarray], None]:
    """Give one region a constant value."""

    def change(values: np.ndarray) -> None:
        values[:, HO111.index(label)] = value

    return change


def test_label_3455_goes_and_5995_edges_stay(study: Study, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 22: edge k is arctanh of np.corrcoef of its named pair; the stray column goes by its label, logged once."""
    data = study({"NYU": [40]})
    with caplog.at_level(logging.INFO, "monai_fedskew"):
        prepare(data, tmp_path / "out", Options(edges=Edges(40)))
    dropped = "dropped label 3455: two stray voxels, no region of the atlas"
    assert [record.message for record in caplog.records].count(dropped) == 1
    site = read_manifest(tmp_path / "out" / "NYU")
    vector = np.load(tmp_path / "out" / "NYU" / "vectors.npy")
    assert vector.shape == (1, 5995)
    assert vector.dtype == np.float32
    assert site.feature_names[0] == "10-11"
    values = read_series(scan(data, "NYU_0000001"), HO111).values
    place = {label: number for number, label in enumerate(HO111)}
    for k in (0, 1, 108, 109, 2500, 5993, 5994):
        first, second = (place[label] for label in site.feature_names[k].split("-"))
        expected = np.arctanh(np.corrcoef(values[:, first], values[:, second])[0, 1])
        assert vector[0, k] == pytest.approx(expected, abs=1e-5)
    assert site.regions[0].name == "Left Thalamus"
    assert site.regions[0].xyz == (-10, -19, 6)


def test_the_order_of_columns_in_the_file_does_not_matter(study: Study, tmp_path: Path) -> None:
    """Shuffled columns with their labels give the same bits."""
    data = study({"NYU": [36]})
    prepare(data, tmp_path / "a")
    path = scan(data, "NYU_0000001")
    values, order = read_series(path, HO111).values, np.random.default_rng(0).permutation(111)
    write_series(path, [HO111[k] for k in order], values[:, order])
    prepare(data, tmp_path / "b")
    assert (tmp_path / "a/NYU/vectors.npy").read_bytes() == (tmp_path / "b/NYU/vectors.npy").read_bytes()


def test_a_constant_roi_excludes_the_subject_by_default(study: Study, tmp_path: Path) -> None:
    """Case 23: left out and listed as 'constant ROI 4801'; with zero, its 109 edges are 0 and it is flagged."""
    data = study({"UM_1": [40, 40]})
    rewrite(scan(data, "UM_1_0000002"), column("4801", 3.0))
    prepare(data, tmp_path / "out", Options(edges=Edges(40)))
    site = read_manifest(tmp_path / "out" / "UM_1")
    assert [(item.id, item.reason) for item in site.excluded] == [("0000002", "constant ROI 4801")]
    prepare(data, tmp_path / "zero", Options(edges=Edges(40), constant_roi="zero"))
    site, vectors = read_manifest(tmp_path / "zero/UM_1"), np.load(tmp_path / "zero/UM_1/vectors.npy")
    assert vectors.shape == (2, 5995)
    assert np.isfinite(vectors).all()
    touches = np.array(["4801" in name.split("-") for name in site.feature_names])
    assert touches.sum() == (vectors[1] == 0).sum() == 109
    assert (vectors[1, touches] == 0).all()
    assert "0000002: constant ROI 4801" in site.notes["edges set to zero"]


def test_a_roi_that_stands_still_within_a_window_counts_too(study: Study, tmp_path: Path) -> None:
    """A region alive over the scan but still for 32 volumes would have windows without correlation."""
    data = study({"NYU": [60, 60]})

    def pause(values: np.ndarray) -> None:
        values[10:42, HO111.index("101")] = 7.5

    rewrite(scan(data, "NYU_0000001"), pause)
    (site,) = prepare(data, tmp_path / "out")
    assert [item.reason for item in site.excluded] == ["constant ROI 101 within a window"]
    (site,) = prepare(data, tmp_path / "window33", Options(edges=Edges(33)))
    assert site.excluded == ()


def test_fed_abide_looks_at_every_column_and_the_usual_length(study: Study, tmp_path: Path) -> None:
    """The predecessor's rule leaves out a dead stray column and a scan shorter than the site's others."""
    data = study({"USM": [50, 50, 48, 50]})
    rewrite(scan(data, "USM_0000002"), column("3455", 0.0))
    (site,) = prepare(data, tmp_path / "a")
    assert site.excluded == ()
    (site,) = prepare(data, tmp_path / "b", Options(exclude="fed-abide"))
    reasons = {item.id: item.reason for item in site.excluded}
    assert reasons == {"0000002": "constant ROI 3455", "0000003": "48 volumes where the site has 50"}
    with pytest.raises(ConfigError, match="constant_roi=zero is void"):
        Options(exclude="fed-abide", constant_roi="zero")


def test_scans_shorter_than_the_window_are_listed(study: Study, tmp_path: Path) -> None:
    """Case 25: windows by the formula; with w=100 the 76-volume scan is left out with id, 76 and 100."""
    data = study({"NYU": [176], "UM_1": [296], "USM": [236], "UCLA_1": [116], "OHSU": [76]})
    stride = Options(edges=Edges(32, 4), store="series")
    rows = {m.site: m.n_rows for m in prepare(data, tmp_path / "w32", stride)}
    assert rows == {"NYU": 37, "UM_1": 67, "USM": 52, "UCLA_1": 22, "OHSU": 12}
    manifests = prepare(data, tmp_path / "w100", Options(edges=Edges(100, 40), store="series"))
    assert [(m.site, item.id, item.reason) for m in manifests for item in m.excluded] == [
        ("OHSU", "0000005", "76 volumes, shorter than the window of 100")
    ]
    assert list(site_folders(tmp_path / "w100")) == ["NYU", "UCLA_1", "UM_1", "USM"]


@pytest.mark.parametrize(
    "edges", [Edges(32), Edges(30, 7, "ledoit-wolf", clip_negative=True), Edges(40, fisher_z=False)]
)
def test_series_and_vectors_give_the_same_rows(study: Study, tmp_path: Path, edges: Edges) -> None:
    """Rows computed on the fly equal the stored ones bit for bit, in any order, whatever the trailing volumes."""
    data = study({"NYU": [50, 61]})
    for store in ("vectors", "series"):
        prepare(data, tmp_path / store, Options(edges=edges, store=store))
    vectors = np.load(tmp_path / "vectors/NYU/vectors.npy")
    site = read_manifest(tmp_path / "series/NYU")
    assert site.n_rows == len(vectors)
    order = np.random.default_rng(0).permutation(len(vectors))
    assert (read_rows(tmp_path / "series/NYU", site, order) == vectors[order]).all()
    cache = ScanCache(limit=1)  # room for one scan: the other is standardised again each time
    for k in order.tolist():
        assert (read_rows(tmp_path / "series/NYU", site, np.array([k]), cache=cache) == vectors[k]).all()
    assert len(cache.scans) == 1
    stored = read_manifest(tmp_path / "vectors/NYU")
    assert (read_rows(tmp_path / "vectors/NYU", stored, order) == vectors[order]).all()
    assert stored.summary == site.summary
    with pytest.raises(DataError, match="rows 0 to 10000 asked for"):
        read_rows(tmp_path / "series/NYU", site, np.array([0, 10000]))


def test_prepare_twice_is_equal_in_every_bit(study: Study, tmp_path: Path) -> None:
    """Data and manifests agree between runs and numbers of threads; the summary is that of the whole array."""
    data = study({"NYU": [120, 50], "USM": [36]})
    prepare(data, tmp_path / "a", threads=1)
    prepare(data, tmp_path / "b", threads=3)
    for name in ("NYU/manifest.json", "NYU/vectors.npy", "USM/vectors.npy", "prepare.json", "excluded.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    site, vectors = read_manifest(tmp_path / "a/NYU"), np.load(tmp_path / "a/NYU/vectors.npy").astype(np.float64)
    assert site.summary["mean"] == pytest.approx(vectors.mean(), rel=1e-5)
    assert site.summary["std"] == pytest.approx(vectors.std(), rel=1e-5)
    assert site.summary["windows"] == len(vectors) == 89 + 19
    assert site.notes["prepared by"] == f"monai-fedskew {version('monai-fedskew')}"
    for folder in site_folders(tmp_path / "a").values():
        verify_data(folder, read_manifest(folder))
    assert [(s.id, s.start, s.stop) for s in site.subjects] == [("0000001", 0, 89), ("0000002", 89, 108)]


def test_folders_a_subject_read_like_flat_ones(study: Study, tmp_path: Path) -> None:
    """Files in a folder a subject, some of them there twice, give the same; two that differ are an error."""
    data = study({"NYU": [36, 36]})
    prepare(data, tmp_path / "flat")
    path = scan(data, "NYU_0000001")
    (path.parent / "0000001").mkdir()
    path = Path(shutil.move(path, path.parent / "0000001"))
    other = scan(data, "NYU_0000002")
    (other.parent / "0000002").mkdir()
    copy = Path(shutil.copy(other, other.parent / "0000002"))
    prepare(data, tmp_path / "nested")
    assert (tmp_path / "flat/NYU/vectors.npy").read_bytes() == (tmp_path / "nested/NYU/vectors.npy").read_bytes()
    rewrite(copy, column("10", 1.0))
    with pytest.raises(DataError, match="have one name but differ"):
        prepare(data, tmp_path / "twice")


def test_what_was_left_out_is_written(study: Study, tmp_path: Path) -> None:
    """prepare.json and excluded.csv hold options, versions, counts and reasons; labels are named."""
    data = study({"NYU": [36, 36, 36]}, diagnoses="120")
    scan(data, "NYU_0000001").unlink()
    (site,) = prepare(data, tmp_path / "out")
    report = json.loads((tmp_path / "out/prepare.json").read_text())
    assert report["sites"]["NYU"] == {"subjects": 1, "autism": 1, "control": 0, "windows": 5, "excluded": 2}
    assert report["excluded"]["NYU"]["0000002"] == "DX_GROUP is '0'; must be 1 (autism) or 2 (control)"
    assert report["options"]["edges"]["window"] == 32
    assert {"python", "numpy", "monai-fedskew"} <= set(report["versions"])
    rows = list(csv.reader((tmp_path / "out/excluded.csv").read_text().splitlines()))
    assert rows[:2] == [["site", "subject", "reason"], ["NYU", "0000001", "no file for FILE_ID NYU_0000001"]]
    assert site.label_names == ("control", "autism")
    assert site_table([site]) == [("NYU", 1, 1, 0, 5, 2)]
    assert ("NYU", "no file", 1) in exclusions([site])
    assert set(site.sources) == {"NYU_0000003_rois_ho.1D", "Phenotypic_V1_0b_preprocessed1.csv"}


def test_merging_is_stored(study: Study, tmp_path: Path) -> None:
    """Case 30: merged samples make one folder, and the manifest says so."""
    data = study({"UM_1": [36], "UM_2": [36], "USM": [36]})
    prepare(data, tmp_path / "out", Options(merge_samples=True))
    assert list(site_folders(tmp_path / "out")) == ["UM", "USM"]
    site = read_manifest(tmp_path / "out/UM")
    assert len(site.subjects) == 2
    assert site.notes["samples"] == "merged"


def cut(path: Path) -> None:
    """Take away the end of a file."""
    path.write_bytes(path.read_bytes()[:-300])


def relabel(path: Path) -> None:
    """Rename a label in the header."""
    path.write_text(path.read_text().replace("#4802", "#4803", 1))


def test_one_scan_under_two_names_is_refused(study: Study, tmp_path: Path) -> None:
    """A copy, also at another site, would put the same windows on both sides of a split with another label."""
    data = study({"NYU": [36], "USM": [36]})
    shutil.copy(scan(data, "NYU_0000001"), scan(data, "USM_0000002"))
    with pytest.raises(DataError, match="site USM: USM_0000002_rois_ho.1D has the content of NYU_0000001_rois_ho.1D"):
        prepare(data, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_series_store_of_an_unknown_estimator_is_one_error(study: Study, tmp_path: Path) -> None:
    """A manifest that names what this version cannot compute says so, with the site."""
    prepare(study({"NYU": [36]}), tmp_path / "out", Options(store="series"))
    site = dataclasses.replace(read_manifest(tmp_path / "out/NYU"), estimator="kendall")
    with pytest.raises(DataError, match="site NYU: manifest.json: estimator='kendall'"):
        read_rows(tmp_path / "out/NYU", site, np.array([0]))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut, r"NYU_0000002_rois_ho.1D, line 37: \d+ values"),
        (relabel, "NYU_0000002_rois_ho.1D, line 1: .*lacks label 4802"),
    ],
)
def test_a_damaged_scan_stops_and_leaves_nothing(
    study: Study, tmp_path: Path, harm: Callable[[Path], None], message: str
) -> None:
    """The error names file and line; no half-written folder stays behind."""
    data = study({"NYU": [36, 36]})
    harm(scan(data, "NYU_0000002"))
    with pytest.raises(DataError, match=message):
        prepare(data, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_stopping_by_hand_leaves_nothing_and_keeps_the_old(study: Study, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run with --force removes the new folder only."""
    data, out = study({"NYU": [36, 36]}), tmp_path / "out"
    prepare(data, out)
    before = (out / "NYU" / "vectors.npy").read_bytes()

    def stop(done: int, total: int, site: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(data, out, Options(edges=Edges(20)), force=True, progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]
    assert (out / "NYU" / "vectors.npy").read_bytes() == before


def test_an_existing_folder_is_kept_unless_forced(study: Study, tmp_path: Path) -> None:
    """--force replaces what prepare wrote, never another folder and never the data."""
    data, out = study({"NYU": [36]}), tmp_path / "out"
    prepare(data, out)
    with pytest.raises(ConfigError, match="out exists; choose another, or replace it with --force"):
        prepare(data, out)
    prepare(data, out, Options(edges=Edges(36)), force=True)
    assert len(np.load(out / "NYU/vectors.npy")) == 1
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    with pytest.raises(ConfigError, match="thesis is no earlier output"):
        prepare(data, tmp_path / "thesis", force=True)


def test_no_input_is_one_clear_error(study: Study, tmp_path: Path) -> None:
    """No folder, no series, no subject left."""
    with pytest.raises(DataError, match="data folder .*nowhere does not exist"):
        prepare(tmp_path / "nowhere", tmp_path / "out")
    data = study({"NYU": [30]})
    with pytest.raises(DataError, match="no subject is left of 1; first: 0000001: 30 volumes"):
        prepare(data, tmp_path / "out")
    scan(data, "NYU_0000001").unlink()
    with pytest.raises(DataError, match="no ROI series"):
        prepare(data, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        ("dead-roi", {"NYU": 170, "UCLA": 62, "UM": 86, "USM": 67}),
        ("fed-abide", {"NYU": 164, "UCLA": 56, "UM": 71, "USM": 49}),
    ],
)
def test_real_subjects_are_counted_by_rule(abide: Path, tmp_path: Path, exclude: str, expected: dict[str, int]) -> None:
    """The fedbn protocol on the real files leaves the known numbers of subjects."""
    options = Options(protocol="fedbn", edges=Edges(32, 32), exclude=exclude, store="series")
    manifests = prepare(abide, tmp_path / "out", options)
    assert {m.site: len(m.subjects) for m in manifests} == expected


def test_memory_does_not_grow_with_subjects(study: Study, tmp_path: Path) -> None:
    """Sixteen subjects peak no higher than four, give or take the vectors of one, as threads meet by chance."""
    import tracemalloc

    data = study({"A": [100] * 4, "B": [100] * 16})
    peaks = {}
    for site in ("A", "B"):
        prepare(data, tmp_path / f"warm{site}", Options(sites=(site,)), threads=1)
        tracemalloc.start()
        prepare(data, tmp_path / site, Options(sites=(site,)), threads=1)
        peaks[site] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["B"] < peaks["A"] + 1.2 * 69 * 5995 * 4


def test_real_edges_equal_an_independent_computation(abide: Path, tmp_path: Path) -> None:
    """On a real site, edges named by their pair equal arctanh of np.corrcoef of the two columns read by np.loadtxt."""
    prepare(abide, tmp_path / "out", Options(sites=("UCLA_1",), edges=Edges(32, 40)))
    site = read_manifest(tmp_path / "out/UCLA_1")
    vectors = np.load(tmp_path / "out/UCLA_1/vectors.npy")
    draw = np.random.default_rng(0)
    paths = {path.name.split("_")[2]: path for path in abide.rglob("UCLA_1_*.1D")}
    for subject in draw.permutation(np.array(site.subjects, dtype=object))[:5]:
        header = paths[subject.id].read_text().split("\n")[0].replace("#", "").split()
        values = np.loadtxt(paths[subject.id])
        for row in range(subject.start, subject.stop):
            first = 40 * (row - subject.start)
            for k in draw.integers(0, 5995, 10):
                a, b = (header.index(label) for label in site.feature_names[k].split("-"))
                r = np.corrcoef(values[first : first + 32, a], values[first : first + 32, b])[0, 1]
                assert vectors[row, k] == pytest.approx(np.arctanh(r), abs=1e-5)
