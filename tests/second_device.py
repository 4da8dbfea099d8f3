"""A second device on machines that have none: its tensors lie on the CPU and claim not to.

Operations on tensors of both devices, a generator of the CPU for values made on the other, and ``.numpy()`` there are
errors, as on CUDA. Registering the device changes torch for the whole process, so a test starts this file in one of
its own:

    python second_device.py BUNDLE DATA METHOD ...

It prints how what a site sends and keeps differs between the devices, a line a method; "same" where it does not. What
this cannot show is what only a graphics card has: its kernels and streams, float16.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from laws import difference, method
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from monai_fedskew.core.state import nest
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite

NAME = "elsewhere"
_aten = torch.ops.aten
_MOVES = (_aten.copy_.default, _aten._to_copy.default)
_TAKES_INDEX = ("index", "_index", "_unsafe_index")  # indices of the CPU are allowed, as on CUDA


class Elsewhere(Tensor):
    """A tensor of the second device; ``held`` has its values."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        """Wrap a tensor of the CPU."""
        place = {"strides": held.stride(), "storage_offset": held.storage_offset(), "layout": held.layout}
        made = Tensor._make_wrapper_subclass(cls, held.size(), dtype=held.dtype, device=f"{NAME}:0", **place)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what every operation does."""
        return _run(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """While it is on, tensors can be made on the second device and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Leave what is of the CPU alone."""
        kwargs = kwargs or {}
        is_there = any(issubclass(kind, Elsewhere) for kind in types) or _is_there(kwargs.get("device"))
        return _run(func, args, kwargs) if is_there else func(*args, **kwargs)


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Types that autocast would take."""
        return [torch.bfloat16]


def register() -> None:
    """Make the device known to torch."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what the operation would compute there, or refuse it as CUDA would."""
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    there = [value for value in tensors if isinstance(value, Elsewhere)]
    strangers = [value for value in tensors if not isinstance(value, Elsewhere) and value.ndim]
    if there and strangers and func not in _MOVES and not func.__name__.startswith(_TAKES_INDEX):
        raise RuntimeError(f"{func}: all tensors must be on one device")
    device, generator = kwargs.get("device"), kwargs.get("generator")
    is_there = bool(there) if device is None else _is_there(device)
    if generator is not None and is_there:
        raise RuntimeError(f"{func}: a generator of {generator.device} for values on {NAME}")
    if func is _aten.copy_.default:
        is_there = isinstance(args[0], Elsewhere)
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain_args, plain_kwargs = pytree.tree_map(lambda v: v.held if isinstance(v, Elsewhere) else v, (args, kwargs))
    result = func(*plain_args, **plain_kwargs)
    if not is_there:
        return result
    wrapped = pytree.tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) else value, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _play(text: str, source: BundleSite) -> Mapping[str, Tensor]:
    """What a site sends and keeps over a round and a score; over two rounds where the first is remembered."""
    settings = Settings(rounds=2, choose="last", optimizer_state="keep")
    client, server = Client(method(text), source, settings), Server(method(text), settings)
    survey = client.survey()
    server.open([survey])
    update = client.fit(server.cast())
    server.absorb([update])
    client.evaluate(server.cast())
    if {"moon", "scaffold"} & {part.name for part in method(text).parts}:
        client.fit(server.cast())
    told = {"survey": survey, "update": update}
    states = {name: {**message.tensors, **nest(message.aux)} for name, message in told.items()}
    return nest({**states, "private": client.private()})


if __name__ == "__main__":
    bundle, data, *texts = sys.argv[1:]
    torch.set_num_threads(1)
    register()
    here = BundleSite(Path(bundle), "A", Path(data), {"momentum": 0.0, "batch_size": 18})
    for text in texts:
        expected = _play(text, here)
        with SecondDevice():
            found = _play(text, replace(here, overrides={**here.overrides, "device": NAME}))
            kinds = {value.device.type for value in found.values()}
        print(text, difference(expected, found) or "same", *sorted(kinds))
