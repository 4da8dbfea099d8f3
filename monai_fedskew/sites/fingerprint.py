"""What a chain of transforms computes, as a short text: the key under which its results may be kept."""

import hashlib
import json
from collections.abc import Callable, Sequence, Set
from enum import Enum
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from monai_fedskew.errors import ConfigError

__all__ = ["fingerprint"]

# What reads and computes. Code of these is known by its version; all other code goes into the key itself.
_VERSIONED = {"monai": "monai", "torch": "torch", "numpy": "numpy", "nibabel": "nibabel", "PIL": "pillow"}
_FORMAT = 1  # raise it when what is stored changes its meaning
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    PurePath,
    np.generic,
    np.dtype,
    torch.dtype,
    torch.device,
)
_SAID = (FunctionType, *_PLAIN, list, tuple, dict, set, frozenset)  # what members of a class may be
_NOTES = {"filenames"}  # of MONAI's readers: what was read last, no parameter


def fingerprint(transforms: Sequence[Callable[..., Any]]) -> str:
    """Return a digest of the transforms, all their parameters, their code, and the versions of what they stand on.

    Two chains that could give different results have different digests: a parameter, a number in a statistic, the body
    of a function of one's own, or a library's version is enough. What transforms note while they work does not count
    where their ``__getstate__`` leaves it out.

    Args:
        transforms: deterministic callables, in order.

    Returns:
        64 hexadecimal digits, the same in every process.

    Raises:
        ConfigError: an attribute whose content cannot be told, such as an open file; names transform and attribute.

    Example:
        >>> from monai.transforms import ScaleIntensity
        >>> fingerprint([ScaleIntensity(0.0, 1.0)]) == fingerprint([ScaleIntensity(0.0, 1.0)])
        True
        >>> fingerprint([ScaleIntensity(0.0, 1.0)]) == fingerprint([ScaleIntensity(0.0, 2.0)])
        False
    """
    parts = [_Description(type(transform).__name__).of(transform) for transform in transforms]
    return _digest([_FORMAT, _versions(), parts])


class _Description:
    """Turns an object into nested lists of texts, each with its type; what is composed, into a digest of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._done: dict[int, tuple[Any, str]] = {}  # with the object itself: a number of memory may be used again
        self._open: list[int] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return ["enum", _name(type(value)), value.name]
        if isinstance(value, type | ModuleType | BuiltinFunctionType | np.ufunc):
            return ["name", _name(value)]
        if value is None or value is ... or isinstance(value, _PLAIN):
            return [type(value).__name__, repr(value)]
        if isinstance(value, Tensor | np.ndarray):
            return self._array(value)
        if id(value) in self._open:
            return ["within", len(self._open) - self._open.index(id(value))]
        if id(value) not in self._done:
            self._open.append(id(value))
            self._done[id(value)] = value, _digest(self._composed(value))
            self._open.pop()
        return self._done[id(value)][1]

    def _composed(self, value: Any) -> Any:
        if isinstance(value, dict):
            pairs = [[self.of(key), self._at(f"[{key!r}]", inner)] for key, inner in value.items()]
            return ["dict", _name(type(value)), pairs]
        if isinstance(value, list | tuple):
            return ["list", _name(type(value)), [self._at(f"[{k}]", inner) for k, inner in enumerate(value)]]
        if isinstance(value, Set):
            return ["set", sorted(json.dumps(self.of(inner)) for inner in value)]
        if isinstance(value, partial):
            return ["partial", self.of(value.func), self.of(value.args), self.of(value.keywords)]
        if isinstance(value, MethodType):
            return ["method", self.of(value.__func__), self.of(value.__self__)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, CodeType):
            return ["code", value.co_code.hex(), value.co_names, self.of(value.co_consts)]
        return self._object(value)

    def _at(self, step: str, value: Any) -> Any:
        path, self._path = self._path, self._path + step
        try:
            return self.of(value)
        finally:
            self._path = path

    def _array(self, value: Any) -> Any:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        if array.dtype.hasobject:
            return ["objects", list(array.shape), [self.of(inner) for inner in array.ravel()]]
        content = np.ascontiguousarray(array)
        return [_name(type(value)), str(array.dtype), list(array.shape), hashlib.sha256(content.tobytes()).hexdigest()]

    def _function(self, value: FunctionType) -> Any:
        if _is_versioned(value):
            return ["name", _name(value)]
        cells = [self._at(f"<{value.__name__}>", cell.cell_contents) for cell in value.__closure__ or ()]
        names = sorted(_names_in(value.__code__) & value.__globals__.keys())
        used = {name: value.__globals__[name] for name in names}
        given = [self.of(value.__defaults__), self.of(value.__kwdefaults__), self.of(used)]
        return ["function", _name(value), self.of(value.__code__), cells, *given]

    def _object(self, value: Any) -> Any:
        kind: Any = type(value)
        try:
            state = value.__getstate__()
        except TypeError:
            state = None
        if state is None and not hasattr(value, "__dict__"):
            raise ConfigError(
                f"transform {self._path}: {_name(kind)} has no state that could be told, so nobody knows when its "
                "result changes; use cache: none, or give plain values"
            )
        if isinstance(state, dict) and kind.__module__ == "monai.data.image_reader":
            state = {key: inner for key, inner in state.items() if key not in _NOTES}
        described = self._at(".", state if isinstance(state, dict | tuple) else vars(value))
        return ["object", _name(kind), described, _class_code(_name(kind), kind)]


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in sorted(_VERSIONED.values())}


@cache
def _class_code(name: str, kind: Any) -> str:
    """Return a digest of what the classes that no version tells of say: their functions and values."""
    own = [base for base in kind.__mro__ if not _is_versioned(base)]
    members = [{key: found for key, member in vars(base).items() if (found := _said(key, member))} for base in own]
    return _digest([[_name(base) for base in own], _Description(name).of(members)])


def _said(key: str, member: Any) -> list[Any]:
    """Return what a member of a class says: its functions, or its value; nothing of what Python itself notes."""
    if isinstance(member, property):
        return [member.fget, member.fset]
    if isinstance(member, staticmethod | classmethod):
        return [member.__func__]
    if isinstance(member, cached_property):
        return [member.func]
    is_noted = key.startswith("__") and not isinstance(member, FunctionType)
    return [member] if isinstance(member, _SAID) and not is_noted else []


def _names_in(code: CodeType) -> set[str]:
    """Return the names that a function looks up, those of functions within it included."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _digest(description: Any) -> str:
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()


def _name(value: Any) -> str:
    own = getattr(value, "__qualname__", None) or getattr(value, "__name__", repr(value))
    return f"{getattr(value, '__module__', '')}.{own}"


def _is_versioned(value: Any) -> bool:
    top = str(getattr(value, "__module__", "")).partition(".")[0]
    return top in _VERSIONED or top in ("builtins", "abc", "typing", "collections", "enum")
