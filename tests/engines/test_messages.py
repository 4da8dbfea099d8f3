"""Everything that crosses between server and sites, as PRIVACY.md lists it and nothing else.

All engines carry what `federation.wire` packs, so its arrays and its text are what is looked at here.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from laws import method
from loopback import Loopback
from numpy.typing import NDArray

from monai_fedskew.core.state import State
from monai_fedskew.data.datasets import ConnectomeDataset
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.data.synthetic_images import write_synthetic_images
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.exchange import Failure
from monai_fedskew.federation.memory_store import MemoryStore
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.rounds import Rounds
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.wire import Packed
from monai_fedskew.sites.bundle import BundleSite

ROOT = Path(__file__).resolve().parents[2]

METHODS = [
    "fedbn",
    "fedrdn+fedbn+fedprox",
    "silobn",
    "sitenorm+fedavg",
    "fedrdn:clip=2,noise=0.1+fedbn",
    "fednova+moon",
    "scaffold",
    "fedmix",
    "hbn",
    "fedfa",
    "harmofl",
]
ON_IMAGES = ("fedfa", "harmofl")
# Private state that is told as it is, and why: what the server has of the site is no secret from it.
TOLD = {
    "moon": "the site's own model as it was sent",
    "scaffold": "the first change of the control variate is the variate",
    "fedfa": "the running means are what is reported",
}
SITES = ("A", "B")
NEAR = 1e-4  # a copy that was rounded or cast is a copy


@dataclass
class Log:
    """A run's messages, and the private states its sites had."""

    sent: list[tuple[str, str, Packed]]  # direction, task, message
    private: dict[str, list[State]]


class Keeping(MemoryStore):
    """A store that forgets nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, list[State]] = {}

    def write(self, key: Any, round: int, state: State, *, keep: Any) -> None:
        """Keep a second copy for ever."""
        self.all.setdefault(key.site, []).append(state)
        super().write(key, round, state, keep=keep)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites' data, in a folder whose name stands in no message by itself."""
    folder = tmp_path_factory.mktemp("hospital") / "patient-records"
    return write_synthetic_study(folder, sites=SITES, subjects=16, windows=4, n_regions=6)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites' images."""
    return write_synthetic_images(tmp_path_factory.mktemp("archive") / "patient-images", sites=SITES, images=32)


@pytest.fixture(scope="module")
def origin(records: Path, pictures: Path, tiny_bundle: Path, image_bundle: Path) -> Any:
    """Where a method's sites come from: data folder, and a source for each site."""

    def find(text: str) -> tuple[Path, dict[str, BundleSite]]:
        data, bundle = (pictures, image_bundle) if text in ON_IMAGES else (records, tiny_bundle)
        plain = {"momentum": 0.0} if text == "scaffold" else {}
        return data, {site: BundleSite(bundle, site, data / site, plain) for site in SITES}

    return find


