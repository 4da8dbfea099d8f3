"""The embedded engine: server and sites in one process, a checkpoint after every round."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from monai_fedskew.core.messages import Broadcast, Evaluation, Event, History, Update
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.history import Entry, HistoryFile
from monai_fedskew.federation.sampling import sample_sites
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings

__all__ = ["Outcome", "check_run", "simulate"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind.

    Args:
        cast: the chosen model, as it would be broadcast.
        private: each site's private state of that round.
        round: the chosen round.
        last: the server's state after the last round.
        last_private: each site's private state after the last round.
        history: all scores and events.
    """

    cast: Broadcast
    private: Mapping[str, State]
    round: int
    last: State
    last_private: Mapping[str, State]
    history: History


def simulate(
    method: Method,
    sites: Mapping[str, SiteSource],
    settings: Settings,
    *,
    run: Path | None = None,
    resume: bool = False,
    max_alive: int | None = None,
    on_round: Callable[[int, Sequence[Entry]], None] | None = None,
) -> Outcome:
    """Run a federation in this process.

    Args:
        method: what is run.
        sites: name to source of the sites that train.
        settings: how it is run.
        run: RUN folder for history and checkpoints; None keeps all in memory.
        resume: go on after the last committed round of ``run``, bit for bit as if it had not stopped.
        max_alive: at most so many sites are held at once, the others are rebuilt from their private state.
        on_round: called after each round with its number and what the round added to the history.

    Raises:
        RoundError: fewer than ``min_sites`` usable updates in a round; the last good round stays on disk.
        ConfigError: the method or the sites cannot be run as asked, or ``run`` holds rounds and ``resume`` is False.
    """
    federation = _Federation(method, sites, settings, run, max_alive)
    done = checkpoint.latest(run) if run is not None and resume else None
    if done is None:
        federation.survey()
    else:
        federation.resume(done)
    while federation.server.round < settings.rounds:
        entries = federation.do_round()
        if on_round is not None:
            on_round(federation.server.round, entries)
    outcome = federation.outcome()
    for client in federation.alive.values():
        client.close()
    return outcome


def check_run(method: Method, sites: Mapping[str, SiteSource], settings: Settings) -> None:
    """Find, before anything is written, what would stop a run: opens the first site by name.

    Raises:
        ConfigError: too few sites, a method that does not fit the network, no validation data to choose by, ...
        DataError: the site cannot be opened.
    """
    if settings.min_sites > len(sites):
        raise ConfigError(f"min_sites={settings.min_sites}, but there are {len(sites)} sites")
    name = min(sites)
    training = Client(method, sites[name], settings)
    _require_validation(name, training)
    training.close()
    scoring = Client(method, sites[name], settings, split="test")
    if not scoring.site.has_evaluation_data:
        raise ConfigError(f"site {name}: no test examples; look at the split and the fold")
    scoring.close()


def _require_validation(name: str, client: Client) -> None:
    if client.settings.choose == "best" and not client.site.has_evaluation_data:
        raise ConfigError(
            f"site {name}: choose=best needs validation data, but there is none; "
            "choose the last round (--choose last) or set validation_fraction above 0"
        )


@dataclass
class _Best:
    round: int
    score: float
    cast: Broadcast | None = None  # None right after a resume: read from the checkpoint when needed
    private: Mapping[str, State] = field(default_factory=dict)


