from pathlib import Path

import pytest
import yaml

from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.scaffold import new_bundle


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Two prepared sites."""
    return write_synthetic_study(tmp_path / "prepared", sites=("NYU", "EAST"))


def test_own_bundle_knows_one_site(tmp_path: Path, prepared: Path) -> None:
    """Only the hospital's overlay is there; it names the data and the size of its vectors."""
    out = new_bundle("abide_connectome", site="NYU", data=prepared, out=tmp_path / "mine")
    assert [path.name for path in out.glob("configs/site_*")] == ["site_nyu.yaml"]
    overlay = yaml.safe_load((out / "configs" / "site_nyu.yaml").read_text())
    assert (overlay["site"], overlay["in_features"]) == ("NYU", 66)
    assert overlay["dataset_dir"] == str(prepared / "NYU")
    assert "site_nyu.yaml" in (out / "README.md").read_text()


def test_data_inside_are_named_relative(tmp_path: Path) -> None:
    """Data below the bundle move with it: no absolute path in the overlay."""
    out = tmp_path / "mine"
    write_synthetic_study(out / "data", sites=("EAST",))
    new_bundle("abide_connectome", site="EAST", data=out / "data" / "EAST", out=out, force=True)
    text = (out / "configs" / "site_east.yaml").read_text()
    assert str(tmp_path) not in text
    assert yaml.safe_load(text)["dataset_dir"] == "$@bundle_root + '/data/EAST'"
    assert (out / "data" / "EAST" / "vectors.npy").is_file()


def test_nothing_is_overwritten_unasked(tmp_path: Path, prepared: Path) -> None:
    """A folder that holds something is refused; force replaces the bundle's files and leaves others."""
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("keep")
    with pytest.raises(ConfigError, match=f"{out} exists and is not empty.*--force"):
        new_bundle("abide_connectome", site="NYU", data=prepared, out=out)
    new_bundle("abide_connectome", site="NYU", data=prepared, out=out, force=True)
    assert (out / "notes.txt").read_text() == "keep"


def test_unknown_site_or_data_write_nothing(tmp_path: Path, prepared: Path) -> None:
    """A wrong site names those there are, wrong data its path; no folder is left behind."""
    with pytest.raises(DataError, match="site 'USM': not among the prepared sites .*: EAST, NYU"):
        new_bundle("abide_connectome", site="USM", data=prepared, out=tmp_path / "mine")
    with pytest.raises(DataError, match="site 'USM': .* holds site 'NYU'"):
        new_bundle("abide_connectome", site="USM", data=prepared / "NYU", out=tmp_path / "mine")
    with pytest.raises(DataError, match="nowhere does not exist"):
        new_bundle("abide_connectome", site="NYU", data=tmp_path / "nowhere", out=tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
