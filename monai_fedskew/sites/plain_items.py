"""Items of a dataset as tensors and one JSON text, and back: what a file may hold that runs no code when it is read."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from monai_fedskew.errors import ConfigError

__all__ = ["from_plain", "tensors_of", "to_plain"]


def to_plain(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Turn an item into what JSON can say, with its tensors put aside; `from_plain` is the way back.

    MONAI's MetaTensors keep their meta data and their applied operations, so an inverse still works. An enumeration
    of texts, as MONAI's, comes back as the text it equals.

    Args:
        value: tensors, arrays, numbers, texts, None, and lists, tuples and dicts with text keys of these.
        tensors: receives each tensor, contiguous, on the CPU and in memory of its own, under the name that is returned.
        path: where in the item, for the error.

    Raises:
        ConfigError: it holds something else, or a MetaTensor with pending operations.

    Example:
        >>> aside = {}
        >>> to_plain({"image": torch.zeros(2), "subject": "s1"}, aside), list(aside)
        ({'dict': {'image': {'tensor': '0'}, 'subject': 's1'}}, ['0'])
    """
    if value is None or isinstance(value, bool | int | float | str):
        return str.__str__(value) if isinstance(value, str) else value
    if isinstance(value, MetaTensor):
        if value.pending_operations:
            raise ConfigError(f"{path}: operations are pending; cache: disk takes no lazy transforms")
        kept = to_plain(value.as_tensor(), tensors)
        meta = to_plain(dict(value.meta), tensors, f"{path}.meta")
        return {**kept, "meta": meta, "done": to_plain(value.applied_operations, tensors, f"{path}.applied_operations")}
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name} if value.device.type == "cpu" else {"tensor": name, "device": str(value.device)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {"array": to_plain(torch.as_tensor(np.array(value)), tensors)}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [to_plain(inner, tensors, f"{path}[{k}]") for k, inner in enumerate(value)]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {str.__str__(k): to_plain(inner, tensors, f"{path}[{k!r}]") for k, inner in value.items()}}
    raise ConfigError(
        f"{path}: cache: disk cannot keep a {type(value).__name__}; use cache: memory, or give plain values"
    )


def from_plain(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the item that `to_plain` took apart.

    Raises:
        KeyError: a tensor is missing, or the text says something that `to_plain` does not write.

    Example:
        >>> from_plain({"list": [{"tensor": "0"}, 2]}, {"0": torch.ones(1)})
        [tensor([1.]), 2]
    """
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return from_plain(plain["array"], tensors).numpy()
    for kind in (list, tuple):
        if kind.__name__ in plain:
            return kind(from_plain(inner, tensors) for inner in plain[kind.__name__])
    if "dict" in plain:
        return {key: from_plain(inner, tensors) for key, inner in plain["dict"].items()}
    tensor = tensors[plain["tensor"]].to(plain.get("device", "cpu"))
    if "meta" not in plain:
        return tensor
    done = from_plain(plain["done"], tensors)
    return MetaTensor(tensor, meta=from_plain(plain["meta"], tensors), applied_operations=done)


def tensors_of(value: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    """Yield the tensors and arrays of an item, those of meta data left out.

    Example:
        >>> [len(tensor) for tensor in tensors_of({"image": torch.zeros(2), "label": [torch.zeros(3), "b"]})]
        [2, 3]
    """
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(inner)
