"""Flower: a ClientApp around Resident and a ServerApp around ``run_study``.

The Grid is driven directly: the server holds shared entries only and has its own aggregation, history and checkpoints,
so a Strategy of Flower's would have nothing to merge. A round is one message a site, because Flower starts a process
for each. Imports that load torch or MONAI stand inside functions: a process that only says who it is starts at once.

Where a site's things lie is said at the site: ``--node-config 'site="NYU" fedskew="/srv/fedskew.json"'``. Its private
state lies in the store that fedskew.json names; Flower's own context lives in memory only.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation.discretion import one_line, what_may_cross

if TYPE_CHECKING:
    from monai_fedskew.federation.exchange import Failure, Reply, Request
    from monai_fedskew.federation.resident import Resident
    from monai_fedskew.federation.settings import Settings
    from monai_fedskew.federation.wire import Packed

    _Arrays = tuple[ArrayRecord, ArrayRecord]  # tensors, side channel

__all__ = ["Nodes", "client", "client_app", "server"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # between two looks for replies; Flower's own send_and_receive waits 3
_LEAST = {"sites": 1, "timeout": 1, "wait": 0}  # of the run configuration; sites, and seconds
_WHO, _TYPES = "query.who", {"survey": "query", "fit": "train", "evaluate": "evaluate", "finish": "query"}


class Nodes:
    """The sites behind a Grid; the Transport of ``run_study``.

    Flower knows nodes by a number, which belongs to the node's key where SuperNodes are authenticated. A number is tied
    to the first name it is known by: that which its key was registered under (``flwr supernode register --name``), else
    what its node configuration says. No node takes another's name while the run lasts.

    Args:
        grid: of the ServerApp.
        timeout: seconds a site has for an answer.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self.grid, self.timeout = grid, timeout
        self._names: dict[int, str] = {}
        self._unnamed: dict[str, int] = {}  # message "who are you" -> node that has not answered yet
        self._told: set[int] = set()  # nodes that were asked, or refused

    def wait(self, sites: int, seconds: float) -> None:
        """Wait until this many sites are there.

        Raises:
            RoundError: they did not come, naming those that did.
        """
        until = time.monotonic() + seconds
        while len(there := self.present()) < sites:
            if time.monotonic() > until:
                raise RoundError(
                    f"{len(there)} of {sites} sites are connected after {seconds:g} s ({', '.join(sorted(there))}); "
                    "start the other SuperNodes, or give another number of sites in the run configuration"
                )
            time.sleep(POLL_SECONDS)

    def present(self) -> frozenset[str]:
        """Return the sites that are connected and known by name."""
        nodes = {node.node_id: node.name for node in self.grid.get_nodes()}
        for node in nodes.keys() - self._names.keys() - self._told:
            if nodes[node]:
                self._name(node, nodes[node])
            else:
                self._told.add(node)
                question = Message(RecordDict(), node, _WHO, ttl=self.timeout)
                self._unnamed |= dict.fromkeys(self.grid.push_messages([question]), node)
        for reply in self.grid.pull_messages(list(self._unnamed)) if self._unnamed else ():
            node = self._unnamed.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self._told.discard(node)  # asked again when it is back
            else:
                self._name(node, _told_name(reply))
        return frozenset(self._names[node] for node in nodes if node in self._names)

    def ask(self, requests: Mapping[str, "Request"]) -> dict[str, "Reply | Failure"]:
        """Ask sites, one message each, and wait for all of them."""
        from monai_fedskew.federation.exchange import Failure
        from monai_fedskew.federation.wire import pack

        numbers = {name: node for node, name in self._names.items()}
        answers: dict[str, Reply | Failure] = {name: Failure("not connected") for name in requests}
        waiting: dict[str, str] = {}
        arrays: dict[int, _Arrays] = {}  # a broadcast is made into bytes once, not once a site
        for name in sorted(requests.keys() & numbers.keys()):
            packed, cast = pack(requests[name]), id(requests[name].cast)
            if cast not in arrays:
                arrays[cast] = _arrays(packed)
            content, kind = _records(packed, name, arrays[cast]), _TYPES[requests[name].task]
            sent = list(self.grid.push_messages([Message(content, numbers[name], kind, ttl=self.timeout)]))
            answers[name] = Failure("Flower did not take the message; its log at the server says why")
            waiting |= {number: name for number in sent if number}
        until = time.monotonic() + self.timeout
        while waiting and time.monotonic() < until:
            for reply in self.grid.pull_messages(list(waiting)):
                name = waiting.pop(reply.metadata.reply_to_message_id)
                answers[name] = _read(reply, numbers[name], name)
            time.sleep(POLL_SECONDS if waiting else 0)
        return answers | {name: Failure(f"no answer in {self.timeout:g} s") for name in waiting.values()}

    def _name(self, node: int, name: str) -> None:
        if not name:
            self._told.add(node)
            logger.warning(
                "node %d does not say which site it is; give its SuperNode --node-config 'site=\"NAME\"'", node
            )
            return
        holder = next((other for other, held in self._names.items() if held == name), None)
        if holder is None:
            self._names[node] = name
            return
        self._told.add(node)
        logger.warning(
            "node %d says that it is %s, but that is node %d; refused. A SuperNode keeps its number over a restart "
            "with node authentication only; without, it comes back when the study is run again with resume=true",
            node,
            name,
            holder,
        )


