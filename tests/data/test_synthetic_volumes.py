"""Generated sites of prostate-like volumes: what differs from site to site, and that nothing else does."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from monai_fedskew.data.synthetic_volumes import PROSTATE_SITES, write_prostate_volumes
from monai_fedskew.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two coarse cases of each of the six sites."""
    return write_prostate_volumes(tmp_path_factory.mktemp("volumes") / "raw", cases=2, coarseness=6)


def test_each_site_has_its_orientation_and_spacing(six: Path) -> None:
    """The header says what the scanner's row says, and image and mask lie on one grid."""
    assert sorted(path.name for path in six.iterdir()) == sorted(PROSTATE_SITES)
    for site, scanner in PROSTATE_SITES.items():
        image, mask = (nib.load(six / site / f"Case01{end}.nii.gz") for end in ("", "_segmentation"))
        assert nib.aff2axcodes(image.affine) == tuple(scanner.axes)
        in_ras = nib.as_closest_canonical(image).header.get_zooms()
        np.testing.assert_allclose(in_ras, [scanner.spacing_mm[0] * 6] * 2 + [scanner.spacing_mm[1]], rtol=1e-5)
        assert image.get_data_dtype() == scanner.dtype
        assert image.shape == mask.shape
        np.testing.assert_array_equal(image.affine, mask.affine)


def test_the_gland_has_the_size_of_one_in_millimetres(six: Path) -> None:
    """Radii of 22, 16 and 18 mm times 0.8 .. 1.2 hold 13.6 .. 45.9 ml, whatever the voxels are."""
    for path in six.glob("*/*_segmentation.nii.gz"):
        mask = nib.load(path)
        values = np.asarray(mask.dataobj)
        assert set(np.unique(values)) == {0, 1}
        volume_ml = values.sum() * abs(np.linalg.det(mask.affine[:3, :3])) / 1000
        assert 12 < volume_ml < 50, path


def test_a_voxel_keeps_its_place_whatever_the_orientation(six: Path) -> None:
    """The bladder is the brightest tissue and lies above the gland in the room, the dark rectum behind it."""
    for site in ("I2CVB", "ISBI", "UCL"):  # those with little bias field
        image, mask = (
            nib.as_closest_canonical(nib.load(six / site / f"Case00{end}.nii.gz")) for end in ("", "_segmentation")
        )
        signal, centre = image.get_fdata(), np.argwhere(mask.get_fdata() > 0).mean(0).round().astype(int)
        column, row = signal[centre[0], centre[1]], signal[centre[0], : centre[1], centre[2]]
        assert column[-3:].mean() > 1.4 * column[:3].mean()
        assert row.min() < 0.6 * signal[tuple(centre)]


def test_sites_differ_in_intensity(six: Path) -> None:
    """The means of two sites differ by more than the cases of one site do."""
    means = {
        site: [nib.load(six / site / f"Case0{case}.nii.gz").get_fdata().mean() for case in (0, 1)]
        for site in PROSTATE_SITES
    }
    assert max(max(pair) / min(pair) for pair in means.values()) < 1.5
    assert max(means["BIDMC"]) > 10 * max(means["UCL"])


def test_equal_arguments_give_equal_bytes(six: Path, tmp_path: Path) -> None:
    """A site's first case depends neither on the other sites nor on the number of cases; another seed differs."""
    again = write_prostate_volumes(tmp_path / "again", sites=("HK",), cases=1, coarseness=6)
    other = write_prostate_volumes(tmp_path / "other", sites=("HK",), cases=1, coarseness=6, seed=1)
    name = Path("HK") / "Case00.nii.gz"
    assert (again / name).read_bytes() == (six / name).read_bytes()
    assert (other / name).read_bytes() != (six / name).read_bytes()


def test_what_cannot_be_written_is_refused(six: Path, tmp_path: Path) -> None:
    """An unknown site, a number out of range, a folder that is there."""
    with pytest.raises(ConfigError, match="unknown site 'RUNMC'; there are BIDMC, HK"):
        write_prostate_volumes(tmp_path, sites=("RUNMC",))
    with pytest.raises(ConfigError, match=r"coarseness=0\.5; must lie in 1 \.\. 8"):
        write_prostate_volumes(tmp_path, coarseness=0.5)
    with pytest.raises(ConfigError, match="cases=0 must be a whole number, 1 or more"):
        write_prostate_volumes(tmp_path, cases=0)
    with pytest.raises(DataError, match="HK exists already"):
        write_prostate_volumes(six, sites=("HK",))
    assert not list(tmp_path.iterdir())