class _Federation:
    def __init__(
        self,
        method: Method,
        sites: Mapping[str, SiteSource],
        settings: Settings,
        run: Path | None,
        max_alive: int | None,
    ) -> None:
        if settings.min_sites > len(sites):
            raise ConfigError(f"min_sites={settings.min_sites}, but there are {len(sites)} sites")
        self.method, self.sources, self.settings, self.run = method, sites, settings, run
        self.max_alive = len(sites) if max_alive is None else max(1, max_alive)
        self.names = tuple(sorted(sites))
        self.server = Server(method, settings)
        self.history = HistoryFile(None if run is None else run / "history.jsonl")
        self.alive: OrderedDict[str, Client] = OrderedDict()
        self.private: dict[str, State] = {}
        self.trained: set[str] = set()
        self.best: _Best | None = None

    def survey(self) -> None:
        if self.run is not None and checkpoint.latest(self.run) is not None:
            raise ConfigError(f"{self.run}: holds rounds of a run; resume it, or choose another folder")
        self.history.start()
        surveys = []
        for name in self.names:
            client = self.client(name)
            surveys.append(client.survey())
            _require_validation(name, client)
            self.private[name] = client.private()
        self.server.open(surveys)

    def resume(self, done: int) -> None:
        assert self.run is not None
        held = checkpoint.load(self.run, done)
        if held.sites != self.names:
            raise ConfigError(f"{self.run}: holds sites {', '.join(held.sites)}, asked for {', '.join(self.names)}")
        if held.round > self.settings.rounds:
            raise ConfigError(f"{self.run}: holds {held.round} rounds, more than rounds={self.settings.rounds}")
        self.server.restore(held.server, round=held.round, sites=held.sites, parameters=held.parameters)
        self.private = dict(held.private)
        self.history.cut(held.history_rows)
        self.trained = {event.site for event in self.history.history.events if event.kind == "trained"}
        self.best = _Best(*held.best) if held.best else None

    def client(self, name: str) -> Client:
        client = self.alive.pop(name, None)
        if client is None:
            while len(self.alive) >= self.max_alive:
                self.alive.popitem(last=False)[1].close()
            client = Client(self.method, self.sources[name], self.settings)
            if name in self.private:
                client.restore(self.private[name])
        self.alive[name] = client
        return client

    def _drop(self, name: str) -> None:
        """Rebuild this site when it is next needed."""
        client = self.alive.pop(name, None)
        if client is not None:
            client.close()

    def do_round(self) -> list[Entry]:
        cast, before = self.server.cast(), dict(self.private)
        chosen = sample_sites(self.names, self.settings.fraction, seed=self.settings.seed, round=cast.round)
        updates, scores, events = [], [], []
        for name in self.names:
            if name not in chosen:
                events.append(Event(name, cast.round, "not_sampled"))
                continue
            try:
                score, update = self._serve(name, cast)
            except ConfigError:
                raise
            except Exception as error:  # a site may fail in any way; the round goes on without it
                reason = f"{type(error).__name__}: {error}"
                logger.warning("round %d, site %s failed: %s", cast.round, name, reason)
                events.append(Event(name, cast.round, "failed", reason))
                self._drop(name)
                continue
            updates.append(update)
            scores += [score] if score else []
        self._choose(scores, cast, before)
        return self._finish(cast, updates, scores, events, before)

    def _serve(self, name: str, cast: Broadcast) -> tuple[Evaluation | None, Update]:
        client = self.client(name)
        score = client.evaluate(cast)
        update = client.fit(cast)
        self.private[name] = client.private()
        return score, update

    def _finish(
        self,
        cast: Broadcast,
        updates: list[Update],
        scores: list[Evaluation],
        events: list[Event],
        before: Mapping[str, State],
    ) -> list[Entry]:
        if not updates:
            reasons = "; ".join(f"{event.site}: {event.reason}" for event in events if event.kind == "failed")
            raise RoundError(f"round {cast.round}: every site failed ({reasons}); the last good model is kept")
        try:
            excluded = self.server.absorb(updates)
        except RoundError as error:
            self.history.add(*events)  # for the reader; a resume cuts them off again
            failed = "; ".join(f"{event.site}: {event.reason}" for event in events if event.kind == "failed")
            raise RoundError(f"{error}" + (f" (failed: {failed})" if failed else "")) from error
        for event in excluded:  # what made its update useless must not live on at the site
            self.private[event.site] = before[event.site]
            self._drop(event.site)
        accepted = {update.site for update in updates} - {event.site for event in excluded}
        self.trained |= accepted
        losses = [Evaluation(u.site, u.round, "train", u.samples, u.metrics) for u in updates if u.site in accepted]
        events += [*excluded, *(Event(site, cast.round, "trained") for site in accepted)]
        entries: list[Entry] = [*scores, *losses, *sorted(events, key=lambda event: event.site)]
        self.history.add(*entries)
        if self.run is not None:
            best = (self.best.round, self.best.score) if self.best else None
            checkpoint.commit(self.run, self.server, self.private, changed=accepted, rows=self.history.rows, best=best)
        return entries

    def _choose(self, scores: list[Evaluation], cast: Broadcast, private: Mapping[str, State]) -> None:
        """Remember the received model if it is the best so far.

        Best by the unweighted mean of the key metric over the sites that took part, have trained and have a value.
        """
        values = (next(iter(score.metrics.values())) for score in scores if score.site in self.trained)
        counted = [value for value in values if value is not None]
        if not counted or self.settings.choose == "last":
            return
        mean = sum(counted) / len(counted)
        if self.best is None or mean > self.best.score:
            self.best = _Best(cast.round - 1, mean, cast, private)

    def outcome(self) -> Outcome:
        cast = self.server.cast()
        scores = [self.client(name).evaluate(cast) for name in self.names]
        found = [score for score in scores if score]
        self._choose(found, cast, self.private)
        self.history.add(*found)
        round, chosen, private = cast.round - 1, cast, dict(self.private)
        if self.best is not None:
            round, (chosen, private) = self.best.round, self._recall(self.best)
        return Outcome(chosen, private, round, self.server.state(), dict(self.private), self.history.history)

    def _recall(self, best: _Best) -> tuple[Broadcast, dict[str, State]]:
        if best.cast is not None:
            return best.cast, dict(best.private)
        assert self.run is not None
        held = checkpoint.load(self.run, best.round)
        server = Server(self.method, self.settings)
        server.restore(held.server, round=held.round, sites=held.sites, parameters=held.parameters)
        return server.cast(), dict(held.private)
