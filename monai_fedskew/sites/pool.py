"""All sites' data in one place: the centralised baseline, as one site."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from monai.data import DataLoader
from monai.utils import CommonKeys
from torch.utils.data import Dataset, RandomSampler

from monai_fedskew.core.part import Part
from monai_fedskew.data.batches import ShuffledBatches, whole_batch
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
        sites = [source.open((), seed=seed, split=split, output=output) for source in self.sources[1:]]
        first = self.sources[0].open(parts, seed=seed, split=split, output=output)
        for engine_of in ("trainer", "evaluator"):
            engine = getattr(first, engine_of)
            loaders = [getattr(site, engine_of).data_loader for site in (first, *sites)]
            pool = _Pool([loader.dataset for loader in loaders if len(loader.dataset)])
            engine.data_loader = _like(loaders[0], pool)
            engine.state.epoch_length = len(engine.data_loader)
        return Site("pooled", first.trainer, first.evaluator, schedules=first.schedules)


class _Pool(Dataset[Any]):
    """Concatenation that keeps whole-batch access and the rows' order."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = datasets
        self.ends = np.cumsum([len(dataset) for dataset in datasets]) if datasets else np.zeros(1, dtype=np.int64)
        groups = [getattr(dataset, "groups", np.arange(len(dataset))) for dataset in datasets]
        names = [[f"{index}-{group}" for group in values] for index, values in enumerate(groups)]
        self.groups = np.array([name for values in names for name in values])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        owner, row = self._locate(np.array([index]))
        return self.datasets[owner[0]][int(row[0])]

    def __getitems__(self, indices: Any) -> dict[str, Any]:
        owner, row = self._locate(np.asarray(indices))
        order = np.argsort(owner, kind="stable")
        pieces = []
        for index in np.unique(owner):
            rows = row[owner == index]
            data = self.datasets[index]
            if hasattr(data, "__getitems__"):
                pieces.append(data.__getitems__(rows))
            else:
                items = [data[int(i)] for i in rows]
                keys = (CommonKeys.IMAGE, CommonKeys.LABEL)
                pieces.append({key: torch.stack([torch.as_tensor(item[key]) for item in items]) for key in keys})
        back = torch.from_numpy(np.argsort(order))
        keys = (CommonKeys.IMAGE, CommonKeys.LABEL)
        return {key: torch.cat([piece[key] for piece in pieces])[back] for key in keys}

    def _locate(self, indices: "np.ndarray[Any, Any]") -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
        owner = np.searchsorted(self.ends, indices, side="right")
        starts = np.concatenate([[0], self.ends[:-1]])
        return owner, indices - starts[owner]


def _like(loader: DataLoader, pool: _Pool) -> DataLoader:
    """A loader over the pool with the batch size, shuffling and workers of ``loader``."""
    batches = loader.batch_sampler
    if batches is None:
        raise ConfigError("pooled: the bundle's loader has no batches (batch_size null); give it a batch size")
    is_shuffled = isinstance(loader.sampler, RandomSampler) or getattr(batches, "shuffle", False)
    sampler = ShuffledBatches(pool, batches.batch_size, shuffle=is_shuffled)
    return DataLoader(pool, batch_sampler=sampler, num_workers=loader.num_workers, collate_fn=whole_batch)
