"""The server's end of every method: knows messages, weights and the method's pure halves, and no algorithm."""

import logging
from collections.abc import Sequence

from torch import Tensor

from monai_fedskew.core.messages import Broadcast, Event, Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State, describe, nest, non_finite, own, require_alike, unnest
from monai_fedskew.errors import RoundError, StateError
from monai_fedskew.federation.settings import Settings

__all__ = ["Server"]

logger = logging.getLogger(__name__)


class Server:
    """Holds the shared model and the parts' memories between rounds. A call that raises changes nothing.

    Args:
        method: what is run.
        settings: how it is run.
    """

    def __init__(self, method: Method, settings: Settings) -> None:
        self.method, self.settings = method, settings
        self.round = 0
        self.sites: tuple[str, ...] = ()
        self.parameters: frozenset[str] = frozenset()
        self.tensors: dict[str, Tensor] = {}
        self.memory: State = {}
        self.parts: dict[str, dict[str, Tensor]] = {}

    def open(self, surveys: Sequence[Survey]) -> None:
        """Take the surveys: the first call starts the model from the first site by name, later ones let sites in.

        Raises:
            StateError: sites differ in keys, shapes or dtypes of shared entries, or a part cannot use what one reports.
            RoundError: a site without samples.
        """
        ordered = sorted(surveys, key=lambda survey: survey.site)
        first = ordered[0]
        tensors, origin = (self.tensors, self.sites[0]) if self.sites else (dict(first.tensors), first.site)
        for survey in ordered:
            _check(survey, tensors, origin)
            if survey.samples < 1:
                raise RoundError(f"site {survey.site}: zero samples to train on; leave the site out")
            if strange := sorted(survey.parameters - tensors.keys()):
                raise StateError(f"site {survey.site}: trains {strange[0]}, which it does not share; use one version")
        parts = self._merged(ordered, len({*self.sites, *(survey.site for survey in ordered)}))
        if not self.sites:
            self.tensors = {key: own(value) for key, value in tensors.items()}
            self.parameters, self.memory = first.parameters, self.method.aggregate.init(self.tensors)
        self.parts = parts
        self.sites = tuple(sorted({*self.sites, *(survey.site for survey in ordered)}))

    def cast(self) -> Broadcast:
        """Return the model the next round starts from."""
        told = {part.name: part.tell(self.parts.get(part.name, {})) for part in self.method.parts}
        aux = {name: {key: own(value) for key, value in state.items()} for name, state in told.items() if state}
        return Broadcast(self.round + 1, {key: own(value) for key, value in self.tensors.items()}, aux)

    def check(self, update: Update) -> None:
        """Raise what makes an update unfit for this round, if anything.

        Raises:
            StateError: missing, unknown or misshapen tensors, naming site and key; a report that a part cannot use.
            RoundError: of another round or of an unknown site.
        """
        self._require_fit(update)
        if update.aux:
            self._merged([update], len(self.sites))  # merging is pure: what a part cannot use, it says here

    def absorb(self, updates: Sequence[Update]) -> tuple[Event, ...]:
        """Turn a round's updates into the next model; return who was left out and why.

        Raises:
            StateError: an update with missing, unknown or misshapen tensors, naming site and key.
            RoundError: an update of another round or of an unknown site, two of one site, fewer than ``min_sites``
                usable updates, zero samples in all, a non-finite update when ``non_finite`` is "error", or an
                aggregate that is not finite.
        """
        accepted: list[Update] = []
        excluded: list[Event] = []
        names = [update.site for update in updates]
        for update in sorted(updates, key=lambda update: update.site):
            self._require_fit(update)
            if names.count(update.site) > 1:
                raise RoundError(f"site {update.site}: {names.count(update.site)} updates in round {self.round + 1}")
            problem = _non_finite(update)
            if problem and self.settings.non_finite == "error":
                raise RoundError(f"site {update.site}: {problem}; lower the learning rate or look at its data")
            if problem:
                logger.warning("round %d, site %s: %s; left out", update.round, update.site, problem)
                excluded.append(Event(update.site, update.round, "excluded", problem))
            else:
                accepted.append(update)
        if len(accepted) < self.settings.min_sites:
            lost = "; ".join(f"{event.site}: {event.reason}" for event in excluded)
            raise RoundError(
                f"round {self.round + 1}: {len(accepted)} usable updates, but min_sites is {self.settings.min_sites}; "
                "the last good model is kept"
                + (f". Left out: {lost}; lower the learning rate or look at the data" if lost else "")
            )
        weights = self._weights(accepted)
        step = self.method.aggregate.step
        memory, tensors = step(self.memory, self.tensors, accepted, weights, self.parameters)
        if problem := non_finite(tensors) or non_finite(memory):
            raise RoundError(
                f"round {self.round + 1}: the step of {self.method.name} at the server left the finite numbers "
                f"({problem}), though every update was finite; the last good model is kept. Use a smaller step"
            )
        parts = self._merged(accepted, len(self.sites))
        self.memory, self.tensors, self.parts = memory, dict(tensors), parts
        self.round += 1
        return tuple(excluded)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors the server must not lose."""
        parts = {f"part.{name}": state for name, state in self.parts.items()}
        return nest({"tensors": self.tensors, "memory": self.memory, **parts})

    def restore(self, state: State, *, round: int, sites: Sequence[str], parameters: Sequence[str]) -> None:
        """Take back what ``state`` returned after ``round`` rounds."""
        groups = unnest(state)
        self.tensors, self.memory = groups.get("tensors", {}), groups.get("memory", {})
        self.parts = {name.removeprefix("part."): group for name, group in groups.items() if name.startswith("part.")}
        self.round, self.sites, self.parameters = round, tuple(sites), frozenset(parameters)

    def _require_fit(self, update: Update) -> None:
        if update.site not in self.sites:
            raise RoundError(f"site {update.site}: was never surveyed; known sites: {', '.join(self.sites)}")
        _check(update, self.tensors, "the server")
        if update.round != self.round + 1:
            raise RoundError(f"site {update.site}: update of round {update.round} in round {self.round + 1}")
        if silent := [part.name for part in self.method.parts if part.reports and part.name not in update.aux]:
            raise StateError(
                f"site {update.site}: the update lacks the report of {silent[0]}; use one method and version"
            )

    def _weights(self, updates: Sequence[Update]) -> dict[str, float]:
        """Weights over the round's participants, summing to 1."""
        rule = self.settings.weights
        raw = {u.site: {"samples": u.samples, "groups": u.groups, "equal": 1}[rule] for u in updates}
        total = sum(raw.values())
        if total <= 0 or all(update.samples <= 0 for update in updates):
            raise RoundError(f"round {self.round + 1}: zero samples at all of {', '.join(raw)}; nothing to average")
        return {site: value / total for site, value in raw.items()}

    def _merged(self, reports: Sequence[Survey | Update], n_sites: int) -> dict[str, dict[str, Tensor]]:
        merged = {}
        for part in self.method.parts:
            mine = {report.site: report.aux[part.name] for report in reports if part.name in report.aux}
            new = part.merge(self.parts.get(part.name, {}), mine, n_sites)
            merged[part.name] = {key: own(value) for key, value in new.items()}
        return merged


def _check(message: Survey | Update, tensors: State, origin: str) -> None:
    kind = "survey" if isinstance(message, Survey) else "update"
    expected, got = ({key: describe(value) for key, value in state.items()} for state in (tensors, message.tensors))
    require_alike(f"site {message.site}: {kind}", expected, got, origin)


def _non_finite(update: Update) -> str:
    """What is not finite in an update, its parts' reports included."""
    groups = [("", update.tensors), *((f"part {name}: ", state) for name, state in update.aux.items())]
    return next((f"{owner}{problem}" for owner, state in groups if (problem := non_finite(state))), "")
