"""Images of a prepared site that stay files, read by MONAI's transforms, with one of MONAI's caches or none."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from monai.data import CacheDataset
from monai.data import Dataset as PlainDataset
from monai.transforms import Compose
from numpy.typing import NDArray
from torch.utils.data import Dataset

from monai_fedskew.data.datalist import site_datalist
from monai_fedskew.data.datasets import SplitName
from monai_fedskew.errors import ConfigError

__all__ = ["Cache", "SiteImages"]

Cache = Literal["none", "memory"]


class SiteImages(Dataset[Any]):
    """Serve the images of one split of a prepared site through dictionary transforms.

    Args:
        folder: a site's folder, written by ``fedskew images prepare``.
        split: ``train``, ``validation``, ``test`` or ``all``.
        transform: dictionary transforms, in order; they get the entries of `site_datalist`.
        cache: "memory" keeps what the transforms before the first random one give.
        fold, folds, validation_fraction, split_seed: see `site_datalist`.

    Attributes:
        site: name of the site.
        labels: class of each image, int64, shape (n,); 0 where a mask says more.
        rows: number of each image in the manifest, shape (n,).
        groups: number of each image's group (patient) in this split, shape (n,).
        subject_ids: name of each image's group, shape (n,).

    Raises:
        ConfigError: an unknown split or cache.
        DataError: the folder holds no prepared site, or one whose images are no files.
    """

    def __init__(
        self,
        folder: str | Path,
        split: SplitName,
        transform: Sequence[Callable[..., Any]],
        *,
        cache: Cache = "none",
        fold: int = 0,
        folds: int = 5,
        validation_fraction: float = 0.1,
        split_seed: int = 0,
    ) -> None:
        if cache not in get_args(Cache):
            raise ConfigError(f"cache is {cache!r}; it must be one of {', '.join(get_args(Cache))}")
        entries = site_datalist(
            folder, split, fold=fold, folds=folds, validation_fraction=validation_fraction, split_seed=split_seed
        )
        self.site: str = entries[0]["site"] if entries else Path(folder).name
        self.rows: NDArray[np.int64] = np.array([entry["row"] for entry in entries], np.int64)
        self.subject_ids: NDArray[np.str_] = np.array([entry["subject"] for entry in entries], np.str_)
        self.groups: NDArray[np.int64] = np.unique(self.subject_ids, return_inverse=True)[1].astype(np.int64)
        classes = [0 if isinstance(entry["label"], str) else entry["label"] for entry in entries]
        self.labels: NDArray[np.int64] = np.array(classes, np.int64)
        steps = Compose(list(transform))
        if cache == "memory":
            self._images = CacheDataset(entries, steps, progress=False, num_workers=None)
        else:
            self._images = PlainDataset(entries, steps)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        """Return what the transforms make of one image: a dictionary, or a list of them for several crops."""
        return self._images[int(index)]
