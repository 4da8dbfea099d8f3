"""The embedded engine: server and sites in one process, a checkpoint after every round."""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.core.messages import Broadcast, History
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.discretion import root_cause
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.memory_store import MemoryStore
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.rounds import OnRound, Rounds
from monai_fedskew.federation.sampling import sample_size
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
    on_round: OnRound | None = None,
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
    _require_enough(sites, settings)
    transport = _InProcess(method, sites, settings, max_alive)
    rounds = Rounds(method, settings, transport, run=run, private=transport.private)
    done = checkpoint.latest(run) if run is not None and resume else None
    if run is None or done is None:
        rounds.start()
    else:
        held = checkpoint.load(run, done)
        transport.restore(held, run)
        rounds.resume(held)
    while rounds.server.round < settings.rounds:
        entries = rounds.do_round()
        if on_round is not None:
            on_round(rounds.server.round, entries)
    end = rounds.conclude()
    private = transport.chosen(end.since, run, end.round)
    last = transport.private(end.last_since)
    transport.close()
    return Outcome(end.cast, private, end.round, end.last, last, end.history)


def check_run(method: Method, sites: Mapping[str, SiteSource], settings: Settings) -> None:
    """Find, before anything is written, what would stop a run: opens the first site by name.

    Raises:
        ConfigError: too few sites, a method that does not fit the network, no validation data to choose by, ...
        DataError: the site cannot be opened.
    """
    _require_enough(sites, settings)
    name = min(sites)
    training = Client(method, sites[name], settings)
    training.require_validation()
    training.close()
    scoring = Client(method, sites[name], settings, split="test")
    if not scoring.site.has_evaluation_data:
        raise ConfigError(f"site {name}: no test examples; look at the split and the fold")
    scoring.close()


def _require_enough(sites: Mapping[str, SiteSource], settings: Settings) -> None:
    if settings.min_sites > len(sites):
        raise ConfigError(f"min_sites={settings.min_sites}, but there are {len(sites)} sites")
    if settings.min_sites > (sampled := sample_size(len(sites), settings.fraction)):
        raise ConfigError(
            f"min_sites={settings.min_sites}, but fraction={settings.fraction} of {len(sites)} sites is {sampled}; "
            "raise the one or lower the other"
        )


class _InProcess:
    """A Transport to sites in this process, at most so many of them held at once."""

    def __init__(
        self, method: Method, sites: Mapping[str, SiteSource], settings: Settings, max_alive: int | None
    ) -> None:
        self.store = MemoryStore()
        self.residents = {name: Resident(method, source, settings, self.store) for name, source in sites.items()}
        self.max_alive = len(sites) if max_alive is None else max(1, max_alive)
        self.alive: OrderedDict[str, Resident] = OrderedDict()

    def present(self) -> frozenset[str]:
        return frozenset(self.residents)

    def ask(self, requests: Mapping[str, Request]) -> dict[str, Reply | Failure]:
        return {name: self._ask_one(name, requests[name]) for name in sorted(requests)}

    def _ask_one(self, name: str, request: Request) -> Reply | Failure:
        if self.alive.pop(name, None) is None:
            while len(self.alive) >= self.max_alive:
                self.alive.popitem(last=False)[1].close()
        try:
            reply = self.residents[name].answer(request)
        except ConfigError:
            raise
        except Exception as error:  # a site may fail in any way; the round goes on without it
            if request.task != "fit":
                raise
            return Failure(root_cause(error))
        self.alive[name] = self.residents[name]
        return reply

    def private(self, since: Mapping[str, int]) -> dict[str, State]:
        """Return each site's private state of a round."""
        return {name: self.store.states[name][round] for name, round in since.items()}

    def chosen(self, since: Mapping[str, int], run: Path | None, round: int) -> dict[str, State]:
        """Return the private states that go with the chosen model; after a resume they may lie on disk only."""
        held = self.store.states
        if run is None or all(at in held[name] for name, at in since.items()):
            return self.private(since)
        return dict(checkpoint.load(run, round).private)

    def restore(self, held: checkpoint.Checkpoint, run: Path) -> None:
        """Take up the private states of a checkpoint."""
        names = tuple(sorted(self.residents))
        if held.sites != names:
            raise ConfigError(f"{run}: holds sites {', '.join(held.sites)}, asked for {', '.join(names)}")
        self.store.states = {name: {held.since[name]: state} for name, state in held.private.items()}

    def close(self) -> None:
        for resident in self.residents.values():
            resident.close()
