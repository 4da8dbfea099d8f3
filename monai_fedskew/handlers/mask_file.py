"""The predicted mask of one volume as a NIfTI file on that volume's own grid."""

import os
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import Tensor

from monai_fedskew.errors import DataError, StateError

__all__ = ["MaskFile"]


class MaskFile:
    """Write the class of each voxel to ``<name of the image>_mask.nii.gz``.

    The evaluator must be decollating, with ``pred`` inverted to the image's own grid (MONAI's ``Invertd``). Affine and
    units are copied from the image's header, so the mask lies on it in any viewer.

    Args:
        image: the NIfTI file that is predicted.
        folder: where the mask goes; made if absent, a mask of that name is replaced.

    Raises:
        DataError: there is no such file, it is no NIfTI file, or more or less than one volume.
        StateError: when the prediction is not finite or has another size than the image.

    Example:
        >>> import tempfile, nibabel, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nibabel.save(nibabel.Nifti1Image(np.zeros((2, 2, 1)), np.diag([2.0, 2, 3, 1])), f"{folder}/a.nii")
        ...     mask = MaskFile(f"{folder}/a.nii", folder).write(torch.ones(2, 2, 2, 1).cumsum(0))
        ...     mask.name, np.asarray(nibabel.load(mask).dataobj).tolist()
        ('a_mask.nii.gz', [[[1], [1]], [[1], [1]]])
    """

    def __init__(self, image: str | Path, folder: str | Path) -> None:
        self.image, self.folder = Path(image), Path(folder)
        if not self.image.is_file():
            raise DataError(f"--image {self.image.absolute()}: no such file")
        if not self.image.name.endswith((".nii", ".nii.gz")):
            raise DataError(f"--image {self.image}: must be a NIfTI file, .nii or .nii.gz")
        import nibabel as nib  # here: segmenting alone needs it
        from nibabel.filebasedimages import ImageFileError

        try:
            shape = nib.load(self.image).shape
        except ImageFileError as error:
            raise DataError(f"--image {self.image}: cannot be read ({error})") from error
        if len(shape) < 3 or set(shape[3:]) - {1}:
            raise DataError(f"--image {self.image}: its shape is {shape}; give one volume of three dimensions")

    def attach(self, engine: Engine) -> None:
        """Listen to an evaluator of this one image."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: self.write(engine.state.output[0]["pred"]))

    def write(self, logits: Tensor) -> Path:
        """Write the class of the largest of the logits, (classes, X, Y, Z) on any device; return the file."""
        import nibabel as nib  # as above

        source = nib.load(self.image)
        plain = logits.detach().as_subclass(Tensor)  # a MetaTensor keeps its meta data through every operation
        if plain.shape[1:] != source.shape[:3] or not bool(torch.isfinite(plain).all()):
            raise StateError(
                f"{self.image}: prediction of shape {tuple(plain.shape)} for an image of {source.shape}; it must be "
                "finite and on the image's own grid (Invertd)"
            )
        mask = plain.argmax(0).to("cpu", torch.uint8).numpy()
        result = nib.Nifti1Image(mask, source.affine, dtype=np.uint8)
        result.header.set_xyzt_units(*source.header.get_xyzt_units())
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self.image.name.removesuffix(".gz").removesuffix(".nii")
        target = self.folder / f"{name}_mask.nii.gz"
        part = target.with_name(f".{os.getpid()}-{target.name}")
        nib.save(result, part)
        part.replace(target)
        return target
