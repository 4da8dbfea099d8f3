"""A State is a mapping from name to an owned CPU tensor: what messages, checkpoints and private stores are made of."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from monai_fedskew.errors import StateError

__all__ = [
    "State",
    "describe",
    "nest",
    "non_finite",
    "own",
    "require_alike",
    "require_same_keys",
    "restore",
    "snapshot",
    "unnest",
]

State = Mapping[str, Tensor]
_NAMED = 5  # at most so many keys are spelled out in an error


def own(tensor: Tensor) -> Tensor:
    """Return a detached, contiguous CPU copy that shares no memory with ``tensor``.

    >>> live = torch.ones(2)
    >>> held = own(live)
    >>> live.add_(1).tolist(), held.tolist()
    ([2.0, 2.0], [1.0, 1.0])
    """
    return tensor.detach().to("cpu", copy=True).contiguous()


def snapshot(model: nn.Module, keys: Iterable[str]) -> dict[str, Tensor]:
    """Copy the named entries of a network's state, sorted by name.

    >>> sorted(snapshot(nn.Linear(1, 1), ["weight", "bias"]))
    ['bias', 'weight']
    """
    entries = model.state_dict()
    return {key: own(entries[key]) for key in sorted(keys)}


@torch.no_grad()
def restore(model: nn.Module, state: State) -> None:
    """Copy ``state`` into the network in place; entries that are not named keep their values.

    Raises:
        StateError: an entry is unknown to the network, or differs in shape or dtype. Nothing is written then.
    """
    entries = model.state_dict()
    for key, value in state.items():
        if key not in entries:
            raise StateError(f"cannot load {key!r}: {type(model).__name__} has no such entry; use the same network")
        live = entries[key]
        if live.shape != value.shape or live.dtype != value.dtype:
            raise StateError(
                f"cannot load {key!r}: the network holds {live.dtype} {tuple(live.shape)}, "
                f"the state {value.dtype} {tuple(value.shape)}; use the same network"
            )
    for key, value in state.items():
        entries[key].copy_(value)


def require_same_keys(what: str, expected: Iterable[str], got: Iterable[str], origin: str = "") -> None:
    """Raise StateError unless both sets of names agree.

    Args:
        what: opens the message: site and kind of message.
        expected: the names asked for.
        got: the names that are there.
        origin: where the expected ones come from.
    """
    want, have = set(expected), set(got)
    lacks, extra = sorted(want - have), sorted(have - want)
    if want and have and not want & have:
        raise StateError(f"{what}: no key matches; expected {_some(sorted(want))}, received {_some(sorted(have))}")
    if lacks or extra:
        found = [f"lacks {len(lacks)} keys ({_some(lacks)})"] if lacks else []
        found += [f"has {len(extra)} unknown keys ({_some(extra)})"] if extra else []
        there = f", unlike at {origin}" if origin else ""
        raise StateError(f"{what} {' and '.join(found)}{there}; all sites must use the same network and method")


def describe(tensor: Tensor) -> str:
    """Say dtype and shape.

    >>> describe(torch.zeros(2, 3))
    'float32 (2, 3)'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def require_alike(what: str, expected: Mapping[str, str], got: Mapping[str, str], origin: str) -> None:
    """Raise StateError unless both have the same keys and, key by key, the same ``describe``.

    Args:
        what: opens the message: site and kind of message.
        expected: key to description.
        got: key to description.
        origin: where the expected ones come from.
    """
    require_same_keys(what, expected, got, origin)
    for key, kind in got.items():
        if kind != expected[key]:
            raise StateError(
                f"{what}: {key} is {kind}, but at {origin} it is {expected[key]}; sites may differ in private entries "
                "only"
            )


def non_finite(state: State) -> str:
    """Name the first entry with NaN or infinity and count them; empty if all is finite.

    >>> non_finite({"w": torch.tensor([1.0, float("nan")])})
    'w has 1 non-finite values'
    """
    for key, value in state.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            return f"{key} has {int((~torch.isfinite(value)).sum())} non-finite values"
    return ""


def nest(groups: Mapping[str, State]) -> dict[str, Tensor]:
    """Flatten named states into one: ``{"a": {"x": t}}`` becomes ``{"a/x": t}``."""
    return {f"{group}/{key}": value for group, state in groups.items() for key, value in state.items()}


def unnest(flat: State) -> dict[str, dict[str, Tensor]]:
    """Undo ``nest``; a group that was empty is absent."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        group, key = name.split("/", 1)
        groups.setdefault(group, {})[key] = value
    return groups


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_NAMED]) + (", ..." if len(keys) > _NAMED else "")
