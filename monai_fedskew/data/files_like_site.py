"""Single image files, each as the images are that a site has prepared."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from monai_fedskew.data.image_files import ImageFiles
from monai_fedskew.data.manifest import read_manifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["FilesLikeSite"]


class FilesLikeSite(Dataset[dict[str, Tensor]]):
    """Serve image files for inference as the network met images in training.

    Size and range of values are those of the site's prepared images, unless they are given. Where the prepared images
    are grey, a file becomes grey, and is repeated to as many channels as the network takes.

    Args:
        files: paths of images; one path is a list of one.
        folder: the site's prepared images.
        channels: that the network takes.
        size: spatial size the network was trained with; the folder is then not looked at.
        value_range: what black and white of picture formats become where the prepared site does not say.

    Attributes:
        rows: number of each file, shape (n,).
        labels: -1 for each file, as nothing is known, shape (n,).
        subject_ids: name of each file without its ending, shape (n,).

    Raises:
        ConfigError: no file, or other channels than the network takes.
        DataError: no prepared images in the folder, or, when an item is read, a file that is no image.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     Image.new("L", (8, 6), 255).save(f"{tmp}/seven.png")
        ...     data = FilesLikeSite(f"{tmp}/seven.png", "", channels=3, size=(4, 4), value_range=(-1, 1))
        ...     data[0]["image"].shape, float(data[0]["image"].max()), data.subject_ids.tolist()
        (torch.Size([3, 4, 4]), 1.0, ['seven'])
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        folder: str | Path,
        *,
        channels: int,
        size: Sequence[int] | None = None,
        value_range: Sequence[float] = (0.0, 1.0),
    ) -> None:
        shape = (channels, *(size or ()))
        if size is None:
            shape, value_range = _of_site(Path(folder), value_range)
        if shape[0] not in (1, channels):
            raise ConfigError(
                f"{Path(folder).absolute()}: its images have {shape[0]} channels, the network takes {channels}; give "
                "the data it was trained with (--dataset_dir)"
            )
        self.channels = channels
        self._files = ImageFiles(files, shape=shape, value_range=value_range)
        self.rows: NDArray[np.int64] = np.arange(len(self._files))
        self.labels: NDArray[np.int64] = np.full(len(self._files), -1)
        self.subject_ids: NDArray[np.str_] = np.array(self._files.subject_ids)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one file: ``image`` (channels, *spatial) float32."""
        image = self._files[index]["image"]
        return {"image": image.repeat(self.channels // len(image), *[1] * (image.ndim - 1))}


def _of_site(folder: Path, value_range: Sequence[float]) -> tuple[tuple[int, ...], Sequence[float]]:
    """Shape and range of a site's prepared images."""
    if not folder.is_dir():
        raise DataError(
            f"no prepared site at {folder.absolute()}, whose images tell the size that the network was trained with; "
            "give --dataset_dir, or the size: --image_size '[96,96]'"
        )
    manifest = read_manifest(folder)
    if not manifest.shape:
        raise DataError(f"{folder.absolute()}: holds vectors, not images; give the data the network was trained with")
    told = manifest.notes.get("range")
    return manifest.shape, [float(value) for value in told.split(",")] if told else value_range
