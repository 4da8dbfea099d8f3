"""What a node or a run configuration may hold when it holds rubbish: one failure or one error, never the run's end."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.grid import LocalGrid, Node
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from laws import method
from variants import NumberSite

from monai_fedskew.engines import flower
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.exchange import Failure, Request
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.store import SiteStore


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """As they were."""
    ours = logging.getLogger("monai_fedskew")
    before = (ours.handlers, ours.propagate, ours.level)
    yield
    ours.handlers, ours.propagate = before[:2]
    ours.setLevel(before[2])


def _node(tmp_path: Path, site: str, name: str = "") -> Node:
    def open_at(context: Context) -> Resident:
        return Resident(method("fedavg"), NumberSite(site, 5, 1.0), Settings(1), SiteStore(tmp_path / site))

    return Node(flower.client_app(open_at), {"site": site}, name)


def _saved(text: bytes) -> ArrayRecord:
    return ArrayRecord({"w": Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=text)})


def _header(shape: str) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(1))
    return buffer.getvalue().replace(b"(1,)", shape.encode(), 1)


@pytest.mark.parametrize(
    ("part", "record"),
    [
        ("tensors", ConfigRecord({"w": 1})),
        ("aux", ConfigRecord({"w": [1.0]})),
        ("plain", ArrayRecord()),
        ("tensors", _saved(b"")),
        ("tensors", _saved(b"PK\x03\x04" + 20 * b"x")),
        ("tensors", _saved(b"\x80\x04K\x01.")),
        ("tensors", _saved(_header("(1000000000000,)"))),
        ("plain", ConfigRecord({"site": "A", "json": 100_000 * "["})),
        ("plain", ConfigRecord({"site": ["A"], "json": "{}"})),
    ],
    ids=["no arrays", "no aux", "no text", "empty", "zip", "pickle", "huge", "deep", "list"],
)
def test_a_reply_of_other_records_is_a_failure(part: str, record: Any, tmp_path: Path) -> None:
    """Of its site only: what numpy, zipfile and Flower make of such bytes must not end the run."""
    node = _node(tmp_path, "A", "A")
    nodes = flower.Nodes(LocalGrid({1: node}), 1)
    assert nodes.present() == {"A"}

    def replace_part(reply: Message) -> Message:
        reply.content[part] = record
        return reply

    node.spoil = replace_part
    answer = nodes.ask({"A": Request("survey", "study", "run")})["A"]
    assert isinstance(answer, Failure)
    assert len(answer.reason) < 400


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"timeout": -1}, "timeout=-1 must be a number, at least 1"),
        ({"timeout": float("nan")}, "timeout=nan must be a number"),
        ({"sites": "2"}, "sites='2' must be a number"),
        ({"wait": None}, "lacks wait"),
        ({"resume": "false"}, "resume='false' must be true or false, without quotes"),
        ({"threads": None}, "lacks threads; write the app folder"),
        ({"threads": 10**9}, "threads=1000000000 must be at most 1024"),
    ],
)
def test_a_run_configuration_that_was_edited_is_named(change: dict[str, Any], reason: str) -> None:
    """`--run-config` and the app folder's pyproject.toml can hold anything."""
    ours = {"study": "study", "method": "fedavg", "sites": 2, "timeout": 1, "wait": 1, "resume": False}
    changed = ours | Settings(rounds=1).plain() | change
    grid = LocalGrid({}, run_config={name: value for name, value in changed.items() if value is not None})
    with pytest.raises(ConfigError, match=reason):
        flower.server(grid, Context(1, 1, {}, RecordDict(), grid.run_config))