def client_app(open_at: Callable[[Context], "Resident"]) -> ClientApp:
    """Return the ClientApp of a site that ``open_at`` opens from its context."""

    def who(message: Message, context: Context) -> Message:
        return Message(RecordDict({"plain": ConfigRecord({"site": _site(context)})}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        from monai_fedskew.federation.wire import pack, unpack_request

        site = _site(context)
        try:
            reply = pack(open_at(context).answer(unpack_request(_packed(message.content))))
            content = _records(reply, site, _arrays(reply))
        except Exception as error:  # in Flower an exception's text goes to the server, with whatever stands in it
            logger.exception("site %s: no answer", site)
            content = RecordDict({"plain": ConfigRecord({"site": site, "failure": what_may_cross(error)})})
        return Message(content, reply_to=message)

    app = ClientApp()
    app.query("who")(who)
    for kind in (app.query, app.train, app.evaluate):
        kind()(answer)
    return app


def _open(context: Context) -> "Resident":
    """Open the site that the node's configuration names, rebuilt from its store for each message."""
    from monai_fedskew.federation.resident import open_resident
    from monai_fedskew.methods import parse_method
    from monai_fedskew.sites.site_file import read_site_file

    path = context.node_config.get("fedskew")
    if not isinstance(path, str):
        raise ConfigError(f"fedskew={path!r} in the node's configuration; give the path of the site's fedskew.json")
    site_file = read_site_file(Path(path).expanduser(), _site(context))
    return open_resident(
        site_file, parse_method(str(context.run_config["method"])), _settings(context.run_config), is_kept=False
    )


def _main(grid: Grid, context: Context) -> None:
    """Run the study of the run configuration; its RUN folder is ``<FEDSKEW_RUNS>/<study>``."""
    config = context.run_config
    _require_config(config)
    nodes = Nodes(grid, float(config["timeout"]))
    nodes.present()  # they say who they are while this process imports what it needs

    from monai_fedskew.core.private import require_folder_name
    from monai_fedskew.federation.study import run_study
    from monai_fedskew.methods import parse_method

    ours = logging.getLogger("monai_fedskew")
    ours.handlers, ours.propagate = logging.getLogger("flwr").handlers, False  # into the log that `flwr log` shows
    ours.setLevel(logging.INFO)
    method, settings, study = parse_method(str(config["method"])), _settings(config), str(config["study"])
    run = Path(os.environ.get("FEDSKEW_RUNS", "~/fedskew/runs")).expanduser() / require_folder_name("study", study)
    nodes.wait(int(config["sites"]), float(config["wait"]))
    run_study(method, settings, nodes, study=study, run=run, resume=bool(config["resume"]), engine="flower")


def _require_config(config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the run configuration, which `--run-config` can change, is one that can be run."""
    for name in ("study", "method", *_LEAST, "resume", "rounds"):
        if name not in config:
            raise ConfigError(f"run configuration: lacks {name}; write the app folder with `fedskew flower app`")
    for name, least in _LEAST.items():
        value = config[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise ConfigError(f"run configuration: {name}={value!r} must be a number, at least {least}")
    if not isinstance(config["resume"], bool):
        raise ConfigError(f"run configuration: resume={config['resume']!r} must be true or false, without quotes")


def _settings(config: Mapping[str, Any]) -> "Settings":
    from monai_fedskew.federation.settings import Settings

    given = {field.name: config[field.name] for field in fields(Settings) if field.name in config}
    if absent := sorted({field.name for field in fields(Settings)} - given.keys()):
        raise ConfigError(f"run configuration: lacks {absent[0]}; write the app folder with `fedskew flower app`")
    return Settings(**given)


def _site(context: Context) -> str:
    """The site's own word on who it is; the server compares it with the node's registered name."""
    return str(context.node_config.get("site", ""))


def _told_name(message: Message) -> str:
    """What a node says that it is; empty if it does not, for what a node sends must not end the run."""
    try:
        return str(message.content["plain"]["site"])
    except (KeyError, TypeError):
        return ""


def _arrays(packed: "Packed") -> "_Arrays":
    tensors, aux = ({key: Array(value) for key, value in held.items()} for held in (packed.tensors, packed.aux))
    return ArrayRecord(tensors), ArrayRecord(aux)


def _records(packed: "Packed", site: str, arrays: "_Arrays") -> RecordDict:
    """One JSON text: a ConfigRecord holds no None, no dictionary and no list of mixed kinds."""
    plain = ConfigRecord({"site": site, "json": packed.plain})
    return RecordDict({"tensors": arrays[0], "aux": arrays[1], "plain": plain})


def _packed(content: RecordDict) -> "Packed":
    from monai_fedskew.federation.wire import Packed

    tensors, aux = ({key: value.numpy() for key, value in content[part].items()} for part in ("tensors", "aux"))
    return Packed(tensors, aux, str(content["plain"]["json"]))


def _read(message: Message, node: int, site: str) -> "Reply | Failure":
    from monai_fedskew.federation.exchange import Failure
    from monai_fedskew.federation.wire import unpack_reply

    if message.has_error():  # made by Flower: the node went away, its process was killed, the app could not be loaded
        return Failure(f"Flower: {message.error.reason}")
    try:
        plain = message.content["plain"]
        if (message.metadata.src_node_id, plain["site"]) != (node, site):
            return Failure(f"answers as {plain['site']!r:.60}; name the node as its key was registered, {site}")
        return (
            Failure(one_line(str(plain["failure"]))) if "failure" in plain else unpack_reply(_packed(message.content))
        )
    except Exception as error:  # whatever stands in a reply, the others go on; numpy alone raises five kinds
        return Failure(one_line(f"reply cannot be read: {error}"))


client, server = client_app(_open), ServerApp()  # what an app folder's two files name
server.main()(_main)
