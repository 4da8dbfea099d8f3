import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.manifest import read_manifest, site_folders
from monai_fedskew.data.synthetic import SITES, write_synthetic_abide, write_synthetic_study
from monai_fedskew.errors import ConfigError, DataError


def test_study_follows_the_data_contract(tmp_path: Path) -> None:
    """Each site is a prepared folder that reads back: 20 subjects of 6 rows, half with label 1, 66 edges."""
    folders = site_folders(write_synthetic_study(tmp_path))
    assert list(folders) == ["EAST", "NORTH", "SOUTH", "WEST"]
    for folder in folders.values():
        manifest = read_manifest(folder)
        assert (manifest.n_rows, manifest.n_features) == np.load(folder / "vectors.npy").shape == (120, 66)
        assert sum(subject.label for subject in manifest.subjects) == 10


def test_study_is_seeded_and_skewed(tmp_path: Path) -> None:
    """The same seed gives the same bytes, another seed others, and sites differ in the spread of their values."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_synthetic_study(tmp_path / name, sites=("NORTH", "SOUTH"), seed=seed)
    a, b, c = ((tmp_path / name / "SOUTH" / "vectors.npy").read_bytes() for name in "abc")
    assert a == b != c
    north, south = (read_manifest(tmp_path / "a" / site).summary["std"] for site in ("NORTH", "SOUTH"))
    assert south > 1.05 * north


def test_abide_tree_looks_like_the_real_one(tmp_path: Path) -> None:
    """111 labelled columns with #3455 at position 82, a scan of the site's length, a table with the known oddities."""
    write_synthetic_abide(tmp_path, scanners=SITES[:1], subjects=4)
    root = tmp_path / "ABIDE_pcp"
    header, *lines = (root / "cpac" / "filt_noglobal" / "NORTH_0000001_rois_ho.1D").read_text().splitlines()
    labels = header.split("\t")
    assert (len(labels), labels[0], labels[82], labels[-1]) == (111, "#10", "#3455", "#4802")
    assert len(lines) == SITES[0].volumes
    table = list(csv.DictReader((root / "Phenotypic_V1_0b_preprocessed1.csv").read_text().splitlines()))
    assert {row["DX_GROUP"] for row in table} == {"1", "2"}
    assert [row["FILE_ID"] for row in table].count("no_filename") == 1
    assert "fail" in {row["qc_rater_1"] for row in table}


def test_abide_tree_has_what_must_be_excluded(tmp_path: Path) -> None:
    """The last site has a subject with a dead region and one with a scan of 20 volumes."""
    write_synthetic_abide(tmp_path, scanners=SITES[-1:], subjects=2)
    scans = [np.loadtxt(path) for path in sorted(tmp_path.rglob("*.1D"))]
    assert sum(bool((np.delete(scan, 82, axis=1).std(axis=0) == 0).any()) for scan in scans) == 1
    assert min(len(scan) for scan in scans) == 20


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An existing tree or site is an error that names it."""
    write_synthetic_abide(tmp_path, scanners=SITES[:1], subjects=2)
    with pytest.raises(DataError, match="ABIDE_pcp exists"):
        write_synthetic_abide(tmp_path)
    write_synthetic_study(tmp_path, sites=("EAST",))
    with pytest.raises(DataError, match="EAST exists"):
        write_synthetic_study(tmp_path, sites=("EAST",))
    with pytest.raises(ConfigError, match="subjects=1"):
        write_synthetic_study(tmp_path / "new", subjects=1)


def test_names_of_sites_stay_inside_the_folder(tmp_path: Path) -> None:
    """A name with a folder in it is refused before anything is written."""
    with pytest.raises(DataError, match="synthetic study: a site's name is '../evil'"):
        write_synthetic_study(tmp_path / "a", sites=("A", "../evil"))
    with pytest.raises(DataError, match="synthetic ABIDE: a site's name is '../evil'"):
        write_synthetic_abide(tmp_path / "a", scanners=[dataclasses.replace(SITES[0], site="../evil")])
    assert list(tmp_path.iterdir()) == []
