"""Key filters: which entries of a network's state are shared, decided by module type, never by spelling."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from monai_fedskew.errors import ConfigError

__all__ = ["KeyFilter", "all_keys", "both", "except_modules", "except_prefix", "no_keys", "only_prefix"]

KeyFilter = Callable[[nn.Module], frozenset[str]]


@dataclass(frozen=True)
class all_keys:  # noqa: N801  a filter reads like a function and compares like a value
    """Share every entry of the state: parameters, running statistics and counters."""

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share."""
        return frozenset(model.state_dict())


@dataclass(frozen=True)
class no_keys:  # noqa: N801
    """Share nothing: each site on its own."""

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share: none."""
        return frozenset()


@dataclass(frozen=True)
class except_modules:  # noqa: N801
    """Share all but the entries owned by modules of some types (subclasses count).

    Args:
        types: module types whose entries stay at the site; by default every batch norm, SyncBatchNorm included.
        entries: only these entries of such modules stay (``"running_mean"`` ...); None keeps all of them.
        allow_none: a network without such entries gives one warning instead of an error.

    Raises:
        ConfigError: the network has nothing to keep and ``allow_none`` is False.

    >>> sorted(except_modules()(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))))
    ['0.bias', '0.weight']
    """

    types: tuple[type[nn.Module], ...] = (_BatchNorm,)
    entries: tuple[str, ...] | None = None
    allow_none: bool = False

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share."""
        kept = {
            f"{name}.{entry}" if name else entry
            for name, module in model.named_modules()
            if isinstance(module, self.types)
            for entry in module.state_dict()
            if self.entries is None or entry in self.entries
        }
        if not kept:
            kinds = "/".join(kind.__name__.lstrip("_") for kind in self.types)
            text = (
                f"no {kinds} entries in {type(model).__name__}: nothing would stay at the site, which is FedAvg. "
                "Build the network with batch norm (norm='batch' in MONAI's networks) or pass allow_none=True"
            )
            if not self.allow_none:
                raise ConfigError(text)
            warnings.warn(text, stacklevel=2)
        return frozenset(model.state_dict()) - kept


@dataclass(frozen=True)
class except_prefix:  # noqa: N801
    """Share all entries but those whose name starts with ``prefix`` (a local head, say).

    Raises:
        ConfigError: no entry has the prefix.
    """

    prefix: str

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share."""
        return frozenset(model.state_dict()) - only_prefix(self.prefix)(model)


@dataclass(frozen=True)
class only_prefix:  # noqa: N801
    """Share only the entries whose name starts with ``prefix``.

    Raises:
        ConfigError: no entry has the prefix.
    """

    prefix: str

    def __call__(self, model: nn.Module) -> frozenset[str]:
        """Return the keys to share."""
        found = frozenset(key for key in model.state_dict() if key.startswith(self.prefix))
        if not found:
            raise ConfigError(
                f"no entry of {type(model).__name__} starts with {self.prefix!r}; look at its state_dict()"
            )
        return found


@dataclass(frozen=True)
class _Both:
    filters: tuple[KeyFilter, ...]

    def __call__(self, model: nn.Module) -> frozenset[str]:
        return frozenset.intersection(*(share(model) for share in self.filters))


def both(*filters: KeyFilter) -> KeyFilter:
    """Share what every filter shares; ``all_keys()`` drops out, order and repetition do not matter."""
    kept = tuple(sorted({f for f in filters if f != all_keys()}, key=repr))
    return all_keys() if not kept else kept[0] if len(kept) == 1 else _Both(kept)
