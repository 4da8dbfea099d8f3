"""The mask of one volume."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor

from monai_fedskew.errors import DataError, StateError
from monai_fedskew.handlers import MaskFile

AFFINE = np.array([[0.0, -2.0, 0.0, 7.0], [0.5, 0.0, 0.0, -3.0], [0.0, 0.0, 3.0, 1.0], [0.0, 0.0, 0.0, 1.0]])


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Four by three by two voxels, turned and shifted in space, in millimetres."""
    path = tmp_path / "Case.01.nii.gz"
    image = nib.Nifti1Image(np.zeros((4, 3, 2), np.int16), AFFINE)
    image.header.set_xyzt_units("mm")
    nib.save(image, path)
    return path


def test_the_mask_lies_on_its_volume(volume: Path, tmp_path: Path) -> None:
    """Classes, affine and units, of a decollated MetaTensor; a mask of that name is replaced."""
    classes = torch.arange(24).reshape(4, 3, 2) % 3
    logits = MetaTensor(torch.nn.functional.one_hot(classes, 3).movedim(-1, 0).float())
    engine = Engine(lambda engine, batch: [{"pred": batch}])
    MaskFile(volume, tmp_path / "out").attach(engine)
    engine.run([0 * logits])
    engine.run([logits])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["Case.01_mask.nii.gz"]
    mask = nib.load(tmp_path / "out" / "Case.01_mask.nii.gz")
    np.testing.assert_array_equal(np.asarray(mask.dataobj), classes.numpy())
    np.testing.assert_array_equal(mask.affine, AFFINE)
    assert mask.get_data_dtype() == np.uint8
    assert mask.header.get_xyzt_units() == ("mm", "unknown")


def test_what_cannot_be_a_mask_is_refused(volume: Path, tmp_path: Path) -> None:
    """No file, no NIfTI file, no single volume, another grid, a prediction that is not finite; nothing is written."""
    with pytest.raises(DataError, match=r"--image .*absent.nii: no such file"):
        MaskFile(tmp_path / "absent.nii", tmp_path)
    (tmp_path / "scan.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"scan.png: must be a NIfTI file"):
        MaskFile(tmp_path / "scan.png", tmp_path)
    (tmp_path / "torn.nii").write_bytes(b"1234")
    with pytest.raises(DataError, match=r"torn.nii: cannot be read"):
        MaskFile(tmp_path / "torn.nii", tmp_path)
    nib.save(nib.Nifti1Image(np.zeros((2, 2, 2, 20), np.int16), AFFINE), tmp_path / "bold.nii")
    with pytest.raises(DataError, match=r"bold.nii: its shape is \(2, 2, 2, 20\); give one volume"):
        MaskFile(tmp_path / "bold.nii", tmp_path)
    writer = MaskFile(volume, tmp_path / "out")
    with pytest.raises(StateError, match=r"shape \(2, 3, 4, 2\) for an image of \(4, 3, 2\)"):
        writer.write(torch.zeros(2, 3, 4, 2))
    with pytest.raises(StateError, match="must be finite"):
        writer.write(torch.full((2, 4, 3, 2), torch.nan))
    assert not (tmp_path / "out").exists()
