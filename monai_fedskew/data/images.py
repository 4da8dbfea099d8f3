"""Images of one site, all of one size, read as whole batches."""

from pathlib import Path

import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.core.seeding import derive
from monai_fedskew.data.datasets import ConnectomeDataset, SplitName
from monai_fedskew.data.subset import stratified_subset
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["ImageDataset"]


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
        limit: images of the training split to serve, drawn by class and by ``split_seed`` so that a smaller number is a
            part of a larger one; see `stratified_subset`. None: all.

    Attributes:
        shape: of one image (channels, *spatial), as served. Others as in `ConnectomeDataset`.

    Raises:
        ConfigError: an unknown split, less than 1 channel, or another number than stored where that is not one; a
            limit that is not 1 .. the number of training images or is given for another split.
        DataError: the folder holds no prepared site of images.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from monai_fedskew.data.image_sites import write_image_site
        >>> with tempfile.TemporaryDirectory() as out:
        ...     site = write_image_site(f"{out}/A", np.zeros((4, 1, 2, 2), np.float32), [0, 1, 0, 1], label_names="ab")
        ...     ImageDataset(site, "all").__getitems__([0, 3])["image"].shape
        torch.Size([2, 1, 2, 2])
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
        limit: int | None = None,
    ) -> None:
        super().__init__(
            folder, split, fold=fold, folds=folds, validation_fraction=validation_fraction, split_seed=split_seed
        )
        stored = self._stored
        if not stored:
            raise DataError(f"{self.folder}: holds vectors, not images; give a site written by write_image_site")
        if self._store == "files":
            raise DataError(
                f"{self.folder}: its images are files of their own sizes; prepare them with --size, or read them with "
                "monai_fedskew.sites.image_dataset.SiteImages"
            )
        if channels is not None:
            require_whole(f"site {self.site}", "channels", channels, 1)
        if channels not in (None, stored[0]) and stored[0] != 1:
            raise ConfigError(
                f"site {self.site}: {self.folder} has images of {stored[0]} channels, the network takes {channels}; "
                "only images of one channel are repeated"
            )
        self.shape = (channels or stored[0], *stored[1:])
        if limit is not None:
            self._keep(limit, split, split_seed)

    def _keep(self, limit: int, split: SplitName, seed: int) -> None:
        """Leave ``limit`` of the samples; the seed is the site's own, lest all sites lack the same classes."""
        if split != "train":
            raise ConfigError(f"site {self.site}: limit={limit} is for the split train, not for {split}; leave it out")
        chosen = stratified_subset(self.labels, limit, seed=derive(seed, self.site, part="limit"), site=self.site)
        self.rows, self.groups = self.rows[chosen], self.groups[chosen]
        self.labels, self.subject_ids = self.labels[chosen], self.subject_ids[chosen]
        self._row_index, self._label_values = torch.from_numpy(self.rows), torch.from_numpy(self.labels)

    def _gather(self, rows: Tensor) -> Tensor:
        images = super()._gather(rows).view(-1, *self._stored)
        return images if self.shape == self._stored else torch.cat([images] * self.shape[0], dim=1)
