"""Which channels of a layer are left at a reduced width."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Channels", "alive", "channels_kept", "leading"]


def channels_kept(channels: int, width: float) -> int:
    """Return how many of ``channels`` are left at ``width``: a multiple of 8, at least 8, at most all.

    Rounded to the nearest multiple; 8 more where that lost over 10 % (the rule of FedAlign's public code).

    Args:
        channels: of the full layer.
        width: fraction above 0, up to 1.

    >>> [channels_kept(channels, 0.25) for channels in (4, 16, 44, 200)]
    [4, 8, 16, 48]
    """
    wanted = channels * width
    kept = max(8, int(wanted + 4) // 8 * 8)
    return min(channels, kept + 8 if kept < 0.9 * wanted else kept)


@dataclass(frozen=True, eq=False)
class Channels:
    """Some of ``total`` channels; ``index`` is sorted."""

    total: int
    index: Tensor

    @cached_property
    def count(self) -> int:
        """How many these are."""
        return len(self.index)

    @cached_property
    def _is_leading(self) -> bool:
        return self.count == 0 or int(self.index[-1]) == self.count - 1

    def is_same(self, other: "Channels") -> bool:
        """Tell whether ``other`` are the same channels."""
        return torch.equal(self.index, other.index)

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """Take them out of ``x``; a view where they are the first ones."""
        if self._is_leading:
            return x if self.count == self.total else x.narrow(dim, 0, self.count)
        return x.index_select(dim, self.index.to(x.device))

    def mark(self, x: Tensor, dim: int) -> Tensor:
        """Return ones in the shape of ``x``, and NaN where channels are dropped: no operation brings those back."""
        return torch.full_like(x, torch.nan).index_fill_(dim, self.index.to(x.device), 1)

    def zero(self, x: Tensor, dim: int) -> Tensor:
        """Return ``x`` with the dropped channels at zero."""
        return x * torch.zeros_like(x).index_fill_(dim, self.index.to(x.device), 1)

    def whole_groups(self, groups: int) -> "Channels":
        """Return those of ``groups`` equal groups of all channels that are left as a whole."""
        gate = torch.zeros(self.total, dtype=torch.bool, device=self.index.device)
        whole = gate.index_fill_(0, self.index, True).view(groups, -1).all(1)
        return Channels(groups, whole.nonzero()[:, 0])

    def find(self, some: "Channels") -> "Channels":
        """Return where ``some`` of these are among these."""
        return Channels(self.count, torch.searchsorted(self.index, some.index))

    def each(self, size: int) -> "Channels":
        """Return the channels these make up if each stands for ``size`` of them."""
        within = torch.arange(size, device=self.index.device)
        return Channels(self.total * size, (self.index[:, None] * size + within).flatten())


def alive(marked: Tensor, dim: int) -> Channels:
    """Return the channels along ``dim`` that hold no mark of a dropped one."""
    dropped = marked.isnan().movedim(dim, 0).flatten(1).any(1)
    return Channels(len(dropped), (~dropped).nonzero()[:, 0])


def leading(channels: int, width: float, device: torch.device) -> Channels:
    """Return the first of ``channels``, as many as `channels_kept` says; all at width 1."""
    return Channels(channels, torch.arange(channels_kept(channels, width), device=device))
