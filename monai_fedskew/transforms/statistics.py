"""Mean and standard deviation of a site's inputs: what per-site normalisation and FedRDN stand on."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_choice
from monai_fedskew.core.state import State, describe
from monai_fedskew.errors import ConfigError, DataError, StateError

__all__ = [
    "REGIONS",
    "STD_MODES",
    "Region",
    "SiteStatistics",
    "StdMode",
    "name_channels",
    "require_comparable",
    "require_definition",
    "warn_constant",
]

StdMode = Literal["image", "pooled"]
STD_MODES: tuple[StdMode, ...] = get_args(StdMode)
Region = Literal["all", "nonzero", "mask"]
REGIONS: tuple[Region, ...] = get_args(Region)
_NAMED = 5  # at most so many channels are spelled out in a warning


@dataclass(frozen=True)
class SiteStatistics:
    """Mean and standard deviation of a site's inputs, per channel (images) or per feature (vectors).

    Args:
        site: name of the site.
        mean: one number a channel, in the inputs' own unit.
        std: as many; 0 where a channel is constant, and normalising divides by 1 there.
        std_mode: "image" averages each image's mean and std over the images (the FedRDN paper); "pooled" takes all
            values of a channel at once.
        ddof: 1 divides the squares by n - 1, 0 by n.
        samples: number of images or vectors measured.
        region: which values were measured: "all", those that are not 0, or those inside a mask.
    """

    site: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    std_mode: StdMode
    ddof: int
    samples: int
    region: Region = "all"

    def to_state(self) -> dict[str, Tensor]:
        """Return tensors that hold all but the name; they travel as a part's report.

        The region is among them only where it is not "all".

        >>> sorted(SiteStatistics("A", (0.0,), (1.0,), "image", 1, 10).to_state())
        ['ddof', 'mean', 'samples', 'std', 'std_mode']
        """
        region = {} if self.region == "all" else {"region": torch.tensor(REGIONS.index(self.region))}
        return {
            **region,
            "mean": torch.tensor(self.mean, dtype=torch.float64),
            "std": torch.tensor(self.std, dtype=torch.float64),
            "std_mode": torch.tensor(STD_MODES.index(self.std_mode)),
            "ddof": torch.tensor(self.ddof),
            "samples": torch.tensor(self.samples),
        }

    @staticmethod
    def from_state(site: str, state: State) -> "SiteStatistics":
        """Undo ``to_state``.

        Raises:
            StateError: an entry is absent or of another kind, naming the site.
        """
        _require_entries(site, state)
        return SiteStatistics(
            site,
            tuple(state["mean"].tolist()),
            tuple(state["std"].tolist()),
            STD_MODES[int(state["std_mode"])],
            int(state["ddof"]),
            int(state["samples"]),
            REGIONS[int(state["region"])] if "region" in state else "all",
        )


def require_definition(what: str, std_mode: str | None, ddof: int) -> None:
    """Raise ConfigError unless both define a standard deviation; ``what`` opens the message.

    >>> require_definition("method sitenorm", "pooled", 1)
    """
    require_choice(what, "std", std_mode, (*STD_MODES, None))
    if isinstance(ddof, bool) or ddof not in (0, 1):
        raise ConfigError(f"{what}: ddof={ddof!r} must be 0 or 1")


def require_comparable(statistics: Iterable[SiteStatistics]) -> None:
    """Raise DataError naming both sites unless all were measured alike and have as many channels.

    >>> a = SiteStatistics("A", (0.0,), (1.0,), "image", 1, 10)
    >>> require_comparable([a, a])
    """
    first: SiteStatistics | None = None
    for other in statistics:
        first = first or other
        if (first.std_mode, first.ddof) != (other.std_mode, other.ddof):
            raise DataError(
                f"sites {first.site} and {other.site} were measured differently: std {first.std_mode!r} with "
                f"ddof={first.ddof} against {other.std_mode!r} with ddof={other.ddof}; measure all sites alike, or "
                "the difference is taken for a difference between sites"
            )
        if first.region != other.region:
            raise DataError(
                f"sites {first.site} and {other.site} were measured differently: region {first.region!r} against "
                f"{other.region!r}; measure all sites alike, or background is taken for a difference between sites"
            )
        if len(first.mean) != len(other.mean):
            raise DataError(
                f"site {other.site} has statistics of {len(other.mean)} channels, site {first.site} of "
                f"{len(first.mean)}; all sites need the same channels in the same order"
            )


def warn_constant(site: str, std: Sequence[float]) -> None:
    """Warn once, naming site and channels, if a std is 0.

    >>> warn_constant("A", (1.0, 2.0))
    """
    constant = [k for k, value in enumerate(std) if value == 0]
    if constant:
        warnings.warn(
            f"site {site}: std is 0 in {name_channels(constant)}: a constant input, divided by 1 instead", stacklevel=3
        )


def name_channels(numbers: Sequence[int]) -> str:
    """Name channels for a message, a few of many.

    >>> name_channels([0, 2])
    '2 channels (channel 0, 2)'
    """
    named = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"channel {named}" if len(numbers) == 1 else f"{len(numbers)} channels (channel {named})"


def _require_entries(site: str, state: State) -> None:
    """Raise StateError unless a site's pair can be divided by, however it came."""
    optional = (("region", 0),) if "region" in state else ()
    for key, dims in (("mean", 1), ("std", 1), ("std_mode", 0), ("ddof", 0), ("samples", 0), *optional):
        if key not in state:
            raise StateError(f"site {site}: its statistics lack {key}; use one version everywhere")
        if state[key].ndim != dims or (state[key].dtype == torch.float64) != bool(dims):
            wanted = "a vector of float64" if dims else "a whole number"
            raise StateError(f"site {site}: {key} of its statistics is {describe(state[key])}, not {wanted}")
    mean, std, mode, ddof = (state[key] for key in ("mean", "std", "std_mode", "ddof"))
    if len(mean) != len(std) or not mean.isfinite().all() or not (std.isfinite() & (std >= 0)).all():
        raise StateError(f"site {site}: its statistics are not finite, or a std is negative; look at its inputs")
    if int(mode) not in range(len(STD_MODES)) or int(ddof) not in (0, 1):
        raise StateError(f"site {site}: statistics with std_mode={int(mode)}, ddof={int(ddof)}; each must be 0 or 1")
    if optional and int(state["region"]) not in range(len(REGIONS)):
        raise StateError(f"site {site}: statistics with region={int(state['region'])}; it must be 0, 1 or 2")
