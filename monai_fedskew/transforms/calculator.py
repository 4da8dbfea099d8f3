"""Statistics of a site computed image by image, in any order and in any number of processes."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monai_fedskew.core.ranges import require_choice
from monai_fedskew.errors import DataError
from monai_fedskew.transforms.exact import SCALE, as_integer, quotient
from monai_fedskew.transforms.moments import CHUNK, row_moments, run_moments
from monai_fedskew.transforms.statistics import (
    Region,
    SiteStatistics,
    StdMode,
    name_channels,
    require_definition,
    warn_constant,
)

__all__ = ["StatisticsCalculator"]

Image = Tensor | NDArray[Any]
_DEFINITION = ("site", "std_mode", "ddof", "region")
_SUMS = ("count", "first", "second")


class StatisticsCalculator:
    """Compute mean and standard deviation per channel, one image at a time.

    Within an image moments are computed in float64 about the image's own mean, so that no offset does harm. Over
    images they are added without rounding: the result is bit for bit the same in whatever order images come, and
    however they were dealt to calculators that are merged. Memory does not grow with their number.

    Args:
        site: name of the site.
        std_mode: "image" averages each image's mean and std, "pooled" takes all values at once; None means "image"
            for images and "pooled", that is per feature, for vectors.
        ddof: 0 or 1, taken from n in the divisor of the variance.
        region: which values count. "all"; "nonzero": those that are not 0, channel by channel; "mask": those where
            the mask given with each image is not 0, a value of 0 among them included.

    Raises:
        ConfigError: an unknown value.

    >>> calculator = StatisticsCalculator("A", ddof=0, region="nonzero")
    >>> calculator.update(torch.tensor([[0.0, 1.0, 3.0]]))
    >>> calculator.update(torch.tensor([[0.0, 0.0, 4.0, 8.0]]))
    >>> calculator.result().mean, calculator.result().std
    ((4.0,), (1.5,))
    """

    def __init__(self, site: str, *, std_mode: StdMode | None = None, ddof: int = 1, region: Region = "all") -> None:
        what = f"statistics of site {site}"
        require_definition(what, std_mode, ddof)
        require_choice(what, "region", region, get_args(Region))
        self.site, self.std_mode, self.ddof, self.region = site, std_mode, ddof, region
        self.samples = 0
        # A channel each, in whole numbers. Mode pooled: number of values, their sum in units of 2^-SCALE, the sum of
        # their squares in units of 2^(-2 SCALE). Mode image: number of images, sums of their means and of their stds.
        self._count: list[int] = []
        self._first: list[int] = []
        self._second: list[int] = []

    def update(self, image: Image, mask: Image | None = None, *, name: str = "") -> None:
        """Add one image.

        Args:
            image: (C, *spatial) with any number of spatial axes, of any integer or floating type.
            mask: (1, *spatial), (C, *spatial) or (*spatial), not 0 where a value counts; with region "mask" only.
            name: of the image or its file, for messages; by default the file that MONAI noted in the image.

        Raises:
            DataError: no value of a channel counts, too few for ``ddof``, one is not finite, another number of
                channels than before, or a mask that does not fit, is absent or is not wanted.
        """
        noted = getattr(image, "meta", {}).get("filename_or_obj", "")
        what = f"site {self.site}, {name or noted or f'image {self.samples + 1}'}"
        values = _plain(image, what)
        if values.ndim < 2:
            raise DataError(f"{what}: shape {tuple(values.shape)} is not (channels, *spatial); add the channel first")
        if not values.numel():
            raise DataError(f"{what}: shape {tuple(values.shape)} holds no value; leave it out")
        keep = self._foreground(values, mask, what)
        if self.region == "all" and values[0].numel() <= CHUNK:
            self._add_rows(values[None], what)
            return
        found = [
            run_moments(
                _run(channel, channel),
                None if keep is None else _run(keep[k], channel),
                is_nonzero_only=self.region == "nonzero",
            )
            for k, channel in enumerate(values)
        ]
        if empty := [k for k, (count, _, _) in enumerate(found) if not count]:
            raise DataError(
                f"{what}: no foreground in {name_channels(empty)} (region {self.region}); look at the image and its "
                "mask, or leave it out"
            )
        count, mean, squares = (list(entry) for entry in zip(*found, strict=True))
        self._add(count, [mean], [squares], what)

    def update_batch(self, batch: Tensor) -> None:
        """Add a batch of images of one size, or of vectors, without masks.

        Args:
            batch: (B, C, *spatial) or (B, F). Vectors measured with "image" count as images of one channel.

        Raises:
            DataError: as ``update``.
        """
        what = f"site {self.site}"
        values = _plain(batch, what)
        if not values.numel():
            raise DataError(f"{what}: a batch of shape {tuple(values.shape)} holds no value; leave it out")
        if values.ndim == 2 and self.std_mode != "image" and self.region == "all":
            self.std_mode = "pooled"
            mean, squares = row_moments(values.T)
            self._add([len(values)] * values.shape[1], [mean.tolist()], [squares.tolist()], what, samples=len(values))
            return
        images = values[:, None] if values.ndim == 2 else values
        if self.region == "all" and images[0, 0].numel() <= CHUNK:
            self._add_rows(images, what)
            return
        for image in images:
            self.update(image)

    def merge(self, other: "StatisticsCalculator") -> None:
        """Add all that another calculator was given; the result is exactly that of one which saw everything.

        Raises:
            DataError: the other is of another site, definition or number of channels.
        """
        for name in _DEFINITION:
            mine, its = getattr(self, name), getattr(other, name)
            is_open = name == "std_mode" and None in (mine, its)  # the first image decides
            if mine != its and not is_open:
                raise DataError(f"site {self.site}: calculators with {name}={mine!r} and {its!r} do not merge")
        if not other.samples:
            return
        self.std_mode = other.std_mode
        self._extend(len(other._count), f"site {self.site}")
        for name in _SUMS:
            sums, more = getattr(self, f"_{name}"), getattr(other, f"_{name}")
            sums[:] = map(int.__add__, sums, more)
        self.samples += other.samples

    def result(self) -> SiteStatistics:
        """Return the statistics of all that was added; warn of constant channels. More may be added afterwards.

        Raises:
            DataError: nothing was added, or too few values for ``ddof``.
        """
        if not self.samples or self.std_mode is None:
            raise DataError(f"site {self.site}: no training example to measure; check its training data")
        sums = list(zip(self._count, self._first, self._second, strict=True))
        mean = [quotient(first, count << SCALE) for count, first, _ in sums]
        if self.std_mode == "image":
            std = [quotient(second, count << SCALE) for count, _, second in sums]
        else:
            _require_enough(min(self._count), self.ddof, f"site {self.site}")
            # sum (x - mean)^2 = sum x^2 - (sum x)^2 / n, safe here because nothing is rounded before the quotient
            std = [
                quotient(count * second - first * first, (count * (count - self.ddof)) << 2 * SCALE) ** 0.5
                for count, first, second in sums
            ]
        _require_finite(np.array([mean, std]), f"site {self.site}")
        warn_constant(self.site, std)
        numbers = tuple(mean), tuple(std)
        return SiteStatistics(self.site, *numbers, self.std_mode, self.ddof, self.samples, self.region)

    def to_state(self) -> dict[str, Any]:
        """Return all of it as text and numbers that JSON holds, to be merged elsewhere.

        >>> calculator = StatisticsCalculator("A", ddof=0)
        >>> calculator.update(torch.tensor([[0.0, 2.0]]))
        >>> StatisticsCalculator.from_state(calculator.to_state()).result() == calculator.result()
        True
        """
        sums = {name: [hex(number) for number in getattr(self, f"_{name}")] for name in _SUMS}
        return {**{name: getattr(self, name) for name in _DEFINITION}, "samples": self.samples, **sums}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "StatisticsCalculator":
        """Undo ``to_state``.

        Raises:
            DataError: an entry is absent or cannot be what ``to_state`` wrote.
        """
        try:
            definition = {name: state[name] for name in _DEFINITION[1:]}
            found = cls(str(state["site"]), **definition)
            found.samples = int(state["samples"])
            found._count, found._first, found._second = ([int(text, 16) for text in state[name]] for name in _SUMS)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"state of a statistics calculator: {error!r}; give what to_state returned") from error
        lengths = {len(found._count), len(found._first), len(found._second)}
        if len(lengths) > 1 or found.samples < 0 or min(found._count, default=1) < 1:
            raise DataError(
                f"state of a statistics calculator: sums of {lengths} channels; give what to_state returned"
            )
        return found

    def _foreground(self, values: Tensor, mask: Image | None, what: str) -> Tensor | None:
        """Return where the mask lets values count, of the shape of ``values``; None where there is none."""
        if (mask is None) == (self.region == "mask"):
            has = f"region={self.region!r} but {'no' if mask is None else 'a'} mask"
            raise DataError(f"{what}: {has}; region 'mask' takes one with each image")
        if mask is None:
            return None
        if (covered := _plain(mask, what)).isnan().any():  # NaN is not 0, so it would count as inside
            raise DataError(f"{what}: its mask has values that are not numbers; correct it")
        keep = covered != 0
        if keep.shape not in (values.shape, values[:1].shape, values.shape[1:]):
            raise DataError(f"{what}: a mask of shape {tuple(keep.shape)} for an image of {tuple(values.shape)}")
        return keep.expand_as(values)

    def _add_rows(self, images: Tensor, what: str) -> None:
        n_images, channels = images.shape[:2]
        found = row_moments(images.reshape(n_images * channels, -1))
        mean, squares = (entry.view(n_images, channels).tolist() for entry in found)
        self._add([images[0, 0].numel()] * channels, mean, squares, what)

    def _add(
        self,
        count: list[int],
        mean: Sequence[list[float]],
        squares: Sequence[list[float]],
        what: str,
        *,
        samples: int | None = None,
    ) -> None:
        """Add one line of moments an image: ``count`` values a channel, their mean and squared deviations from it."""
        _require_finite(np.array([mean, squares]), what)
        self.std_mode = self.std_mode or "image"
        if self.std_mode == "image":
            _require_enough(min(count), self.ddof, what)
        self._extend(len(count), what)
        for means, deviations in zip(mean, squares, strict=True):
            for k, (n, m, q) in enumerate(zip(count, means, deviations, strict=True)):
                first = as_integer(m)
                if self.std_mode == "image":
                    self._count[k] += 1
                    self._first[k] += first
                    self._second[k] += as_integer((q / (n - self.ddof)) ** 0.5)
                else:
                    self._count[k] += n
                    self._first[k] += n * first
                    self._second[k] += (as_integer(q) << SCALE) + n * first * first
        self.samples += len(mean) if samples is None else samples

    def _extend(self, channels: int, what: str) -> None:
        """Start the sums, or refuse another number of channels."""
        if not self.samples:
            self._count, self._first, self._second = [0] * channels, [0] * channels, [0] * channels
        if len(self._count) != channels:
            raise DataError(
                f"{what}: {channels} channels, but {len(self._count)} before; all inputs need the same channels"
            )


def _plain(image: Image, what: str) -> Tensor:
    """Return a plain CPU tensor, without a copy where that is possible."""
    if isinstance(image, np.ndarray):
        if image.dtype.kind not in "buif":
            raise DataError(
                f"{what}: values of type {image.dtype} cannot be measured; give integers or floating numbers"
            )
        if not image.dtype.isnative or image.dtype == np.longdouble:
            image = image.astype(np.float64)
        if not image.flags.writeable or min(image.strides, default=0) < 0:  # torch takes neither
            image = image.copy()
        return torch.as_tensor(image)
    if not isinstance(image, Tensor):
        raise DataError(f"{what}: an image or mask is a tensor or an array, not {type(image).__name__}")
    if image.is_complex():
        raise DataError(f"{what}: complex values cannot be measured; give their magnitude")
    return image.detach().as_subclass(Tensor).cpu()


def _run(values: Tensor, like: Tensor) -> Tensor:
    """Flatten in the order in which ``like`` lies in memory; NIfTI volumes lie with their first axis innermost."""
    order = sorted(range(like.ndim), key=lambda axis: -like.stride()[axis])
    return values.permute(order).reshape(-1)


def _require_enough(values: int, ddof: int, what: str) -> None:
    if values <= ddof:
        raise DataError(f"{what}: {values} value(s) a channel give no std with ddof={ddof}; use ddof=0")


def _require_finite(numbers: NDArray[Any], what: str) -> None:
    """Refuse (..., C) numbers that are not all finite."""
    if not np.isfinite(numbers).all():
        bad = np.flatnonzero(~np.isfinite(numbers).reshape(-1, numbers.shape[-1]).all(0)).tolist()
        raise DataError(f"{what}: values that are not finite in {name_channels(bad)}; clean the inputs")
