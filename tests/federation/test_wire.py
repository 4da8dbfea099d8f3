"""Messages as arrays and text, there and back."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from monai_fedskew.core.messages import Broadcast, Evaluation, Result, Survey, Update
from monai_fedskew.errors import StateError
from monai_fedskew.federation.exchange import Reply, Request
from monai_fedskew.federation.wire import Packed, pack, unpack_reply, unpack_request

STATE = {
    "bn.num_batches_tracked": torch.tensor(7),
    "bn0.num_batches_tracked": torch.tensor(0),
    "w": torch.arange(3.0),
    "empty": torch.zeros(0),
    "mask": torch.tensor([True, False]),
    "half": torch.ones(2, dtype=torch.float16),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
}
AUX = {"fedrdn": {"mean": torch.ones(2)}, "silent": {}}
SCORE = Evaluation("NYU", 1, "validation", 9, {"accuracy": 0.1 + 0.2, "auc": None})
REPLIES = [
    Reply(Survey("NYU", STATE, frozenset({"w"}), 10, 2, AUX, frozenset({"bn.weight"}))),
    Reply(Update("NYU", 2, STATE, 10, 2, 5, AUX, {"loss": float("nan")}), SCORE),
    Reply(SCORE),
    Reply(None),
    Reply(Result("NYU", 3, {"window": {"accuracy": 1 / 3, "samples": 4}, "subject": {"auc": None}})),
]
REQUEST = Request("fit", "abide", "r1", 3, (1, 2), Broadcast(4, STATE, AUX))


def _through(packed: Packed) -> Packed:
    """As an engine would: arrays that are read-only views of a buffer, and text."""
    frozen = [{key: _view(array) for key, array in state.items()} for state in (packed.tensors, packed.aux)]
    return Packed(frozen[0], frozen[1], json.dumps(json.loads(packed.plain)))


def _view(array: Any) -> Any:
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def _same(one: Any, two: Any) -> bool:
    """Equal field by field: names, dtypes, shapes and bits."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and torch.equal(one, two)
    if isinstance(one, dict):
        return set(one) == set(two) and all(_same(one[key], two[key]) for key in one)
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(two) and all(_same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    return bool(one == two) or (one != one and two != two)


@pytest.mark.parametrize("reply", REPLIES, ids=["survey", "update", "evaluation", "nothing", "result"])
def test_a_reply_comes_back_as_it_was(reply: Reply) -> None:
    """Case 35: 0-d and empty tensors, booleans and counters keep dtype, shape and value; floats keep every bit."""
    assert _same(unpack_reply(_through(pack(reply))), reply)


def test_a_request_comes_back_as_it_was() -> None:
    """A model and a survey, which has none."""
    assert _same(unpack_request(_through(pack(REQUEST))), REQUEST)
    survey = Request("survey", "abide", "r1")
    assert unpack_request(_through(pack(survey))) == survey


def test_what_is_received_is_owned() -> None:
    """Tensors can be written to although the buffer cannot."""
    got = unpack_request(_through(pack(REQUEST)))
    assert got.cast is not None
    got.cast.tensors["w"].add_(1)
    assert STATE["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_what_numpy_does_not_have_is_refused(dtype: torch.dtype) -> None:
    """The key and its type are named."""
    update = replace(REPLIES[1].message, tensors={"w": torch.ones(2, dtype=dtype)})
    with pytest.raises(StateError, match=f"w is {dtype}, which cannot be sent"):
        pack(Reply(update))


def _spoilt(change: Any) -> Packed:
    packed = pack(REPLIES[1])
    plain = json.loads(packed.plain)
    arrays = dict(packed.tensors)
    change(plain, arrays)
    return Packed(arrays, packed.aux, json.dumps(plain))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p, a: p.pop("kind"), "no 'kind'"),
        (lambda p, a: p.update(kind="broadcast"), "no 'broadcast'"),
        (lambda p, a: p["message"].pop("steps"), r"Update with \['steps'\]"),
        (lambda p, a: p["message"].update(more=1), r"Update with \['more'\]"),
        (lambda p, a: p["message"].update(round="2"), "'2' where a whole number belongs"),
        (lambda p, a: p["message"].update(samples=-1), "-1 where a whole number belongs"),
        (lambda p, a: p["message"].update(samples=True), "True where a whole number belongs"),
        (lambda p, a: p["message"].update(site=3), "3 where text belongs"),
        (lambda p, a: p["message"].update(metrics={"loss": "low"}), "'low' where a number belongs"),
        (lambda p, a: p["message"].update(metrics={"loss": 10**400}), "where a number belongs"),
        (lambda p, a: p["message"].update(metrics=None), "no attribute 'values'"),
        (lambda p, a: p.update(parts=[]), "side channel of fedrdn, which is not announced"),
        (lambda p, a: p.update(parts=3), "reply cannot be read"),
        (lambda p, a: a.update(w=np.array(["x"])), "w is <U1, not numbers"),
        (lambda p, a: a.update(w=np.array([object()])), "w is object, not numbers"),
        (lambda p, a: a.update(w=[1.0]), "w is list, not numbers"),
        (lambda p, a: a.update({7: np.ones(1)}), "7 where text belongs"),
        (lambda p, a: a.update(w=np.ones(2, ">f4")), "reply cannot be read"),
    ],
)
def test_a_reply_that_is_not_whole_is_refused(change: Any, reason: str) -> None:
    """One error, whatever arrives."""
    with pytest.raises(StateError, match=reason):
        unpack_reply(_spoilt(change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", None, "[" * 100_000, "1" * 10_000])
def test_text_that_is_no_message_is_refused(text: Any) -> None:
    """Neither way."""
    for unpack in (unpack_reply, unpack_request):
        with pytest.raises(StateError, match="message cannot be read"):
            unpack(Packed({}, {}, text))


@pytest.mark.parametrize(
    ("fields_", "reason"),
    [
        ({"task": "run"}, "task 'run'"),
        ({"study": "../x"}, r"study='\.\./x'"),
        ({"run": "/etc"}, "run='/etc'"),
        ({"since": -1}, "-1 where a whole number belongs"),
        ({"since": 4}, "private state of round 4 for a model of round 4"),
        ({"cast": {"round": 0, "parts": ["fedrdn", "silent"]}, "since": 0}, "round 0 for a model of round 0"),
        ({"cast": {"round": 4, "parts": 3}}, "cannot be read"),
        ({"keep": ["1"]}, "'1' where a whole number belongs"),
        ({"cast": None}, "task fit without a model"),
        ({"task": "survey"}, "task survey with a model"),
    ],
)
def test_a_request_that_is_not_whole_is_refused(fields_: dict[str, Any], reason: str) -> None:
    """A server cannot name a folder outside the site's own, nor a task that is none."""
    packed = pack(REQUEST)
    with pytest.raises(StateError, match=reason):
        unpack_request(Packed(packed.tensors, packed.aux, json.dumps(json.loads(packed.plain) | fields_)))


def test_arrays_of_any_layout_are_read() -> None:
    """Fortran order, negative strides, views: the values count."""
    packed = pack(REQUEST)
    layouts = {
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "r": np.arange(3.0)[::-1],
        "s": np.arange(6.0)[::2],
    }
    got = unpack_request(Packed(layouts, packed.aux, packed.plain))
    assert got.cast is not None
    assert {key: got.cast.tensors[key].tolist() for key in layouts} == {k: a.tolist() for k, a in layouts.items()}
    assert all(tensor.is_contiguous() for tensor in got.cast.tensors.values())


def test_side_channel_that_is_none_is_refused() -> None:
    """As a platform that drops it would hand it on."""
    packed: Any = pack(REQUEST)
    with pytest.raises(StateError, match="request from the server cannot be read"):
        unpack_request(Packed(packed.tensors, None, packed.plain))  # type: ignore[arg-type]
