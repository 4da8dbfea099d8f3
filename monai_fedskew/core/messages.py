"""Messages between server and sites. All frozen; all tensors in them owned, finite and on the CPU."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from monai_fedskew.core.state import State

__all__ = ["Aux", "Broadcast", "Evaluation", "Event", "History", "Result", "Survey", "Update"]

Aux = Mapping[str, State]  # side channel: part name -> what it tells


@dataclass(frozen=True)
class Survey:
    """What a site reports before its first round, also when it joins late.

    Args:
        site: name of the site.
        tensors: the shared entries of its freshly built network; the first site by name supplies the first model.
        parameters: the shared keys that are trained; the other shared keys are buffers.
        samples: number of training examples (windows, images), at least 1.
        groups: number of subjects.
        aux: per part, what it measured at the site.
        kept: names of the entries of its network that stay at the site; names only, never values.
    """

    site: str
    tensors: State
    parameters: frozenset[str]
    samples: int
    groups: int
    aux: Aux = field(default_factory=dict)
    kept: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Broadcast:
    """The model every site starts round ``round`` from: the full shared tensors, never differences."""

    round: int
    tensors: State
    aux: Aux = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """A site's shared tensors after its local epochs, with what the server may weigh it by.

    ``metrics`` are plain numbers about the training itself (mean loss); ``steps`` counts optimizer steps.
    """

    site: str
    round: int
    tensors: State
    samples: int
    groups: int
    steps: int
    aux: Aux = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Scores at a site of the aggregate after ``round`` rounds together with the site's own private state.

    A metric that has no value there, such as an AUC where there is one class, is None.
    """

    site: str
    round: int
    split: str
    samples: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True)
class Result:
    """Test scores of the chosen model, of ``round`` rounds, at a site; read once, at the end.

    ``scores`` is by level: "window" (one row of data) and, where predictions name subjects, "subject".
    """

    site: str
    round: int
    scores: Mapping[str, Mapping[str, float | None]]


@dataclass(frozen=True)
class Event:
    """What a site did in a round, and why it was missing if it was.

    "failed": it answered with an error or not at all; "excluded": its update was of no use; "missing": the engine could
    not reach it; "not_sampled": it was not asked; "joined": it was surveyed after the first round.
    """

    site: str
    round: int
    kind: Literal["trained", "failed", "excluded", "not_sampled", "missing", "joined"]
    reason: str = ""


@dataclass(frozen=True)
class History:
    """All scores and events of a run, in order of round and site."""

    scores: tuple[Evaluation, ...] = ()
    events: tuple[Event, ...] = ()

    @staticmethod
    def of(entries: Iterable[Evaluation | Event]) -> "History":
        """Return the history of ``entries``, sorted by round and site."""
        held = list(entries)
        scores = sorted((e for e in held if isinstance(e, Evaluation)), key=lambda e: (e.round, e.site, e.split))
        events = sorted((e for e in held if isinstance(e, Event)), key=lambda e: (e.round, e.site))
        return History(tuple(scores), tuple(events))
