"""Which round's model is final: the best on validation data, or the last."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.core.messages import Broadcast, Evaluation
from monai_fedskew.core.method import Method
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

__all__ = ["Best", "Choice"]


@dataclass(frozen=True)
class Best:
    """The best model so far.

    Args:
        round: after how many rounds.
        score: the unweighted mean of the key metric over sites.
        since: by site, the round of the private state that goes with it.
        cast: the model; None right after a resume, when it is read from its checkpoint if it is needed.
    """

    round: int
    score: float
    since: Mapping[str, int]
    cast: Broadcast | None = None


class Choice:
    """Remembers the best model; with ``choose="last"`` there is none.

    Args:
        method: what is run.
        settings: how it is run.
    """

    def __init__(self, method: Method, settings: Settings) -> None:
        self.method, self.settings = method, settings
        self.best: Best | None = None

    def consider(
        self, scores: Sequence[Evaluation], trained: Collection[str], cast: Broadcast, since: Mapping[str, int]
    ) -> None:
        """Take a scored model if it is the best so far.

        Best by the unweighted mean of the key metric over the sites that took part, have trained and have a finite
        value: beside NaN no later model could ever be better.
        """
        values = (next(iter(score.metrics.values()), None) for score in scores if score.site in trained)
        counted = [value for value in values if value is not None and math.isfinite(value)]
        if not counted or self.settings.choose == "last":
            return
        mean = sum(counted) / len(counted)
        if self.best is None or mean > self.best.score:
            self.best = Best(cast.round - 1, mean, dict(since), cast)

    def resume(self, run: Path, held: checkpoint.Checkpoint) -> None:
        """Take up what a checkpoint says of the best round."""
        self.best = None
        if held.best:
            number, score = held.best
            since = held.since if number == held.round else checkpoint.load(run, number).since
            self.best = Best(number, score, since)

    def model(self, run: Path | None) -> Broadcast | None:
        """Return the best model, read from its checkpoint after a resume; None if there is none."""
        if self.best is None:
            return None
        if self.best.cast is not None:
            return self.best.cast
        assert run is not None
        held = checkpoint.load(run, self.best.round)
        server = Server(self.method, self.settings)
        server.restore(held.server, round=held.round, sites=held.sites, parameters=held.parameters)
        return server.cast()
