"""Mean and standard deviation of a site's inputs: what per-site normalisation and FedRDN stand on."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_choice
from monai_fedskew.core.state import State, describe
from monai_fedskew.errors import ConfigError, DataError, StateError

__all__ = [
    "STD_MODES",
    "SiteStatistics",
    "StdMode",
    "measure",
    "require_comparable",
    "require_definition",
]

StdMode = Literal["image", "pooled"]
STD_MODES: tuple[StdMode, ...] = get_args(StdMode)
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
    """

    site: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    std_mode: StdMode
    ddof: int
    samples: int

    def to_state(self) -> dict[str, Tensor]:
        """Return tensors that hold all but the name; they travel as a part's report.

        >>> sorted(SiteStatistics("A", (0.0,), (1.0,), "image", 1, 10).to_state())
        ['ddof', 'mean', 'samples', 'std', 'std_mode']
        """
        return {
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
        )


def measure(batches: Iterable[Tensor], *, site: str, std_mode: StdMode | None = None, ddof: int = 1) -> SiteStatistics:
    """Measure mean and std in one pass in float64, stable for any offset and independent of the batch size.

    Args:
        batches: images (B, C, *spatial) or vectors (B, F), without random augmentation.
        site: name of the site, for messages.
        std_mode: see ``SiteStatistics``; None means "image" for images and "pooled", that is per feature, for
            vectors. Vectors measured with "image" count as images of one channel and F values.
        ddof: 0 or 1.

    Raises:
        ConfigError: an unknown std_mode or ddof.
        DataError: no example, too few values for ``ddof``, a value that is not finite, or batches that disagree in
            their number of channels.

    >>> measure([torch.tensor([[[0.0, 2.0]], [[10.0, 14.0]]])], site="A", std_mode="image", ddof=0).std
    (1.5,)
    """
    require_definition(f"statistics of site {site}", std_mode, ddof)
    total: _Moments | None = None
    mode = std_mode
    for batch in batches:
        values = batch.detach().as_subclass(Tensor).to("cpu", torch.float64)
        mode = mode or ("image" if values.ndim > 2 else "pooled")
        moments = _of_images(values, ddof, site) if mode == "image" else _of_values(values)
        total = moments if total is None else _merge(total, moments, site)
    if total is None or mode is None:
        raise DataError(f"site {site}: no training example to measure; check its training data")
    if mode == "image":
        mean, std = total.mean, total.second
    else:
        _require_enough(total.count, ddof, site)
        mean, std = total.mean, (total.second / (total.count - ddof)).sqrt()
    if not (mean.isfinite().all() and std.isfinite().all()):
        bad = (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist()
        raise DataError(f"site {site}: values that are not finite in {_channels(bad)}; clean the inputs")
    _warn_constant(std, site)
    return SiteStatistics(site, tuple(mean.tolist()), tuple(std.tolist()), mode, ddof, total.samples)


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
        if len(first.mean) != len(other.mean):
            raise DataError(
                f"site {other.site} has statistics of {len(other.mean)} channels, site {first.site} of "
                f"{len(first.mean)}; all sites need the same channels in the same order"
            )


@dataclass(frozen=True)
class _Moments:
    """Running moments per channel: ``second`` is the sum of squared deviations, or in mode image the mean std."""

    count: int  # values a channel (pooled) or images
    mean: Tensor
    second: Tensor
    samples: int
    is_image: bool


def _of_values(values: Tensor) -> _Moments:
    per_channel = values.transpose(0, 1).reshape(values.shape[1], -1) if values.ndim > 2 else values.T
    mean, squares = _spread(per_channel)
    return _Moments(per_channel.shape[1], mean, squares, len(values), False)


def _of_images(values: Tensor, ddof: int, site: str) -> _Moments:
    per_image = values.reshape(*values.shape[:2], -1) if values.ndim > 2 else values[:, None]
    _require_enough(per_image.shape[2], ddof, site)
    mean, squares = _spread(per_image)
    std = (squares / (per_image.shape[2] - ddof)).sqrt()
    return _Moments(len(values), mean.mean(0), std.mean(0), len(values), True)


def _spread(values: Tensor) -> tuple[Tensor, Tensor]:
    # Deviations from the first value: a constant channel gives exactly 0, whatever the offset.
    first = values[..., :1]
    shifted = values - first
    mean = shifted.mean(-1, keepdim=True)
    squares = shifted.sub_(mean).square_().sum(-1)
    return (mean + first).squeeze(-1), squares


def _merge(a: _Moments, b: _Moments, site: str) -> _Moments:
    if len(a.mean) != len(b.mean):
        raise DataError(
            f"site {site}: batches of {len(a.mean)} and {len(b.mean)} channels; all inputs need the same channels"
        )
    count = a.count + b.count
    share, delta = b.count / count, b.mean - a.mean
    if a.is_image:
        second = a.second + (b.second - a.second) * share
    else:  # Chan et al. 1979: squares about the joint mean
        second = a.second + b.second + delta.square() * (a.count * share)
    return _Moments(count, a.mean + delta * share, second, a.samples + b.samples, a.is_image)


def _require_enough(values: int, ddof: int, site: str) -> None:
    if values <= ddof:
        raise DataError(f"site {site}: {values} value(s) a channel give no std with ddof={ddof}; use ddof=0")


def _warn_constant(std: Tensor, site: str) -> None:
    constant = (std == 0).nonzero().flatten().tolist()
    if constant:
        warnings.warn(
            f"site {site}: std is 0 in {_channels(constant)}: a constant input, divided by 1 instead", stacklevel=3
        )


def _require_entries(site: str, state: State) -> None:
    """Raise StateError unless a site's pair can be divided by, however it came."""
    for key, dims in (("mean", 1), ("std", 1), ("std_mode", 0), ("ddof", 0), ("samples", 0)):
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


def _channels(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED])) + (", ..." if len(numbers) > _NAMED else "")
    return f"channel {named}" if len(numbers) == 1 else f"{len(numbers)} channels (channel {named})"
