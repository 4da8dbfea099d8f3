"""What a method costs a site: arithmetic, memory and traffic, measured on two training steps."""

import inspect
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

from ignite.engine import Events
from monai.utils import CommonKeys
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from monai_fedskew.core.aggregate import WeightedMean
from monai_fedskew.core.messages import Broadcast, Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.errors import FedSkewError, RoundError
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.discretion import root_cause
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import quiet

__all__ = ["Cost", "measure_cost", "message_bytes"]


@dataclass(frozen=True)
class Cost:
    """Cost of a method at one site.

    Args:
        site: name of the site it was measured at.
        flops_per_sample: floating point operations of one training step, forward and backward, for each sample of its
            batch. Matrix products, convolutions and attention are counted, a multiplication with its addition as two;
            sums and element-wise operations are not.
        stored_values: numbers the site holds while it trains: those of the network and what the method keeps beside it.
        received_bytes: a broadcast, what the parts tell included.
        sent_bytes: an update, what the parts report included.
        survey_bytes: the report before the first round, sent once.
    """

    site: str
    flops_per_sample: float
    stored_values: int
    received_bytes: int
    sent_bytes: int
    survey_bytes: int

    def plain(self) -> dict[str, Any]:
        """Return the cost as plain values."""
        return asdict(self)


def measure_cost(method: Method, source: SiteSource, settings: Settings) -> Cost:
    """Measure a method's cost at one site, on a client and a server of its own that are thrown away.

    Two rounds of one training step each are made and the second is measured, since a method may hold nothing yet in the
    first (MOON's previous model, the server's memory of a part). With one site, what parts tell of all sites is smaller
    than in a run; the caller may put the bytes of a real broadcast in its place. Where parts measure the site's data
    before the first round, the survey takes as long as in the run.

    Args:
        method: what is run.
        source: the site.
        settings: how it is run.

    Raises:
        RoundError: a step failed, or what it made is not finite.
        ConfigError, StateError, DataError: what the method finds wrong with the site.
    """
    alone = replace(settings, local_epochs=1, min_sites=1, non_finite="error")
    client = Client(method, source, alone)
    server = Server(replace(method, aggregate=WeightedMean()), alone)  # of one update there is no median
    name = client.site.name
    try:
        with quiet():  # what is worth a warning comes again in the run
            survey = client.survey()
            server.open([survey])
            step = _Step(client)
            server.absorb([client.fit(server.cast())])
            step.is_measured = True
            cast = server.cast()
            update = client.fit(cast)
    except FedSkewError as error:
        text = str(error)
        raise type(error)(text if f"site {name}" in text else f"site {name}: {text}") from error
    except Exception as error:  # whatever the site's own code finds wrong
        reason = root_cause(error)
        raise RoundError(f"site {name}: two steps of {method.name} to measure its cost: {reason}") from error
    finally:
        client.close()
    flops = step.flops / step.samples
    return Cost(name, flops, step.stored, message_bytes(cast), message_bytes(update), message_bytes(survey))


def message_bytes(message: Broadcast | Survey | Update) -> int:
    """Return the size of all tensors of a message; what a wire adds to it is not counted."""
    told = (value for state in message.aux.values() for value in state.values())
    return sum(value.nbytes for value in (*message.tensors.values(), *told))


@dataclass
class _Step:
    """Stops every fit after its first step of the optimizer, and measures it when asked to, all its batches included.

    Loading them is outside of it.
    """

    client: Client
    is_measured: bool = False
    flops: int = 0
    samples: int = 0
    stored: int = 0
    _held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        trainer = self.client.site.trainer
        trainer.add_event_handler(Events.ITERATION_STARTED, self._begin)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._end)
        trainer.add_event_handler(Events.EXCEPTION_RAISED, self._failed)

    def _begin(self, engine: Any) -> None:
        if self.is_measured:
            counter = FlopCounterMode(display=False)
            counter.mod_tracker = _NoModules()  # type: ignore[assignment]  # all that the counter uses of it
            self._counter = self._held.enter_context(counter)

    def _end(self, engine: Any) -> None:
        self._held.close()
        if self.is_measured:
            self.flops += self._counter.get_total_flops()
            self.samples += len(engine.state.output[CommonKeys.LABEL])
            self.stored = _stored_values(self.client)
        if self.client.site.steps:
            engine.terminate()

    def _failed(self, engine: Any, error: Exception) -> None:
        self._held.close()  # the mode must not outlive the step
        raise error


class _NoModules:
    """Counts for no module: torch's own tracker hooks every module, and cannot have autograd.grad towards an input."""

    parents = frozenset({"Global"})

    def __enter__(self) -> "_NoModules":
        return self

    def __exit__(self, *error: object) -> None:
        return None


def _stored_values(client: Client) -> int:
    """Numbers in the memory behind the network's and the bounds' tensors, each piece of memory once."""
    site = client.site
    known = [site, site.model, site.optimizer, site.trainer, site.evaluator, site.loss_function]
    network = [*site.model.parameters(), *site.model.buffers()]
    pieces = {}
    for tensor in (*network, *_tensors(client.bound.values(), passed={id(one) for one in known})):
        storage = tensor.untyped_storage()
        pieces[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
    return sum(pieces.values())


def _tensors(roots: Iterable[Any], passed: set[int]) -> list[Tensor]:
    """All tensors that objects hold in attributes, collections, modules and closures; those ``passed`` are left out."""
    waiting, found = deque(roots), []
    while waiting:
        held = waiting.popleft()
        if id(held) in passed:
            continue
        passed.add(id(held))
        if isinstance(held, Tensor):
            found.append(held)
        else:
            waiting.extend(_inside(held))
    return found


def _inside(held: Any) -> Iterable[Any]:
    if isinstance(held, nn.Module):
        return [*held.parameters(), *held.buffers(), *vars(held).values()]
    if isinstance(held, Mapping):
        return held.values()
    if isinstance(held, list | tuple | set | frozenset | deque):
        return held
    if isinstance(held, MethodType):
        return [held.__self__]
    if isinstance(held, FunctionType):
        return inspect.getclosurevars(held).nonlocals.values()
    attributes: Mapping[str, Any] = {} if isinstance(held, type) else getattr(held, "__dict__", {})
    return attributes.values()
