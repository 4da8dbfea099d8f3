"""Images of one site, all of one size: written as the rows of a prepared site, read back as whole batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.data.datasets import ConnectomeDataset, SplitName
from monai_fedskew.data.manifest import SiteManifest, Subject, read_manifest, require_site_name, write_manifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["ImageDataset", "write_image_site"]


def write_image_site(
    folder: str | Path,
    images: NDArray[np.float32],
    labels: ArrayLike,
    *,
    label_names: Sequence[str],
    ids: Sequence[str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Path:
    """Write a prepared site of images, one a subject.

    Args:
        folder: receives ``manifest.json`` and ``vectors.npy``; its name is the site's.
        images: (N, C, *spatial) finite numbers, stored as float32.
        labels: (N,) class of each image, 0 .. classes - 1.
        label_names: name of each class.
        ids: what no split may cut apart, one an image; by default each image by its number.
        notes: where the images come from, in words.

    Returns:
        The folder.

    Raises:
        DataError: the folder exists, sizes do not fit, a value is not finite, or the name cannot be a site's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     site = write_image_site(f"{out}/A", np.zeros((4, 1, 2, 2), np.float32), [0, 1, 0, 1], label_names="ab")
        ...     ImageDataset(site, "all").__getitems__([0, 3])["image"].shape
        torch.Size([2, 1, 2, 2])
    """
    folder, classes = Path(folder), np.asarray(labels)
    require_site_name(folder.name, f"{folder}: the name of a folder")
    names = [f"{number:06d}" for number in range(len(images))] if ids is None else list(ids)
    if folder.exists():
        raise DataError(f"{folder.absolute()} exists; give a new folder")
    if images.ndim < 3 or not images.size or classes.shape != (len(images),) or len(names) != len(images):
        raise DataError(
            f"site {folder.name}: images of shape {images.shape}, {classes.size} labels and {len(names)} ids; "
            "(N, C, *spatial) images and one label and id each are needed"
        )
    if not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0 or classes.max() >= len(label_names):
        raise DataError(
            f"site {folder.name}: labels are {classes.dtype} {classes.min()!s} to {classes.max()!s}; they must be "
            f"whole numbers in 0 to {len(label_names) - 1}, one for each of the {len(label_names)} label names"
        )
    texts = [*names, *label_names, *(notes or {}).values()]
    if not all(isinstance(text, str) and text for text in texts) or len(set(names)) < len(names):
        raise DataError(f"site {folder.name}: ids, label names and notes must be texts, and each id another one")
    if np.iscomplexobj(images):
        raise DataError(f"site {folder.name}: images are {images.dtype}; store their parts as channels")
    with np.errstate(over="ignore"):
        pixels = images.astype(np.float32)
    if not np.isfinite(pixels).all():
        raise DataError(f"site {folder.name}: {int((~np.isfinite(pixels)).sum())} pixels are not finite in float32")
    people = tuple(Subject(name, int(classes[k]), k, k + 1) for k, name in enumerate(names))
    manifest = SiteManifest(
        site=folder.name,
        label_names=tuple(label_names),
        kind="image",
        regions=(),
        features=(),
        subjects=people,
        summary={"mean": float(pixels.mean()), "std": float(pixels.std()), "images": float(len(pixels))},
        notes=dict(notes or {}),
        shape=tuple(images.shape[1:]),
    )
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", pixels.reshape(len(pixels), -1))
    write_manifest(folder, manifest)
    return folder


class ImageDataset(ConnectomeDataset):
    """Serve the images of one split of a prepared site, memory-mapped, a whole batch at a time.

    Args:
        folder: a site's folder, written by `write_image_site`.
        split: ``train``, ``validation``, ``test``, or ``all``.
        fold: which of the ``folds`` subject folds is the test split, 0 .. folds - 1.
        folds: number of stratified subject folds.
        validation_fraction: part of the remaining subjects kept for validation, 0 .. 1; 0 leaves validation empty.
        split_seed: seed of the folds; the same for every split of a study.
        channels: channels to serve, 1 or more; images of one channel are repeated to that many. None: as stored.

    Attributes:
        shape: of one image (channels, *spatial), as served. Others as in `ConnectomeDataset`.

    Raises:
        ConfigError: an unknown split, less than 1 channel, or another number than stored where that is not one.
        DataError: the folder holds no prepared site of images.

    See `write_image_site` for an example.
    """

    def __init__(
        self,
        folder: str | Path,
        split: SplitName,
        *,
        fold: int = 0,
        folds: int = 5,
        validation_fraction: float = 0.1,
        split_seed: int = 0,
        channels: int | None = None,
    ) -> None:
        super().__init__(
            folder, split, fold=fold, folds=folds, validation_fraction=validation_fraction, split_seed=split_seed
        )
        stored = read_manifest(self.folder).shape
        if not stored:
            raise DataError(f"{self.folder}: holds vectors, not images; give a site written by write_image_site")
        if channels is not None:
            require_whole(f"site {self.site}", "channels", channels, 1)
        if channels not in (None, stored[0]) and stored[0] != 1:
            raise ConfigError(
                f"site {self.site}: {self.folder} has images of {stored[0]} channels, the network takes {channels}; "
                "only images of one channel are repeated"
            )
        self._stored = stored
        self.shape = (channels or stored[0], *stored[1:])

    def _gather(self, rows: Tensor) -> Tensor:
        images = super()._gather(rows).view(-1, *self._stored)
        return images if self.shape == self._stored else torch.cat([images] * self.shape[0], dim=1)
