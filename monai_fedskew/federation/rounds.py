"""The server's rounds over any engine: survey, sampling, history, choice of a model, a checkpoint after each round."""

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.core.messages import Broadcast, Evaluation, Event, History, Result, Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.choice import Choice
from monai_fedskew.federation.exchange import Failure, Reply, Request, Task, Transport
from monai_fedskew.federation.history import Entry, HistoryFile
from monai_fedskew.federation.sampling import sample_sites
from monai_fedskew.federation.screening import (
    identified,
    misscored,
    reasons,
    usable_result,
    usable_surveys,
    usable_updates,
)
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

__all__ = ["Finished", "OnRound", "Rounds"]

logger = logging.getLogger(__name__)

OnRound = Callable[[int, Sequence[Entry]], None]


@dataclass(frozen=True)
class Finished:
    """What the rounds leave behind.

    Args:
        cast: the chosen model, as it would be broadcast.
        round: the chosen round.
        since: by site, the round of the private state that goes with it.
        last: the server's state after the last round.
        last_since: by site, the round of the private state that goes with that.
        history: all scores and events.
    """

    cast: Broadcast
    round: int
    since: Mapping[str, int]
    last: State
    last_since: Mapping[str, int]
    history: History


class Rounds:
    """Runs the rounds of a study.

    Args:
        method: what is run.
        settings: how it is run.
        transport: reaches the sites.
        study: name of the study.
        run: RUN folder for history and checkpoints; None keeps all in memory.
        private: by site, the private states that belong in the server's checkpoint; engines whose sites keep their own
            have none.
        on_survey: called with what a site reports when it is let in.
    """

    def __init__(
        self,
        method: Method,
        settings: Settings,
        transport: Transport,
        *,
        study: str = "study",
        run: Path | None = None,
        private: Callable[[Mapping[str, int]], Mapping[str, State]] = lambda since: {},
        on_survey: Callable[[Survey], None] = lambda survey: None,
    ) -> None:
        self.method, self.settings, self.transport, self.study, self.run = method, settings, transport, study, run
        self.run_id = uuid.uuid4().hex[:12]
        self.server = Server(method, settings)
        self.history = HistoryFile(None if run is None else run / "history.jsonl")
        self.since: dict[str, int] = {}  # by site, the round of its last accepted update; 0 after its survey
        self._before: dict[str, int] = {}  # by site, the one before; kept there in case the server goes back a round
        self._trained: set[str] = set()  # have had an update accepted
        self._refused: set[str] = set()  # came late and do not fit; not surveyed again
        self._choice = Choice(method, settings)
        self._private, self._on_survey = private, on_survey

    def start(self) -> None:
        """Survey all sites that are there.

        Raises:
            RoundError: fewer than ``min_sites`` answered.
            StateError: sites that do not fit together, naming both.
            ConfigError: the RUN folder holds rounds.
        """
        if self.run is not None and checkpoint.latest(self.run) is not None:
            raise ConfigError(f"{self.run}: holds rounds of a run; resume it, or choose another folder")
        self.history.start()
        surveys, events = self._survey(self.transport.present())
        self.history.add(*events)
        if len(surveys) < max(1, self.settings.min_sites):
            least = self.settings.min_sites
            raise RoundError(f"survey: {len(surveys)} sites, but min_sites is {least}{reasons(events)}")
        self._let_in(surveys)

    def resume(self, held: checkpoint.Checkpoint) -> None:
        """Go on after a committed round of the RUN folder, bit for bit as if nothing had stopped.

        Raises:
            ConfigError: the RUN folder holds more rounds than are asked for.
            DataError: its history, or the checkpoint of its best round, is damaged.
        """
        assert self.run is not None
        if held.round > self.settings.rounds:
            raise ConfigError(f"{self.run}: holds {held.round} rounds, more than rounds={self.settings.rounds}")
        self.server.restore(held.server, round=held.round, sites=held.sites, parameters=held.parameters)
        self.run_id, self.since = held.run, dict(held.since)
        self.history.cut(held.history_rows)
        self._trained = {event.site for event in self.history.history.events if event.kind == "trained"}
        self._choice.resume(self.run, held)

    def do_round(self) -> list[Entry]:
        """Run one round; return what it added to the history.

        Raises:
            RoundError: fewer than ``min_sites`` usable updates; the last good round stays on disk.
        """
        present = self.transport.present()
        events = self._admit(present)
        cast, before = self.server.cast(), dict(self.since)
        away = [name for name in self.server.sites if name not in present]
        events += [Event(name, cast.round, "missing", "not connected") for name in away]
        chosen = self._sample([name for name in self.server.sites if name in present], cast.round, events)
        answers = self._ask("fit", chosen, cast)
        updates, scores, lost = usable_updates(answers, cast.round, self.server)
        self._choice.consider(scores, self._trained, cast, before)
        return self._close_round(cast, updates, scores, [*events, *lost])

    def conclude(self) -> Finished:
        """Score the last aggregate and choose the model."""
        cast = self.server.cast()
        present = self.transport.present()
        names = [name for name in self.server.sites if name in present]
        answers, scores = self._ask("evaluate", names, cast), []
        for name in names:
            answer = answers[name]
            if isinstance(answer, Failure):
                logger.warning("site %s: last aggregate not scored: %s", name, answer.reason)
                self.history.add(Event(name, cast.round - 1, "failed", f"not scored: {answer.reason}"))
                continue
            score = answer.message
            if isinstance(score, Evaluation) and (reason := misscored(score, cast.round - 1)):
                logger.warning("site %s: last aggregate not scored: %s", name, reason)
                self.history.add(Event(name, cast.round - 1, "excluded", f"not scored: {reason}"))
            elif isinstance(score, Evaluation):
                scores.append(score)
        self._choice.consider(scores, self._trained, cast, self.since)
        self.history.add(*scores)
        round, chosen, since = cast.round - 1, cast, dict(self.since)
        best, model = self._choice.best, self._choice.model(self.run)
        if best is not None and model is not None:
            round, chosen, since = best.round, model, dict(best.since)
        return Finished(chosen, round, since, self.server.state(), dict(self.since), self.history.history)

    def finish(self, outcome: Finished) -> dict[str, Result | Failure]:
        """Have every site score the chosen model on its test data and export it."""
        present = self.transport.present()
        names = [name for name in self.server.sites if name in present]
        answers = self._ask("finish", names, outcome.cast, outcome.since)
        found: dict[str, Result | Failure] = {
            name: Failure("not connected") for name in self.server.sites if name not in present
        }
        for name, answer in answers.items():
            found[name] = usable_result(answer)
        return dict(sorted(found.items()))

    def _ask(
        self, task: Task, names: Iterable[str], cast: Broadcast | None = None, since: Mapping[str, int] | None = None
    ) -> dict[str, Reply | Failure]:
        at = self.since if since is None else since
        best = self._choice.best.since if self._choice.best else None
        requests = {}
        for name in names:
            held = {self._before.get(name), best.get(name, 0) if best is not None else None}
            keep = tuple(sorted(number for number in held if number is not None))
            requests[name] = Request(task, self.study, self.run_id, at.get(name, 0), keep, cast)
        answers = self.transport.ask(requests) if requests else {}
        return {name: identified(name, answers.get(name, Failure("no answer"))) for name in requests}

    def _sample(self, there: Sequence[str], round: int, events: list[Event]) -> tuple[str, ...]:
        """Draw among the sites that are there: one that is away for good must not stop a study of a part of them."""
        settings = self.settings
        chosen = sample_sites(there, settings.fraction, seed=settings.seed, round=round) if there else ()
        events += [Event(name, round, "not_sampled") for name in there if name not in chosen]
        if len(chosen) < settings.min_sites <= len(there):
            raise RoundError(
                f"round {round}: fraction={settings.fraction} of the {len(there)} connected sites is {len(chosen)}, "
                f"but min_sites is {settings.min_sites}; bring more sites, or start a run with other settings"
            )
        return chosen

    def _survey(self, names: Iterable[str]) -> tuple[list[Survey], list[Event]]:
        return usable_surveys(self._ask("survey", sorted(names)), self.server.round + 1)

    def _let_in(self, surveys: Sequence[Survey]) -> None:
        self.server.open(surveys)
        for survey in surveys:
            self.since[survey.site] = 0
            self._on_survey(survey)

    def _admit(self, present: Iterable[str]) -> list[Event]:
        """Survey the sites that came late, before their first round."""
        late = sorted(set(present) - set(self.server.sites) - self._refused)
        surveys, events = self._survey(late) if late else ([], [])
        for survey in surveys:
            try:
                self._let_in([survey])
            except FedSkewError as error:
                self._refused.add(survey.site)
                logger.warning("site %s cannot join: %s", survey.site, error)
                events.append(Event(survey.site, self.server.round + 1, "excluded", str(error)))
            else:
                events.append(Event(survey.site, self.server.round + 1, "joined"))
        return events

    def _close_round(
        self, cast: Broadcast, updates: list[Update], scores: list[Evaluation], events: list[Event]
    ) -> list[Entry]:
        try:
            if not updates:
                raise RoundError(f"round {cast.round}: every site failed; the last good model is kept")
            excluded = self.server.absorb(updates)
        except RoundError as error:
            self.history.add(*events)  # for the reader; a resume cuts them off again
            raise RoundError(f"{error}{reasons(events)}") from error
        accepted = {update.site for update in updates} - {event.site for event in excluded}
        self._before |= {name: self.since[name] for name in accepted}
        self.since |= dict.fromkeys(accepted, cast.round)  # what made an update useless does not live on at the site
        self._trained |= accepted
        losses = [Evaluation(u.site, u.round, "train", u.samples, u.metrics) for u in updates if u.site in accepted]
        events += [*excluded, *(Event(site, cast.round, "trained") for site in accepted)]
        entries: list[Entry] = [*scores, *losses, *sorted(events, key=lambda event: event.site)]
        self.history.add(*entries)
        if self.run is not None:
            checkpoint.commit(
                self.run,
                self.server,
                self._private(self.since),
                changed=accepted,
                rows=self.history.rows,
                best=(best.round, best.score) if (best := self._choice.best) else None,
                since=self.since,
                run_id=self.run_id,
            )
        return entries
