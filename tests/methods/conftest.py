"""A site reduced to what a part sees of it."""

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from monai_fedskew.core import Bound, Broadcast, Part


class View:
    """A SiteView around given examples: keeps the functions parts add, and calls them."""

    def __init__(
        self,
        name: str,
        batches: Sequence[Tensor] = (),
        model: nn.Module | None = None,
        subjects: Sequence[int] | None = None,
    ) -> None:
        self.name, self.batches, self._subjects = name, batches, subjects
        self.samples = sum(map(len, batches))
        self.groups = self.samples if subjects is None else len(set(subjects))
        self.model = nn.Linear(1, 1) if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss_function = nn.MSELoss()
        self.stages: dict[str, Callable] = {}
        self.generator = torch.Generator().manual_seed(0)

    def add(self, part: Part, stage: str, function: Callable) -> None:
        """Keep the function."""
        assert stage in part.stages
        self.stages[stage] = function

    def examples(self) -> Iterator[Tensor]:
        """Yield the given batches."""
        yield from self.batches

    def example_groups(self) -> Tensor | None:
        """Return the given subjects."""
        return None if self._subjects is None else torch.tensor(self._subjects)

    def batch(self, stage: str, inputs: Tensor) -> Tensor:
        """What the network would be given of ``inputs``."""
        return self.stages[stage](inputs, torch.zeros(len(inputs)), self.generator)[0]


@pytest.fixture
def view() -> type[View]:
    """The class, to build sites from."""
    return View


@pytest.fixture
def federate() -> Callable[[Part, Sequence[View]], list[Bound]]:
    """Bind a part at some sites, survey them, merge, and hand out the first broadcast."""

    def run(part: Part, views: Sequence[View]) -> list[Bound]:
        bound = [part.bind(view) for view in views]
        reports = {view.name: report for view, b in zip(views, bound, strict=True) if (report := b.survey())}
        memory = part.merge({}, reports, len(views))
        for b in bound:
            b.receive(Broadcast(1, {}, {part.name: part.tell(memory)} if memory else {}))
        return bound

    return run
