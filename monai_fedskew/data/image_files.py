"""Single image files as a dataset, each exactly as its row of a prepared site would be."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from monai_fedskew.data.imaging.convert import as_row
from monai_fedskew.data.imaging.found import stem
from monai_fedskew.data.imaging.options import require_range
from monai_fedskew.data.imaging.read import read_pixels
from monai_fedskew.errors import ConfigError

__all__ = ["ImageFiles"]


class ImageFiles(Dataset[dict[str, Tensor]]):
    """Serve image files for inference, read and converted as ``fedskew images prepare --size`` does.

    Args:
        files: paths of images; one path is a list of one. A folder is a DICOM series.
        shape: (channels, *spatial) that the network was trained with.
        value_range: what black and white of picture formats become, as in ``--range``.

    Attributes:
        rows: 0, 1, ... in the order of ``files``, int64, shape (files,).
        labels: -1, as nothing is known, int64, shape (files,).
        subject_ids: name of each file without its ending, shape (files,).

    Raises:
        ConfigError: no files, a shape of less than two spatial axes, or a range that is none.
        DataError: when an item is read that is no image, or has channels that cannot become those of ``shape``.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     Image.new("L", (8, 6), 255).save(f"{tmp}/cell.png")
        ...     data = ImageFiles(f"{tmp}/cell.png", shape=(3, 4, 4))
        ...     data[0]["image"].shape, float(data[0]["image"].max()), data.subject_ids.tolist()
        (torch.Size([3, 4, 4]), 1.0, ['cell'])
    """

    def __init__(
        self,
        files: str | Path | Sequence[str | Path],
        *,
        shape: Sequence[int],
        value_range: Sequence[float] = (0.0, 1.0),
    ) -> None:
        given = [files] if isinstance(files, str | Path) else files
        self.files = tuple(Path(path) for path in given if str(path))
        self.shape = tuple(int(size) for size in shape)
        if not self.files:
            raise ConfigError("no image file is named; give the path of one, e.g. --image scan.png")
        if len(self.shape) not in (3, 4) or min(self.shape) < 1:
            raise ConfigError(f"shape {list(self.shape)}: give (channels, height, width) or (channels, h, w, depth)")
        low, high = (float(value) for value in value_range)
        require_range((low, high))
        self.value_range = (low, high)
        self.rows: NDArray[np.int64] = np.arange(len(self.files))
        self.labels: NDArray[np.int64] = np.full(len(self.files), -1, np.int64)
        self.subject_ids: NDArray[np.str_] = np.array([stem(path) for path in self.files])

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return ``{"image": float32 of shape}`` of one file."""
        path = self.files[index]
        row = as_row(read_pixels([path]), self.shape, self.value_range, where=str(path))
        return {"image": torch.from_numpy(row.copy())}
