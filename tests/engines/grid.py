"""Flower's network in this process: what a ServerApp pushes is taken apart and put together as between machines."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["LocalGrid", "Node"]


@dataclass
class Node:
    """A SuperNode.

    Args:
        app: its ClientApp.
        config: its ``--node-config``.
        name: the name its key was registered under; empty without node authentication.
        is_online: whether the SuperLink has it as connected.
        spoil: None loses the answer, an Error replaces it.
    """

    app: ClientApp
    config: dict[str, Any]
    name: str = ""
    is_online: bool = True
    spoil: Callable[[Message], Message | Error | None] = lambda reply: reply


@dataclass
class LocalGrid(Grid):
    """A Grid whose nodes answer at once."""

    nodes: dict[int, Node]
    run_config: dict[str, Any] = field(default_factory=dict)
    crossed: list[bytes] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    _replies: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Be the process of a ServerApp."""
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def get_nodes(self) -> list[NodeInfo]:
        """Return the connected nodes."""
        return [NodeInfo(node_id=key, name=node.name) for key, node in self.nodes.items() if node.is_online]

    def get_node_ids(self) -> list[int]:
        """Return the numbers of the connected nodes."""
        return [node.node_id for node in self.get_nodes()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages and keep the answers."""
        numbers = []
        for message in messages:
            number = f"{message.metadata.message_type} {len(self.sent)}"
            self.sent.append(number)
            numbers.append(number)
            self._deliver(number, self._carry(message))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Hand out the answers that are there."""
        return [self._replies.pop(number) for number in list(message_ids) if number in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Not used."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Not used."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """Not used."""

    @property
    def run(self) -> Any:
        """Not used."""
        raise NotImplementedError

    def _deliver(self, number: str, message: Message) -> None:
        key = message.metadata.dst_node_id
        node = self.nodes[key]
        message.metadata.__dict__["_message_id"] = number
        context = Context(1, key, node.config, RecordDict(), self.run_config)
        reply = self._carry(node.app(message, context))
        answer = node.spoil(reply)
        if isinstance(answer, Error):
            answer = Message(answer, reply_to=message)
        if answer is not None:
            self._replies[number] = answer

    def _carry(self, message: Message) -> Message:
        """Take a message apart into the bytes that cross, and put it together from them."""
        contents = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
        self.crossed += contents.values()
        copy: Any = inflate_object_from_contents(message.object_id, contents)
        assert isinstance(copy, Message)
        return copy
