from pathlib import Path

import nibabel
import numpy as np
import pytest

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms import measure_files


def arrays(folder: Path, *values) -> list[Path]:
    """One .npy file each."""
    files = [folder / f"{k}.npy" for k in range(len(values))]
    for file, value in zip(files, values, strict=True):
        np.save(file, np.asarray(value, dtype=np.float32))
    return files


def test_processes_do_not_matter(tmp_path) -> None:
    """Two spawned processes, files in another order: the same bits."""
    rng = np.random.default_rng(0)
    files = arrays(tmp_path, *(rng.normal(k, 1 + k, (2, 5, 4)) for k in range(5)))
    told = []

    alone = measure_files(files, site="A", load=np.load)
    together = measure_files(
        files[::-1], site="A", load=np.load, workers=2, on_file=lambda done, of: told.append((done, of))
    )

    assert together == alone
    assert told == [(k, 5) for k in range(1, 6)]


def test_nifti_is_read_channel_first_by_default(tmp_path) -> None:
    """Volumes of different sizes: (1+2+3+4)/4 = 2.5 and 10 give (2.5 + 10) / 2; a mask keeps 3 and 4."""
    for name, values in (("a", [[[1, 2], [3, 4]]]), ("b", [[[10, 10, 10]]]), ("m", [[[0, 0], [1, 1]]])):
        nibabel.save(nibabel.Nifti1Image(np.array(values, np.int16), np.eye(4)), tmp_path / f"{name}.nii.gz")

    assert measure_files([tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"], site="A").mean == (6.25,)
    found = measure_files([tmp_path / "a.nii.gz"], site="A", masks=[tmp_path / "m.nii.gz"])
    assert (found.mean, found.region) == ((3.5,), "mask")


def test_the_file_is_named(tmp_path) -> None:
    """Case 17 and files that cannot be read."""
    files = arrays(tmp_path, [[1, 2]], [[0, 0]])
    with pytest.raises(DataError, match=r"site A, .*1\.npy: no foreground in channel 0"):
        measure_files(files, site="A", region="nonzero", load=np.load)
    files[0].write_text("no array")
    with pytest.raises(DataError, match=r"site A, .*0\.npy: cannot be read \("):
        measure_files(files, site="A", load=np.load)


def test_wrong_calls_are_refused(tmp_path) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigError, match="site A: 1 masks for 2 files"):
        measure_files(["a", "b"], site="A", masks=["c"])
    with pytest.raises(ConfigError, match="site A: workers=-1 must be a whole number"):
        measure_files(["a"], site="A", workers=-1)
    with pytest.raises(DataError, match="site A: no training example"):
        measure_files([], site="A")
