"""Rows of a prepared site as a torch dataset that returns whole batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from monai_fedskew.data.manifest import SiteManifest, read_manifest
from monai_fedskew.data.splits import split as split_subjects
from monai_fedskew.errors import ConfigError, DataError

if TYPE_CHECKING:
    from monai_fedskew.data.abide.windows import ScanCache

__all__ = ["ConnectomeDataset", "SplitName"]

SplitName = Literal["train", "validation", "test", "all"]


class ConnectomeDataset(Dataset[dict[str, Tensor]]):
    """Serve the rows of one split of a prepared site, memory-mapped, a whole batch at a time.

    Splits are by subject: no subject has rows in two of train, validation and test. Use it with
    `monai_fedskew.data.ShuffledBatches` as ``batch_sampler`` and `monai_fedskew.data.whole_batch` as ``collate_fn``; a
    batch then costs one gather. Nothing is copied when opened: processes share the pages of the file.

    Args:
        folder: a site's folder, written by ``fedskew abide prepare``.
        split: ``train``, ``validation``, ``test``, or ``all`` rows of the site.
        fold: which of the ``folds`` subject folds is the test split, 0 .. folds - 1.
        folds: number of stratified subject folds.
        validation_fraction: part of the remaining subjects kept for validation, 0 .. 1; 0 leaves validation empty.
        split_seed: seed of the folds; the same for every split of a study.
        expect_features: features the network takes; another number in the data is an error here rather than in a layer.

    Attributes:
        folder, site, n_classes, n_features: of the site.
        rows: row number in ``vectors.npy`` of each sample, shape (n,).
        labels: class of each sample, int64, shape (n,).
        groups: number of each sample's group within the site, shape (n,): a subject, or the patient of several images.
        subject_ids: id of each sample's subject, of images that of its group, shape (n,).

    Raises:
        ConfigError: unknown split, or a feature count the network does not take.
        DataError: the folder holds no prepared site.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.synthetic import write_synthetic_study
        >>> with tempfile.TemporaryDirectory() as out:
        ...     _ = write_synthetic_study(out, sites=("NORTH",), n_regions=4)
        ...     data = ConnectomeDataset(f"{out}/NORTH", "train")
        ...     data.__getitems__([3, 1])["image"].shape
        torch.Size([2, 6])
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
        expect_features: int | None = None,
    ) -> None:
        if split not in get_args(SplitName):
            raise ConfigError(f"split is {split!r}; it must be one of {', '.join(get_args(SplitName))}")
        self.folder = Path(folder).absolute()
        if not self.folder.is_dir():
            raise DataError(f"no prepared site at {self.folder}; prepare the data first, or give --dataset_dir")
        manifest = read_manifest(self.folder)
        if expect_features not in (None, manifest.n_features):
            raise ConfigError(
                f"site {manifest.site}: {self.folder} has {manifest.n_features} features, the network takes "
                f"{expect_features}; set in_features to {manifest.n_features} at every site, or prepare the data alike"
            )
        chosen: set[str] = {subject.id for subject in manifest.subjects}
        if split != "all":
            parts = split_subjects(
                manifest, fold=fold, folds=folds, validation_fraction=validation_fraction, seed=split_seed
            )
            chosen = set(getattr(parts, split))
        self.site = manifest.site
        self.n_classes = len(manifest.label_names)
        self.n_features = manifest.n_features
        names = np.array([subject.id for subject in manifest.subjects])
        of_row = np.asarray(manifest.row_subjects)
        self.rows: NDArray[np.int64] = np.flatnonzero(np.isin(names, list(chosen))[of_row])
        self.groups: NDArray[np.int64] = manifest.row_groups[self.rows]
        people = [subject.group if manifest.kind == "image" else subject.id for subject in manifest.subjects]
        self.subject_ids: NDArray[np.str_] = np.array(people)[of_row[self.rows]]
        self.labels: NDArray[np.int64] = np.asarray(manifest.labels, np.int64)[self.rows]
        self._row_index, self._label_values = torch.from_numpy(self.rows), torch.from_numpy(self.labels)
        self._store, self._stored = manifest.store, manifest.shape
        self._series: SiteManifest | None = manifest if manifest.store == "series" else None
        self._table: Tensor | None = None
        self._scans: ScanCache | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return one sample: ``image`` (features,) float32 and ``label`` () int64."""
        batch = self.__getitems__([index])
        return {name: value[0] for name, value in batch.items()}

    def __getitems__(self, indices: Sequence[int] | Tensor) -> dict[str, Tensor]:
        """Return a batch in the given order: ``image`` (batch, features) float32 and ``label`` (batch,) int64."""
        index = torch.as_tensor(indices)
        return {"image": self._gather(self._row_index[index]), "label": self._label_values[index]}

    def __getstate__(self) -> dict[str, Any]:
        # a mapped tensor and the cache would be copied into every worker; each makes its own
        return {**self.__dict__, "_table": None, "_scans": None}

    def _gather(self, rows: Tensor) -> Tensor:
        if self._series is not None:
            from monai_fedskew.data.abide.windows import ScanCache, read_rows

            self._scans = self._scans or ScanCache()
            return torch.from_numpy(read_rows(self.folder, self._series, rows.numpy(), cache=self._scans))
        if self._table is None:
            # mode "c" keeps the file safe and, unlike "r", gives torch an array that it does not warn about
            self._table = torch.from_numpy(np.load(self.folder / "vectors.npy", mmap_mode="c"))
        # twice as fast as fancy indexing and as np.take on 5995 features; sorting the rows first only costs
        return torch.index_select(self._table, 0, rows)
