"""All sites' data in one place: the centralised baseline, as one site."""

from collections.abc import Sequence
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

__all__ = ["PooledSites"]


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
            engines[0].data_loader = _like(loaders[0], _Pool([loader.dataset for loader in loaders]))
            engines[0].state.epoch_length = len(engines[0].data_loader)
        surveys = [site.survey_data for site in sites]
        survey = None if any(data is None for data in surveys) else _Pool(surveys)
        return Site("pooled", first.trainer, first.evaluator, schedules=first.schedules, survey_data=survey)


class _Pool(Dataset[Any]):
    """Concatenation that keeps whole-batch access, the rows' order and the subjects apart."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = [dataset for dataset in datasets if len(dataset)]
        self.ends = np.cumsum([len(dataset) for dataset in self.datasets], dtype=np.int64)
        if all(hasattr(dataset, "groups") for dataset in self.datasets):
            named = ([f"{k}-{group}" for group in dataset.groups] for k, dataset in enumerate(self.datasets))
            self.groups = np.array([name for names in named for name in names])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, index: int) -> Any:
        owner, row = self._locate(np.array([index]))
        return self.datasets[owner[0]][int(row[0])]

    def __getitems__(self, indices: Any) -> Any:
        """Return what the datasets return: one batch if they return batches, else a list of items to collate."""
        owners, rows = self._locate(np.asarray(indices))
        if not all(hasattr(dataset, "__getitems__") for dataset in self.datasets):
            return [self.datasets[owner][int(row)] for owner, row in zip(owners, rows, strict=True)]
        pieces = [self.datasets[owner].__getitems__(rows[owners == owner]) for owner in np.unique(owners)]
        back = torch.from_numpy(np.argsort(np.argsort(owners, kind="stable")))
        return {key: torch.cat([piece[key] for piece in pieces])[back] for key in pieces[0]}

    def _locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        owners = np.searchsorted(self.ends, indices, side="right")
        return owners, indices - np.concatenate([[0], self.ends[:-1]])[owners]


def _like(loader: DataLoader, pool: _Pool) -> DataLoader:
    """A loader over the pool with the batches, order and workers of ``loader``."""
    batches, common = loader.batch_sampler, {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn}
    if isinstance(batches, ShuffledBatches):
        return DataLoader(
            pool, batch_sampler=type(batches)(pool, batches.batch_size, shuffle=batches.shuffle), **common
        )
    if type(batches) is BatchSampler and isinstance(loader.sampler, RandomSampler | SequentialSampler):
        is_shuffled = isinstance(loader.sampler, RandomSampler)
        return DataLoader(pool, batch_size=loader.batch_size, shuffle=is_shuffled, drop_last=loader.drop_last, **common)
    raise ConfigError(
        f"pooled: cannot carry {type(loader.sampler).__name__} over to the pool; use shuffle: true or false, or "
        "monai_fedskew.data.batches.ShuffledBatches"
    )
