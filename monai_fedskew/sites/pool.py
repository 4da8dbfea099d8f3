"""All sites' data in one place: the centralised baseline, as one site."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from monai.data import DataLoader
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, Dataset, RandomSampler, SequentialSampler

from monai_fedskew.core.part import Part
from monai_fedskew.data.batches import ShuffledBatches
from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site

__all__ = ["BatchPool", "Pool", "PooledSites", "pool_of"]

_EXACT = ("labels", "rows")


@dataclass(frozen=True)
class PooledSites:
    """One site that trains and validates on the concatenation of several, each after its own transforms.

    Statistics of a normalisation are then those of the pool.

    Args:
        sources: the sites, in the order their data are concatenated.
    """

    sources: tuple[BundleSite, ...]

    def open(
        self,
        parts: Sequence[Part] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> Site:
        """Build the pool around the first site's trainer; see BundleSite.open."""
        first, *others = (
            source.engines(parts if number == 0 else (), seed=seed, split=split, output=output)
            for number, source in enumerate(self.sources)
        )
        sites = (first, *others)
        for engines in zip(*((site.trainer, site.evaluator) for site in sites), strict=True):
            loaders = [engine.data_loader for engine in engines]
            engines[0].data_loader = _like(loaders, pool_of([loader.dataset for loader in loaders]))
            engines[0].state.epoch_length = len(engines[0].data_loader)
        surveys = [site.survey_data for site in sites]
        survey = None if any(data is None for data in surveys) else pool_of(surveys)
        return Site("pooled", first.trainer, first.evaluator, schedules=first.schedules, survey_data=survey)


class Pool(Dataset[Any]):
    """Concatenation that keeps the rows' order and the subjects apart.

    Attributes:
        groups, labels, rows, subject_ids: of each example, each only where all the datasets have it; see
            ConnectomeDataset. Subjects of two datasets are never the same.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = [dataset for dataset in datasets if len(dataset)]
        self.ends = np.cumsum([len(dataset) for dataset in self.datasets], dtype=np.int64)
        if self._have("groups"):
            self.groups = self._each("groups", lambda k, group: f"{k}-{group}")
        if self._have("labels") and self._have("rows") and self._have("subject_ids"):
            self.labels, self.rows = (np.concatenate([getattr(d, name) for d in self.datasets]) for name in _EXACT)
            self.subject_ids = self._each("subject_ids", lambda k, subject: f"{self._site(k)}/{subject}")

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> Any:
        owner, row = self._locate(np.array([index]))
        return self.datasets[owner[0]][int(row[0])]

    def _locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owners = np.searchsorted(self.ends, indices, side="right")
        return owners, indices - np.concatenate([[0], self.ends[:-1]])[owners]

    def _have(self, name: str) -> bool:
        return bool(self.datasets) and all(hasattr(dataset, name) for dataset in self.datasets)

    def _each(self, name: str, told: Callable[[int, Any], str]) -> NDArray[np.str_]:
        return np.array([told(k, one) for k, dataset in enumerate(self.datasets) for one in getattr(dataset, name)])

    def _site(self, number: int) -> str:
        return str(getattr(self.datasets[number], "site", number))


class BatchPool(Pool):
    """A pool of datasets that return whole batches."""

    def __getitems__(self, indices: Any) -> dict[str, torch.Tensor]:
        """Return one batch in the order asked."""
        owners, rows = self._locate(np.asarray(indices))
        pieces = [self.datasets[owner].__getitems__(rows[owners == owner]) for owner in np.unique(owners)]
        back = torch.from_numpy(np.argsort(np.argsort(owners, kind="stable")))
        return {key: torch.cat([piece[key] for piece in pieces])[back] for key in pieces[0]}


def pool_of(datasets: Sequence[Any]) -> Pool:
    """Return the concatenation of datasets, in whole batches if all of them return such."""
    is_whole = all(hasattr(dataset, "__getitems__") for dataset in datasets)
    return BatchPool(datasets) if is_whole else Pool(datasets)


def _like(loaders: Sequence[DataLoader], pool: Pool) -> DataLoader:
    """A loader over the pool with the batches, order and workers of the first; its epoch is as long as all theirs."""
    loader = loaders[0]
    batches, common = loader.batch_sampler, {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}
    if isinstance(batches, ShuffledBatches):
        lengths = [other.batch_sampler.samples_per_epoch for other in loaders]
        samples = None if None in lengths else sum(lengths)
        repeated = type(batches)(pool, batches.batch_size, shuffle=batches.shuffle, samples_per_epoch=samples)
        return DataLoader(pool, batch_sampler=repeated, **common)
    if type(batches) is BatchSampler and isinstance(loader.sampler, RandomSampler | SequentialSampler):
        is_shuffled = isinstance(loader.sampler, RandomSampler)
        return DataLoader(pool, batch_size=loader.batch_size, shuffle=is_shuffled, drop_last=loader.drop_last, **common)
    raise ConfigError(
        f"pooled: cannot carry {type(loader.sampler).__name__} over to the pool; use shuffle: true or false, or "
        "monai_fedskew.data.batches.ShuffledBatches"
    )
