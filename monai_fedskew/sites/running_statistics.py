"""Running statistics of norm layers, which a batch that made no step must not change."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from monai_fedskew.core.state import non_finite, snapshot
from monai_fedskew.errors import RoundError

__all__ = ["RunningStatistics", "require_finite", "statistics_keys"]


class RunningStatistics:
    """Takes running statistics back to where they were kept, without ever looking at a value.

    Args:
        model: a network; batch and instance norms that track statistics are found by their type.

    >>> norm = nn.BatchNorm1d(1)
    >>> statistics = RunningStatistics(norm)
    >>> statistics.keep()
    >>> _ = norm(torch.tensor([[1.0], [torch.inf]]))
    >>> statistics.bring_back()
    >>> norm.running_mean, int(norm.num_batches_tracked)
    (tensor([0.]), 0)
    """

    def __init__(self, model: nn.Module) -> None:
        entries = model.state_dict(keep_vars=True)
        self._live: list[Tensor] = [entries[key] for key in sorted(statistics_keys(model))]
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are now."""
        self._kept = self._kept or [torch.empty_like(value) for value in self._live]
        for kept, live in zip(self._kept, self._live, strict=True):
            kept.copy_(live)

    @torch.no_grad()
    def bring_back(self) -> None:
        """Set them to what was kept last."""
        for kept, live in zip(self._kept, self._live, strict=True):
            live.copy_(kept)


def statistics_keys(model: nn.Module) -> frozenset[str]:
    """Return the names of running means, variances and batch counters in a network's state.

    >>> sorted(statistics_keys(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))))
    ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    return frozenset(
        f"{name}.{key}" if name else key
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and module.track_running_stats
        for key, _ in module.named_buffers(recurse=False)
    )


@torch.no_grad()
def require_finite(what: str, model: nn.Module, keys: Iterable[str]) -> None:
    """See that entries of a network hold no NaN and no infinity, in one look at the device they lie on.

    Args:
        what: opens the message: site and round.
        model: the network.
        keys: names of entries; those that are not floating are passed over.

    Raises:
        RoundError: the first entry that does, and in how many values.

    >>> require_finite("site A: round 1", nn.BatchNorm1d(2), ["running_mean"])
    """
    entries = model.state_dict()
    values = {key: entries[key] for key in sorted(keys) if entries[key].is_floating_point()}
    # x - x is 0 for a finite number and NaN for all others
    flags = [(value - value).sum() for value in values.values()]
    if flags and not bool((torch.stack([flag.float() for flag in flags]) == 0).all()):
        raise RoundError(
            f"{what}: {non_finite(snapshot(model, values))}, which would stay at the site and spoil later rounds; "
            "this round is not used. Lower the learning rate or look at the data"
        )
