"""A message as arrays and one JSON text: no torch object, no class and no enum crosses a process.

The model's shared entries travel apart from the side channel, so that an engine's own filters see just the weights.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monai_fedskew.core.messages import Aux, Broadcast, Evaluation, Result, Survey, Update
from monai_fedskew.core.state import State, nest, unnest
from monai_fedskew.errors import StateError
from monai_fedskew.federation.exchange import Message, Reply, Request, Task

__all__ = ["Packed", "pack", "unpack_reply", "unpack_request"]

Array = NDArray[Any]
_KINDS: dict[str, type[Message]] = {kind.__name__.lower(): kind for kind in (Survey, Update, Evaluation, Result)}
_DTYPES = "fiub"  # what numpy calls floating, integer, unsigned and boolean
_SETS = ("parameters", "kept")


@dataclass(frozen=True)
class Packed:
    """A request or a reply, ready for any engine.

    Args:
        tensors: the shared entries by their names in the network.
        aux: the parts' side channel, by ``part/key``.
        plain: all the rest, as JSON.
    """

    tensors: Mapping[str, Array]
    aux: Mapping[str, Array]
    plain: str


def pack(message: Request | Reply) -> Packed:
    """Turn a request or a reply into arrays and text.

    Raises:
        StateError: a tensor of a type that numpy does not have.
    """
    if isinstance(message, Request):
        plain: dict[str, Any] = {"task": message.task, "study": message.study, "run": message.run}
        plain |= {"since": message.since, "keep": list(message.keep), "cast": None}
        if message.cast is None:
            return Packed({}, {}, json.dumps(plain))
        plain["cast"] = {"round": message.cast.round, "parts": sorted(message.cast.aux)}
        return Packed(_arrays(message.cast.tensors), _arrays(nest(message.cast.aux)), json.dumps(plain))
    held = message.message
    plain = {"kind": None, "score": _fields(message.score) if message.score else None}
    if held is None:
        return Packed({}, {}, json.dumps(plain))
    plain |= {"kind": type(held).__name__.lower(), "message": _fields(held)}
    if not isinstance(held, Survey | Update):
        return Packed({}, {}, json.dumps(plain))
    plain["parts"] = sorted(held.aux)
    return Packed(_arrays(held.tensors), _arrays(nest(held.aux)), json.dumps(plain))


def unpack_request(packed: Packed) -> Request:
    """Turn back what ``pack`` made of a request.

    Raises:
        StateError: it is not whole.
    """
    plain = _read(packed)
    try:
        if plain["task"] not in get_args(Task):
            raise ValueError(f"task {plain['task']!r}")
        about = plain["cast"]
        if (about is None) != (plain["task"] == "survey"):
            raise ValueError(f"task {plain['task']} {'without' if about is None else 'with'} a model")
        cast = None
        if about is not None:
            cast = Broadcast(_whole(about["round"]), _tensors(packed.tensors), _aux(packed.aux, about["parts"]))
        keep, since = tuple(_whole(round) for round in plain["keep"]), _whole(plain["since"])
        if since >= (1 if cast is None else cast.round):
            raise ValueError(f"private state of round {since} for a model of round {cast.round if cast else 0}")
        return Request(plain["task"], plain["study"], plain["run"], since, keep, cast)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"request from the server cannot be read: {_why(error)}; use one version everywhere"
        ) from error


def unpack_reply(packed: Packed) -> Reply:
    """Turn back what ``pack`` made of a reply.

    Raises:
        StateError: it is not whole.
    """
    plain = _read(packed)
    try:
        score = None if plain["score"] is None else _message(Evaluation, plain["score"], {})
        if plain["kind"] is None:
            return Reply(None, score)
        kind = _KINDS[plain["kind"]]
        more: dict[str, Any] = {}
        if kind in (Survey, Update):
            more = {"tensors": _tensors(packed.tensors), "aux": _aux(packed.aux, plain["parts"])}
        return Reply(_message(kind, plain["message"], more), score)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"reply cannot be read: {_why(error)}; use one version everywhere") from error


def _arrays(state: State) -> dict[str, Array]:
    return {key: _array(key, tensor) for key, tensor in state.items()}


def _array(key: str, tensor: Tensor) -> Array:
    if tensor.dtype == torch.bfloat16 or tensor.is_complex():
        raise StateError(f"{key} is {tensor.dtype}, which cannot be sent; share floating, integer or boolean entries")
    array: Array = tensor.numpy()
    return np.ascontiguousarray(array).reshape(array.shape)  # it would make a vector of a 0-d array


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    for key, array in arrays.items():
        _text(key)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _DTYPES:
            raise ValueError(f"{key} is {getattr(array, 'dtype', type(array).__name__)}, not numbers")
    # a copy: received arrays may be read-only views of a buffer
    return {key: torch.from_numpy(np.array(array, copy=True, order="C")) for key, array in arrays.items()}


def _aux(arrays: Mapping[str, Array], parts: list[str]) -> Aux:
    """A part that told nothing has no array, so the names are told apart."""
    groups = unnest(_tensors(arrays))
    if not set(groups) <= set(parts):
        raise ValueError(f"side channel of {', '.join(sorted(set(groups) - set(parts)))}, which is not announced")
    return {part: groups.get(part, {}) for part in parts}


def _fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name in ("tensors", "aux"):
            continue
        fields[field.name] = sorted(value) if field.name in _SETS else value
    return fields


def _message(kind: type[Message], fields: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    known = {field.name for field in dataclasses.fields(kind)} - {"tensors", "aux"}
    if set(fields) != known:
        raise ValueError(f"{kind.__name__} with {sorted(set(fields) ^ known)}")
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("round", "samples", "groups", "steps"):
            values[name] = _whole(value)
        elif name in ("site", "split"):
            values[name] = _text(value)
        elif name in _SETS:
            values[name] = frozenset(_text(key) for key in value)
        elif name == "scores":
            values[name] = {_text(level): _numbers(scores) for level, scores in value.items()}
        else:
            values[name] = _numbers(value)
    return kind(**values, **more)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.40} where a whole number belongs")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} where text belongs")
    return value


def _numbers(value: Any) -> dict[str, float | None]:
    """Numbers, or nothing, by name; a whole number too large for a float would stop whoever averages."""
    for number in value.values():
        is_number = isinstance(number, float) or (isinstance(number, int) and not isinstance(number, bool))
        if number is not None and (not is_number or (isinstance(number, int) and abs(number) >= 2**63)):
            raise ValueError(f"{number!r:.40} where a number belongs")
    return {_text(name): number for name, number in value.items()}


def _read(packed: Packed) -> dict[str, Any]:
    try:
        plain = json.loads(packed.plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"message cannot be read: {error}; use one version everywhere") from error
    if not isinstance(plain, dict):
        raise StateError(f"message cannot be read: {type(plain).__name__} where fields belong")
    return plain


def _why(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
