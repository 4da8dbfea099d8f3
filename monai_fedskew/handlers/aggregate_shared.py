"""Federated averaging inside a MONAI trainer over torch.distributed: one rank a site, no federated engine."""

import atexit
import os
import random
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events
from monai.data.utils import set_rnd

from monai_fedskew.core.aggregate import weighted_mean
from monai_fedskew.core.keys import KeyFilter, except_modules
from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import describe, non_finite, require_alike, restore, snapshot
from monai_fedskew.errors import ConfigError, FedSkewError, RoundError
from monai_fedskew.handlers.exchange import broadcast_state, gather_states, gather_values
from monai_fedskew.handlers.trainer import network_of

__all__ = ["AggregateShared"]


class AggregateShared:
    """Average the shared entries of the network over all ranks every few epochs; leave private ones alone.

    w_l = sum_k p_k w_{l,k} for every shared entry l, gathered in rank order and averaged in float64, counters by their
    maximum: with the same ``seed`` and ``site`` it is the simulator's fedavg, fedbn or silobn bit for bit. A round is
    ``every`` local epochs. Training starts from rank 0's shared entries, so rank 0 should be the first site by name.
    Start the ranks with torchrun, for example; if no process group exists one is made with gloo. Put the handler
    before a ValidationHandler, which then scores the average. All ranks must run all epochs: one that stops early keeps
    the others waiting until the process group's timeout, so leave EarlyStopHandler out.

    Paper: McMahan et al. 2017, arXiv 1602.05629; Li et al. 2021, FedBN, arXiv 2102.07623.

    Args:
        share: which entries are shared; None keeps every batch norm at its site (FedBN).
        every: local epochs a round, 1 or more; ``max_epochs`` must be a multiple.
        weights: "samples" weighs by the length of the training dataset, "equal" alike, a number above 0 is this
            rank's own weight. Weights are divided by their sum.
        optimizer_state: "reset" forgets momentum and the like at the start of each round, "keep" does not.
        seed: makes all randomness of a round a function of (seed, site, round), as the simulator does; None leaves
            it alone.
        site: name of this rank's site, for ``seed`` and errors; "rank<r>" if empty.

    Raises:
        ConfigError: a parameter out of range, no process group and no torchrun, ranks that disagree in ``every``,
            epochs or kind of weights. Raised on every rank.
        StateError: ranks whose shared keys, shapes or dtypes differ. Raised on every rank.
        RoundError: values that are not finite in an update. Raised on every rank.

    >>> AggregateShared(every=2, weights="equal").every
    2
    """

    def __init__(
        self,
        share: KeyFilter | None = None,
        *,
        every: int = 1,
        weights: Literal["samples", "equal"] | float = "samples",
        optimizer_state: Literal["reset", "keep"] = "reset",
        seed: int | None = None,
        site: str = "",
    ) -> None:
        if every < 1:
            raise ConfigError(f"AggregateShared: every={every!r} must be 1 or more local epochs")
        if weights not in ("samples", "equal") and not (isinstance(weights, int | float) and 0 < weights < np.inf):
            raise ConfigError(f"AggregateShared: weights={weights!r} must be samples, equal or a number above 0")
        if optimizer_state not in ("reset", "keep"):
            raise ConfigError(f"AggregateShared: optimizer_state={optimizer_state!r} must be reset or keep")
        self.share: KeyFilter = except_modules() if share is None else share
        self.every, self.weights, self.optimizer_state = every, weights, optimizer_state
        self.seed, self.site = seed, site
        self._shared: frozenset[str] = frozenset()
        self._sites: list[str] = []
        self._p: list[float] = []

    def attach(self, engine: Engine) -> None:
        """Register the handler."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.EPOCH_STARTED, self._begin_round)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._average)

    def _start(self, engine: Any) -> None:
        network = network_of(engine, "AggregateShared")
        _require_group()
        self.site = self.site or f"rank{dist.get_rank()}"
        cards = gather_values(self._card(engine))
        _require_agreement(cards)
        total = sum(card["weight"] for card in cards)
        self._sites, self._p = [card["site"] for card in cards], [card["weight"] / total for card in cards]
        restore(network, broadcast_state(snapshot(network, self._shared)))

    def _card(self, engine: Any) -> dict[str, Any]:
        """Describe this rank; an error of its own goes on the card, so that no other rank waits for it."""
        card: dict[str, Any] = {"site": self.site}
        try:
            epochs = engine.state.max_epochs
            if epochs % self.every:
                raise ConfigError(f"max_epochs={epochs} is no multiple of every={self.every}; the rest were lost")
            self._shared = self.share(engine.network)
            if not self._shared:
                raise ConfigError(f"{self.share} shares no entry of {type(engine.network).__name__}")
        except FedSkewError as error:
            return card | {"error": str(error)}
        kind = self.weights if isinstance(self.weights, str) else "number"
        weight = {"samples": len(engine.data_loader.dataset), "equal": 1}.get(kind, self.weights)
        settings = {"every": self.every, "max_epochs": epochs, "weights": kind, "seed": self.seed}
        live = engine.network.state_dict()
        entries = {key: describe(live[key]) for key in sorted(self._shared)}
        return card | {"weight": weight, "settings": settings, "entries": entries}

    def _begin_round(self, engine: Any) -> None:
        if (engine.state.epoch - 1) % self.every:
            return
        if self.optimizer_state == "reset":
            engine.optimizer.state.clear()
        if self.seed is not None:
            _reseed(engine, derive(self.seed, self.site, (engine.state.epoch - 1) // self.every + 1))

    def _average(self, engine: Any) -> None:
        if engine.state.epoch % self.every:
            return
        states = gather_states(snapshot(engine.network, self._shared))
        _require_finite(states, self._sites, engine.state.epoch // self.every)
        restore(engine.network, weighted_mean(states, self._p))


def _require_group() -> None:
    if dist.is_initialized():
        return
    if "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            "AggregateShared: no other rank to average with. Start one process a site, for example by torchrun "
            "--nproc-per-node 2 -m monai.bundle run ..., or leave the handler out to train one site alone"
        )
    dist.init_process_group("gloo")
    atexit.register(_leave_group)


def _leave_group() -> None:
    """Stop gloo's threads before Python goes; left running they may abort a process that has done its work."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _require_agreement(cards: list[dict[str, Any]]) -> None:
    for rank, card in enumerate(cards):
        if "error" in card:
            raise ConfigError(f"AggregateShared: rank {rank}, {card['site']}: {card['error']}")
    first, names = cards[0], [card["site"] for card in cards]
    if len(set(names)) < len(names):
        raise ConfigError(f"AggregateShared: the ranks are {', '.join(names)}; each needs a site of its own")
    for rank, card in enumerate(cards):
        where = f"AggregateShared: rank {rank}, {card['site']}"
        for name, value in card["settings"].items():
            if value != first["settings"][name]:
                raise ConfigError(
                    f"{where}: {name}={value!r}, but {first['settings'][name]!r} on rank 0, {first['site']}; give all "
                    "ranks the same"
                )
        require_alike(f"{where}: network", first["entries"], card["entries"], f"rank 0, {first['site']},")


def _require_finite(states: list[dict[str, torch.Tensor]], sites: list[str], round: int) -> None:
    for site, state in zip(sites, states, strict=True):
        problem = non_finite(state)
        if problem:
            raise RoundError(f"round {round}, {site}: {problem}; lower the learning rate")


def _reseed(engine: Any, value: int) -> None:
    """Seed all that draws in a round; a new pass over the data starts after it."""
    torch.manual_seed(value)
    np.random.seed(value % 2**32)
    random.seed(value)
    loader = engine.data_loader
    set_rnd(loader.dataset, value % 2**31)
    for holder in (loader, loader.sampler, loader.batch_sampler):
        generator = getattr(holder, "generator", None)
        if generator is not None:
            generator.manual_seed(value)
    if engine.state.epoch > 1:
        # ignite keeps the iterator between epochs, and an exhausted RandomSampler draws once more when asked
        engine.set_data(engine.state.dataloader)