@pytest.fixture(scope="module")
def messages(origin: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two rounds and the end of a run, by method."""

    @cache
    def run(text: str) -> Log:
        settings, store, out = Settings(rounds=2), Keeping(), tmp_path_factory.mktemp("out")
        _, sources = origin(text)
        residents = {s: Resident(method(text), source, settings, store, output=out) for s, source in sources.items()}
        transport = Loopback(residents)
        rounds = Rounds(method(text), settings, transport, study="trial")
        rounds.start()
        for _ in range(settings.rounds):
            rounds.do_round()
        results = rounds.finish(rounds.conclude())
        assert {event.kind for event in rounds.history.history.events} == {"trained"}
        assert not [result for result in results.values() if isinstance(result, Failure)]
        return Log(transport.packed, store.all)

    return run


@pytest.mark.parametrize("text", METHODS)
def test_no_private_tensor_is_in_any_message(text: str, messages: Any) -> None:
    """Neither bit for bit nor rounded. FedRDN's pairs are shared by design; with noise the exact ones stay.

    Of what is in TOLD only that is left out; batch norm and such are looked for all the same.
    """
    log, looked = messages(text), 0
    nothing_is_kept = {"fednova+moon", "scaffold", "fedmix", "fedfa", "harmofl"}
    arrays = _arrays(log)
    for state in (state for states in log.private.values() for state in states):
        for key, tensor in state.items():
            values = tensor.numpy().ravel()
            is_the_table = key.startswith("part.fedrdn/sent/") or ("part.fedrdn/" in key and "noise" not in text)
            is_told = any(key.startswith(f"part.{name}/") for name in TOLD)
            if is_the_table or is_told or not _says_something(values):
                continue
            looked += 1
            assert not _holds_bytes(arrays, values), key
            assert not _holds_near(arrays, values[None]), key
    assert looked > 0 or text in nothing_is_kept


@pytest.mark.parametrize("text", METHODS)
def test_no_example_is_in_any_message(text: str, messages: Any, origin: Any) -> None:
    """No row of any site's data, training, validation or test: not its bytes in two precisions, nor rounded."""
    arrays = _arrays(messages(text))
    data, _ = origin(text)
    for site in SITES:
        rows = np.load(data / site / "vectors.npy")
        assert all(not _holds_bytes(arrays, row) and not _holds_bytes(arrays, row.astype(np.float64)) for row in rows)
        assert not _holds_near(arrays, rows)


def test_a_planted_example_would_be_found(records: Path) -> None:
    """The search works: inside another array, transposed into float64, and rounded to four digits."""
    row = np.load(records / "A" / "vectors.npy")[3]
    inside = np.concatenate([np.zeros(3), row.astype(np.float64).round(5), np.ones(2)])

    assert _holds_bytes([np.stack([row * 0, row])], row)
    assert _holds_near([inside], row[None])
    assert not _holds_near([inside[::-1]], row[None])


@pytest.mark.parametrize("text", METHODS)
def test_no_path_and_no_subject_is_in_any_message(text: str, messages: Any, origin: Any) -> None:
    """Every string and every name: no separator but the one between part and key, no folder, no subject's id."""
    log, (data, _) = messages(text), origin(text)
    named = [ConnectomeDataset(data / site, "all").subject_ids.tolist() for site in SITES]
    subjects = {name for names in named for name in names}
    assert len(subjects) == 32
    folders = {piece for piece in data.parts if len(piece) > 3}
    folders |= {"vectors.npy", "tiny_bundle", "image_bundle", "manifest"}
    strings = set()
    for _, _, packed in log.sent:
        strings |= {*_strings(json.loads(packed.plain)), *packed.tensors}
        strings |= {piece for key in packed.aux for piece in key.split("/")}
    assert {"trial", "A", "B", "fit"} <= strings
    assert not [s for s in strings if "/" in s or "\\" in s]
    assert not [s for s in strings if any(word in s for word in subjects | folders)]


@pytest.mark.parametrize("text", METHODS)
def test_only_shared_entries_and_declared_parts_travel(text: str, messages: Any, origin: Any) -> None:
    """Names of tensors are the shared ones; private names are told as names only."""
    client = Client(method(text), origin(text)[1]["A"], Settings(rounds=1))
    for direction, task, packed in messages(text).sent:
        is_model = (direction, task) in {("to the server", "survey"), ("to the server", "fit")} or (
            direction == "to the site" and task != "survey"
        )
        assert set(packed.tensors) == (client.shared if is_model else set()), (direction, task)
        assert {key.split("/")[0] for key in packed.aux} <= set(client.bound)


def test_the_page_lists_every_plain_field_and_no_other(messages: Any) -> None:
    """PRIVACY.md's table of fields is what the messages of all methods hold, by direction and task."""
    found = {
        (direction, task, name)
        for text in METHODS
        for direction, task, packed in messages(text).sent
        for name in _field_names(json.loads(packed.plain))
    }

    assert _table("## Plain fields") == found


def test_the_page_lists_every_array_and_no_other(messages: Any) -> None:
    """Its second table: shared entries as one row, and what each part adds: SITE, ENTRY and STAGE stand for names."""
    found = set()
    for text in METHODS:
        for direction, task, packed in messages(text).sent:
            names = {re.sub(f"/({'|'.join(SITES)})/", "/SITE/", key) for key in packed.aux}
            names = {re.sub(r"/[a-z0-9.]*\.?(weight|bias)$", "/ENTRY", name) for name in names}
            names = {re.sub(r"^fedfa/.+", "fedfa/STAGE", name) for name in names}
            names |= {"shared entries"} if packed.tensors else set()
            found |= {(direction, task, name) for name in names}

    assert _table("## Arrays") == found


def _table(heading: str) -> set[tuple[str, str, str]]:
    """Read direction, tasks and names from a table of the page."""
    section = (ROOT / "PRIVACY.md").read_text().split(f"{heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {
        (direction, task.strip(), name.strip().strip("`"))
        for direction, tasks, names, *_ in rows[2:]
        for task in tasks.split(",")
        for name in names.split(", ")
    }


def _field_names(value: Any, path: str = "") -> Iterator[str]:
    """Dotted names of all fields; the entries of a mapping whose keys are metrics are one field."""
    if isinstance(value, dict) and path.split(".")[-1] not in ("metrics", "scores"):
        for key, inner in value.items():
            yield from _field_names(inner, f"{path}.{key}" if path else key)
    else:
        yield path


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _arrays(log: Log) -> list[NDArray[Any]]:
    return [array for _, _, packed in log.sent for array in (*packed.tensors.values(), *packed.aux.values())]


def _says_something(values: NDArray[Any]) -> bool:
    """Whether finding it elsewhere would be no accident: several numbers, not those every fresh layer starts from."""
    return values.dtype.kind == "f" and values.size > 1 and not np.isin(values, (0, 1)).all()


def _holds_bytes(arrays: list[NDArray[Any]], values: NDArray[Any]) -> bool:
    return any(values.tobytes() in array.tobytes() for array in arrays)


def _holds_near(arrays: list[NDArray[Any]], rows: NDArray[Any]) -> bool:
    """Whether any run of numbers in the arrays is one of the rows, up to rounding."""
    length = rows.shape[1]
    for array in arrays:
        if array.size < length:
            continue
        runs = np.lib.stride_tricks.sliding_window_view(array.ravel().astype(np.float64), length)
        first = np.abs(runs[:, :1] - rows[None, :, 0]) < NEAR  # few pass; only those are compared in full
        for run, row in zip(*np.nonzero(first), strict=True):
            if np.abs(runs[run] - rows[row]).max() < NEAR:
                return True
    return False
