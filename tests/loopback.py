"""An engine as thin as can be: sites with their own stores in this process, every message through the wire."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.federation.exchange import Failure, Reply, Request
from monai_fedskew.federation.resident import Resident, open_resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.wire import Packed, pack, unpack_reply, unpack_request
from monai_fedskew.sites.site_file import SiteFile

Spoil = Callable[[str, Request, Reply], Reply | Failure]


@dataclass
class Loopback:
    """A Transport that can lose, spoil and look at messages.

    Args:
        residents: by site.
        spoil: changes an answer on its way back; what the site did is done all the same.
        absent: by site, the rounds in which the engine cannot reach it.
        packed: every message that crossed: direction, task, message.
    """

    residents: Mapping[str, Resident]
    spoil: Spoil = lambda site, request, reply: reply
    absent: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    packed: list[tuple[str, str, Packed]] = field(default_factory=list)
    round: int = 0

    def present(self) -> frozenset[str]:
        """Return who is there in the round that is about to start."""
        return frozenset(name for name in self.residents if self.round + 1 not in self.absent.get(name, ()))

    def ask(self, requests: Mapping[str, Request]) -> dict[str, Reply | Failure]:
        """Ask one after the other."""
        answers = {name: self._ask_one(name, request) for name, request in requests.items()}
        if any(request.task == "fit" for request in requests.values()):
            self.round = max(request.cast.round for request in requests.values() if request.cast)
        return answers

    def _ask_one(self, name: str, request: Request) -> Reply | Failure:
        sent = pack(request)
        self.packed.append(("to the site", request.task, sent))
        try:
            reply = self.residents[name].answer(unpack_request(sent))
        except Exception as error:  # noqa: BLE001  as an engine does
            return Failure(f"{type(error).__name__}: {error}")
        back = self.spoil(name, request, reply)
        if isinstance(back, Failure):
            return back
        received = pack(back)
        self.packed.append(("to the server", request.task, received))
        return unpack_reply(received)


def loopback(
    method: Method, settings: Settings, sources: Mapping[str, Any], root: Path, *, is_kept: bool = True, **more: Any
) -> Loopback:
    """Make sites of bundle sources, each with state and results below ``root``."""
    residents = {}
    for name, source in sources.items():
        own = root / name
        there = SiteFile(name, source.bundle, source.data, own / "state", own / "results", source.overrides)
        residents[name] = open_resident(there, method, settings, is_kept=is_kept)
    return Loopback(residents, **more)


def private_state(root: Path, site: str, round: int) -> dict[str, Tensor]:
    """Read a site's private state of a round as it lies on the site's disk, below ``root``/site/state."""
    return read_state(root / site / "state", round)


def read_state(folder: Path, round: int) -> dict[str, Tensor]:
    """Read the private state of a round from a site's folder of state, which holds one study."""
    (file,) = folder.rglob(f"{round}.safetensors")
    return load_file(file)


def changed(reply: Reply, **tensors: Any) -> Reply:
    """Return an update with other tensors."""
    message: Any = reply.message
    return replace(reply, message=replace(message, tensors={**message.tensors, **tensors}))
