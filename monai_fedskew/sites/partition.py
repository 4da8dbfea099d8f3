"""Prepared sites' rows dealt to made-up clients: label skew as in the federated learning literature, or more sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from monai.utils import CommonKeys
from numpy.typing import NDArray
from torch.utils.data import Dataset

from monai_fedskew.core.part import Part
from monai_fedskew.core.seeding import derive
from monai_fedskew.data.partition import Partition, homogeneous_partition
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.bundle import BundleSite, Engines
from monai_fedskew.sites.pool import BatchPool, Pool, pool_of
from monai_fedskew.sites.site import Site

__all__ = ["DealtSite", "deal_sites"]

_TRAIN, _SCORED, _SURVEY = "train#dataset", "validate#dataset", "survey#dataset"


@dataclass(frozen=True)
class DealtSite:
    """A client that holds some rows of all sites, or of one, behind a bundle; opened as often as needed.

    Args:
        base: bundle and overrides. For rows of all sites it is of the client's own name, so that no site's overlay is
            used, as a client is none of the sites; for rows of one site it is that site's.
        site: name of the client.
        train: id of the bundle to the dataset that takes its place, for training and validation.
        test: the same for training and test.
        known_as: name under which the parts know the client; another than ``site`` for a model trained on a pool.
    """

    base: BundleSite
    site: str
    train: Mapping[str, "Share"]
    test: Mapping[str, "Share"]
    known_as: str = ""

    def open(
        self,
        parts: Sequence[Part] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> Site:
        """Build the client; see BundleSite.open.

        Raises:
            ConfigError: also where the bundle's loaders do not read ``train#dataset`` and ``validate#dataset``.
        """
        datasets = self.train if split == "train" else self.test
        engines = self.base.engines(parts, seed=seed, split=split, output=output, datasets=datasets)
        for engine, id in ((engines.trainer, _TRAIN), (engines.evaluator, _SCORED)):
            if engine.data_loader.dataset is not datasets[id]:
                raise ConfigError(
                    f"bundle {self.base.bundle.name}: a loader does not read `@{id}`, so that rows cannot be dealt "
                    "to clients; let it"
                )
        name, survey = self.known_as or self.site, engines.survey_data
        return Site(name, engines.trainer, engines.evaluator, schedules=engines.schedules, survey_data=survey)

    @property
    def has_validation(self) -> bool:
        """Whether the client got any validation rows."""
        return len(self.train[_SCORED]) > 0

    @property
    def about(self) -> dict[str, Any]:
        """Count what the client trains on: samples, subjects (None where unknown), samples of each class."""
        share = self.train[_TRAIN]
        groups = getattr(share, "groups", None)
        return {
            "samples": len(share),
            "subjects": None if groups is None else len(np.unique(groups)),
            "labels": np.bincount(share.labels, minlength=share.pool_classes).tolist(),
        }


def deal_sites(partition: Partition, sources: Sequence[BundleSite], *, seed: int) -> dict[str, DealtSite]:
    """Deal the rows of sites to clients, those of all sites as one pool or, by site, those of each to its own clients.

    Training rows are dealt as the partition says. Validation and test rows are dealt evenly by class, so that every
    client is scored on the same mix, as far as there are subjects enough, and the mean over clients is close to the
    score on all rows. Subjects stay whole where the data name them. A site's data are opened once and shared by all
    clients; each keeps its own transforms.

    Args:
        partition: how.
        sources: the sites, of one bundle.
        seed: seed of the run; each gives another partition.

    Returns:
        Name to client.

    Raises:
        ConfigError: a bundle without one class a sample, or no draw that gives every client enough.
        DataError: too few training or test rows, or subjects, for so many clients.
    """
    if partition.kind != "by-site":
        return _deal(partition, sources, partition.names, seed)
    clients: dict[str, DealtSite] = {}
    for source in sources:
        try:
            clients |= _deal(partition, [source], partition.names_at(source.site), derive(seed, source.site))
        except DataError as error:
            raise DataError(f"site {source.site}: {error}") from error
    shares = [share for client in clients.values() for share in (*client.train.values(), *client.test.values())]
    most = max(share.pool_classes for share in shares)
    for share in shares:
        share.pool_classes = most  # a site may lack the last classes
    return clients


def _deal(partition: Partition, sources: Sequence[BundleSite], names: Sequence[str], seed: int) -> dict[str, DealtSite]:
    """Deal the pooled rows of some sites to clients of these names."""
    training = [source.engines(split="train") for source in sources]
    scoring = [source.engines(split="test").evaluator.data_loader.dataset for source in sources]
    train = pool_of([engines.trainer.data_loader.dataset for engines in training])
    validation = pool_of([engines.evaluator.data_loader.dataset for engines in training])
    test, survey = pool_of(scoring), _survey(training)
    if survey is not None and len(survey) != len(train):
        raise ConfigError(
            f"bundle {sources[0].bundle.name}: survey#dataset has {len(survey)} rows, train#dataset {len(train)}; "
            "a partition needs the same rows in both"
        )
    labels = {name: _labels(pool, name) for name, pool in (("training", train), ("validation", validation))}
    labels["test"] = _labels(test, "test")
    classes = max(int(values.max(initial=-1)) + 1 for values in labels.values())
    shares = {
        "training": partition.deal(labels["training"], seed=_seed(seed, "training"), groups=_groups(train)),
        "validation": _evenly(partition, labels["validation"], seed, validation, "validation"),
        "test": _evenly(partition, labels["test"], seed, test, "test"),
    }
    clients = {}
    for number, name in enumerate(names):
        base = sources[0] if partition.kind == "by-site" else replace(sources[0], site=name)
        rows = shares["training"][number]
        mine = {_TRAIN: _share(train, rows, labels["training"], classes)}
        if survey is not None:
            mine[_SURVEY] = _share(survey, rows, labels["training"], classes)
        scored = [
            _share(pool, shares[split][number], labels[split], classes)
            for split, pool in (("validation", validation), ("test", test))
        ]
        clients[name] = DealtSite(base, name, {**mine, _SCORED: scored[0]}, {**mine, _SCORED: scored[1]})
    return clients


class Share(Dataset[Any]):
    """One client's rows of a pool; nothing is copied.

    Args:
        pool: the rows of all clients.
        index: which are the client's.
        labels: class of each row of the pool.
        classes: number of classes over all clients.

    Attributes:
        labels: class of each row of the client.
        groups, rows, subject_ids: of each row, each only where the pool has it.
    """

    def __init__(self, pool: Pool, index: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> None:
        self.pool, self.index, self.labels, self.pool_classes = pool, index, labels[index], classes
        for name in ("groups", "rows", "subject_ids"):
            if hasattr(pool, name):
                setattr(self, name, getattr(pool, name)[index])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int) -> Any:
        return self.pool[int(self.index[index])]


class BatchShare(Share):
    """A share of a pool that returns whole batches."""

    def __getitems__(self, indices: Any) -> Any:
        """Return one batch in the order asked."""
        assert isinstance(self.pool, BatchPool)
        return self.pool.__getitems__(self.index[np.asarray(indices)])


def _share(pool: Pool, index: NDArray[np.int64], labels: NDArray[np.int64], classes: int) -> Share:
    return (BatchShare if isinstance(pool, BatchPool) else Share)(pool, index, labels, classes)


def _survey(training: Sequence[Engines]) -> Pool | None:
    """The clean examples; None where they are those of training, which the bundle refers to itself."""
    own = [
        engines.survey_data
        for engines in training
        if engines.survey_data is not None and engines.survey_data is not engines.trainer.data_loader.dataset
    ]
    return pool_of(own) if own else None


def _labels(pool: Pool, split: str) -> NDArray[np.int64]:
    """Class of each row: as the datasets tell, else read row by row."""
    known = getattr(pool, "labels", None)
    if known is None:
        known = [np.asarray(pool[row][CommonKeys.LABEL]) for row in range(len(pool))]
        if any(label.size != 1 for label in known):
            raise ConfigError(f"partition: a {split} label is no single class, by which rows could be dealt")
        known = np.array([label.item() for label in known])
    return np.asarray(known, np.int64)


def _groups(pool: Pool) -> NDArray[np.str_] | None:
    return getattr(pool, "groups", None)


def _evenly(
    partition: Partition, labels: NDArray[np.int64], seed: int, pool: Pool, split: str
) -> tuple[NDArray[np.int64], ...]:
    """Deal what is scored; without validation rows, or with few, clients have none, which a run may refuse later."""
    try:
        return homogeneous_partition(
            labels,
            partition.clients,
            seed=_seed(seed, split),
            groups=_groups(pool),
            min_samples=1 if split == "test" else 0,
        )
    except DataError as error:
        raise DataError(f"partition {partition.text}, {split} rows: {error}") from error


def _seed(seed: int, split: str) -> int:
    return derive(seed, part=f"partition:{split}")
