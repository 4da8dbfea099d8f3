"""Images of a prepared site that stay files, read by MONAI's transforms, kept in memory, on disk, or not at all."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from monai.transforms import Compose, Transform
from monai.transforms.traits import RandomizableTrait
from monai.transforms.utils import reset_ops_id
from numpy.typing import NDArray
from torch.utils.data import Dataset

from monai_fedskew.core.ranges import require_choice, require_number
from monai_fedskew.data.datalist import site_datalist
from monai_fedskew.data.datasets import SplitName
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.fingerprint import fingerprint
from monai_fedskew.sites.image_cache import DiskCache, ImageCache, MemoryCache

__all__ = ["Cache", "SiteImages"]

Cache = Literal["none", "memory", "disk"]


class SiteImages(Dataset[Any]):
    """Serve the images of one split of a prepared site through dictionary transforms.

    A cache keeps what the transforms before the first random one make of an image, from the first time it is asked for.
    What is kept goes with the content of the image's files (their digest of when they were prepared, size and time of
    change), with these transforms, all their parameters and code, and with the versions of the libraries: after a
    change of any of these it is made again, never read. Transforms are looked at once in each pass over the images.

    MONAI's own caches are not used: its CacheDataset has no limit in bytes and notices no change, and its
    PersistentDataset knows files by their names alone and transforms not at all, unless told how to.

    Args:
        folder: a site's folder, written by ``fedskew images prepare``.
        split: ``train``, ``validation``, ``test`` or ``all``.
        transform: dictionary transforms, in order; they get the entries of `site_datalist`.
        cache: "memory" keeps images in this process (a worker process of a loader has its own, for an epoch), "disk" in
            ``cache_dir``, which processes, runs and sites may share.
        cache_dir: folder for "disk".
        cache_limit_mb: megabytes (2**20 bytes) that are kept; images beyond are made anew each time. On disk those go
            first that were not used since this dataset was opened. The folder can be deleted at any time.
        fold, folds, validation_fraction, split_seed: see `site_datalist`.

    Attributes:
        site: name of the site.
        labels: class of each image, int64, shape (n,); 0 where a mask says more.
        rows: number of each image in the manifest, shape (n,).
        groups: number of each image's group (patient) in this split, shape (n,).
        subject_ids: name of each image's group, shape (n,).

    Raises:
        ConfigError: an unknown split or cache, a limit out of range, "disk" without folder, or a transform that cannot
            be described (see `fingerprint`).
        DataError: the folder holds no prepared site, or one whose images are no files.
    """

    def __init__(
        self,
        folder: str | Path,
        split: SplitName,
        transform: Sequence[Callable[..., Any]],
        *,
        cache: Cache = "none",
        cache_dir: str | Path | None = None,
        cache_limit_mb: float = 4096,
        fold: int = 0,
        folds: int = 5,
        validation_fraction: float = 0.1,
        split_seed: int = 0,
    ) -> None:
        self._entries = site_datalist(
            folder, split, fold=fold, folds=folds, validation_fraction=validation_fraction, split_seed=split_seed
        )
        entries = self._entries
        self.site: str = entries[0]["site"] if entries else Path(folder).name
        self.rows: NDArray[np.int64] = np.array([entry["row"] for entry in entries], np.int64)
        self.subject_ids: NDArray[np.str_] = np.array([entry["subject"] for entry in entries], np.str_)
        self.groups: NDArray[np.int64] = np.unique(self.subject_ids, return_inverse=True)[1].astype(np.int64)
        classes = [0 if isinstance(entry["label"], str) else entry["label"] for entry in entries]
        self.labels: NDArray[np.int64] = np.array(classes, np.int64)
        self._steps = Compose(list(transform)).flatten()
        first = self._steps.get_index_of_first(
            lambda step: isinstance(step, RandomizableTrait) or not isinstance(step, Transform)
        )
        self._fixed = len(self._steps.transforms) if first is None else first
        self._cache = _cache(f"site {self.site}", cache, cache_dir, cache_limit_mb)
        self._chain, self._served = "", 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        """Return what the transforms make of one image: a dictionary, or a list of them for several crops."""
        entry = self._entries[int(index)]
        if self._cache is None:
            return self._steps(deepcopy(entry))
        if self._served % len(self) == 0:
            self._chain = fingerprint(self._steps.transforms[: self._fixed])
        self._served += 1
        item = _content(entry)
        made = self._cache.get(self._chain, item)
        if made is None:
            made = self._steps(deepcopy(entry), end=self._fixed)
            reset_ops_id(made)  # a later process inverts by transforms of its own
            self._cache.put(self._chain, item, made)
        return self._steps(made, start=self._fixed)


def _cache(site: str, kind: Cache, folder: str | Path | None, limit_mb: float) -> ImageCache | None:
    require_choice(site, "cache", kind, get_args(Cache))
    require_number(site, "cache_limit_mb", limit_mb, above=0)
    if kind == "disk":
        if folder is None:
            raise ConfigError(f"{site}: cache: disk needs cache_dir, the folder to keep images in")
        return DiskCache(folder, limit_mb)
    return MemoryCache(limit_mb) if kind == "memory" else None


def _content(entry: dict[str, Any]) -> str:
    """Return a digest of what an image's files hold now."""
    files = [entry["image"]] if isinstance(entry["image"], str) else list(entry["image"])
    files += [entry["label"]] if isinstance(entry["label"], str) else []
    try:
        known = [[(found.st_size, found.st_mtime_ns) for found in _stats(Path(file))] for file in files]
    except FileNotFoundError as error:
        raise DataError(f"site {entry['site']}: {error.filename} is gone; prepare the images again") from error
    return hashlib.sha256(json.dumps([entry, known]).encode()).hexdigest()


def _stats(path: Path) -> list[os.stat_result]:
    """Return what the file system says of a file, or of the files of a DICOM series."""
    return [inner.stat() for inner in sorted(path.iterdir())] if path.is_dir() else [path.stat()]
