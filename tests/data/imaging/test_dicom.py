"""DICOM series as volumes."""

import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
from small_images import series

from monai_fedskew.data.imaging.dicom import read_series, write_nifti
from monai_fedskew.errors import DataError

pytest.importorskip("pydicom", reason="the extra dicom is not installed")
VOLUME = np.arange(24).reshape(3, 4, 2)  # slices, rows, columns


def test_values_are_physical_and_slices_lie_in_order(tmp_path: Path) -> None:
    """Slope 2 and intercept -1000; files are named against their order, positions count. Axes: column, row, slice."""
    pixels = read_series(series(tmp_path / "s", VOLUME))
    assert np.array_equal(pixels.values[0], np.moveaxis(VOLUME, 0, -1).transpose(1, 0, 2) * 2.0 - 1000)


def test_the_affine_is_ras(tmp_path: Path) -> None:
    """Column 1, row 3, slice 2 lies at LPS (-10 + 0.25, -20 + 3*0.5, 5 + 2*2), in RAS (9.75, 18.5, 9)."""
    pixels = read_series(series(tmp_path / "s", VOLUME))
    assert pixels.affine is not None
    assert np.allclose(pixels.affine @ [1, 3, 2, 1], [9.75, 18.5, 9.0, 1.0])
    assert (pixels.orientation, pixels.spacing) == ("LPS", (0.25, 0.5, 2.0))


def test_tilted_slices_keep_their_place(tmp_path: Path) -> None:
    """Sagittal: rows run to posterior, columns to the feet; each voxel lies where its slice says."""
    folder = series(tmp_path / "s", VOLUME[:1], ImageOrientationPatient=[0, 1, 0, 0, 0, -1])
    pixels = read_series(folder)
    assert pixels.affine is not None
    assert np.allclose(pixels.affine @ [1, 0, 0, 1], [10, 20 - 0.25, 5, 1])
    assert np.allclose(pixels.affine @ [0, 1, 0, 1], [10, 20, 5 - 0.5, 1])


def test_nifti_is_the_same_volume(tmp_path: Path) -> None:
    """Values, affine and unit."""
    folder = series(tmp_path / "s", VOLUME)
    write_nifti(folder, tmp_path / "a.nii.gz")
    image, pixels = nibabel.load(tmp_path / "a.nii.gz"), read_series(folder)
    assert np.array_equal(image.get_fdata(), pixels.values[0])
    assert np.allclose(image.affine, pixels.affine)
    assert image.header.get_xyzt_units()[0] == "mm"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"positions": [5.0, 7.0, 11.0]}, "a slice is missing, or spacing is uneven: .* are (2|4) mm apart"),
        ({"positions": [5.0, 7.0, 7.0]}, "two slices lie at one place"),
        ({"NumberOfFrames": 3}, "colours or several frames"),
        ({"NumberOfFrames": None}, "an attribute that is needed is empty or missing"),
        ({"RescaleSlope": None}, "an attribute that is needed is empty or missing"),
        ({"PixelSpacing": None}, "has no PixelSpacing; export the series again"),
    ],
)
def test_what_is_no_volume_is_refused(changes: dict[str, object], text: str, tmp_path: Path) -> None:
    """A gap, a double slice, an enhanced object, attributes without a value."""
    with pytest.raises(DataError, match=text):
        read_series(series(tmp_path / "s", VOLUME, **changes))


def test_mixed_series_are_refused(tmp_path: Path) -> None:
    """Two series in one folder, a scout of another size, a file that is no DICOM, one without position."""
    folder = series(tmp_path / "s", VOLUME)
    (folder / "slice_01.dcm").rename(folder / "own.dcm")
    series(folder, VOLUME[:1])
    with pytest.raises(DataError, match="slices of 2 series"):
        read_series(folder)
    scout = series(tmp_path / "t", VOLUME[:2], series_uid="1.2.3")
    (scout / "slice_01.dcm").rename(scout / "own.dcm")
    series(scout, VOLUME[:1, :2], series_uid="1.2.3", positions=[9.0])
    with pytest.raises(DataError, match="slices differ in Rows: 2"):
        read_series(scout)
    (tmp_path / "u").mkdir()
    (tmp_path / "u" / "a.dcm").write_text("nothing")
    with pytest.raises(DataError, match=r"a\.dcm is no DICOM file"):
        read_series(tmp_path / "u")


def test_without_pydicom_the_extra_is_named(tmp_path: Path) -> None:
    """One line that says what to install; exit code 2."""
    series(tmp_path / "data" / "HK" / "scan" / "s1", VOLUME)
    code = (
        "import sys; sys.modules['pydicom'] = None\n"
        "from monai_fedskew.cli.main import main\n"
        f"main(['images', 'prepare', {str(tmp_path / 'data')!r}, '--out', {str(tmp_path / 'out')!r}])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2, found.stderr
    assert "needs pydicom: pip install 'monai-fedskew[dicom]'" in found.stderr
