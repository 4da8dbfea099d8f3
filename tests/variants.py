"""Bundles and sites as tests need them: the tiny bundle with a change, and a site small enough to compute by hand."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from ignite.engine import Events
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.transforms import Randomizable
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.data.datasets import ConnectomeDataset
from monai_fedskew.sites.site import Site


def bundle_with(bundle: Path, out: Path, change: Callable[[dict[str, Any]], None], file: str = "train.yaml") -> Path:
    """Copy a bundle and change one of its configuration files."""
    shutil.copytree(bundle, out)
    path = out / "configs" / file
    config = yaml.safe_load(path.read_text())
    change(config)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return out


class Ungrouped(Dataset[Any]):
    """The rows of a prepared site without a word on subjects, one item at a time."""

    def __init__(self, folder: str) -> None:
        self._rows = ConnectomeDataset(folder, "train", folds=4, validation_fraction=0.25)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self._rows[index]


class Jittered(Ungrouped, Randomizable):
    """Rows with noise, as augmented training data are."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = super().__getitem__(index)
        return {**item, "image": item["image"] + float(self.R.normal())}


class Fixed(Metric):
    """A score that is what it is."""

    def __init__(self, value: float) -> None:
        self.value = value
        super().__init__(output_transform=lambda output: 0)

    def reset(self) -> None:
        """Forget nothing."""

    def update(self, output: Any) -> None:
        """Look at nothing."""

    def compute(self) -> float:
        """Return the value."""
        return self.value


class _Numbers(Dataset[Any]):
    def __init__(self, n: int, value: float) -> None:
        self.n, self.value = n, value
        self.groups = np.arange(n)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": torch.ones(1), "label": torch.tensor([self.value])}


@dataclass(frozen=True)
class NumberSite:
    """A site of ``n`` examples whose one weight is ``value`` after each round, whatever it was before.

    Half the squared error has the gradient w - value, so one step of learning rate 1 lands on ``value``.
    """

    site: str
    n: int
    value: float
    fails_in: tuple[int, ...] = ()
    score: float = 1.0

    def open(self, parts: Sequence[Part] = (), *, seed: int = 0, split: str = "train", output: Any = None) -> Site:
        """Build trainer and evaluator around a linear map of one weight."""
        network = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(network.weight)
        loader = DataLoader(_Numbers(self.n, self.value), batch_size=self.n)
        trainer = SupervisedTrainer(
            device=torch.device("cpu"),
            max_epochs=1,
            train_data_loader=loader,
            network=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
            loss_function=lambda pred, label: 0.5 * ((pred - label) ** 2).mean(),
            decollate=False,
        )
        evaluator = SupervisedEvaluator(
            device=torch.device("cpu"),
            val_data_loader=loader,
            network=network,
            key_val_metric={"score": Fixed(self.score)},
            decollate=False,
        )
        site = Site(self.site, trainer, evaluator)

        @trainer.on(Events.EPOCH_STARTED)
        def fail() -> None:
            if trainer.state.epoch in self.fails_in:
                raise RuntimeError("scanner on fire")

        return site


@dataclass(frozen=True)
class Piece(Part):
    """A part with the name, stages and functions a test gives it."""

    name: str  # type: ignore[misc]  # a test names its parts at run time
    stages: tuple[str, ...] = ()  # type: ignore[misc]
    functions: tuple[tuple[str, Callable[..., Any]], ...] = ()
    surveys: bool = False

    def bind(self, site: SiteView) -> Bound:
        """Put the functions into their stages."""
        for stage, function in self.functions:
            site.add(self, stage, function)
        return _Surveyor(site) if self.surveys else Bound()


class _Surveyor(Bound):
    def __init__(self, site: SiteView) -> None:
        self._site = site

    def survey(self) -> dict[str, Tensor]:
        return {"sum": sum((batch.sum(0) for batch in self._site.examples()), torch.zeros(()))}
