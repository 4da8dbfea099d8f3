"""What the images of a site look like: orientation, spacing, size and intensity."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.abide.store import Moments
from monai_fedskew.data.imaging.examine import Facts

__all__ = ["PERCENTILES", "Survey"]

PERCENTILES = (1, 25, 50, 75, 99)
_VALUES = 2_000_000  # kept for percentiles, over all images of a site


@dataclass
class Survey:
    """The images of one site, taken in one after the other.

    Args:
        images: how many will come, so that each leaves as many values for the percentiles.

    Example:
        >>> from monai_fedskew.data.imaging.examine import examine_pixels
        >>> from monai_fedskew.data.imaging.read import Pixels
        >>> survey = Survey(1)
        >>> survey.add(examine_pixels(Pixels(np.arange(6, dtype=np.float32).reshape(1, 2, 3)), "a"))
        >>> survey.plain()["size"], survey.plain()["mean"]
        ('2x3', 2.5)
    """

    images: int
    moments: Moments = field(default_factory=Moments)
    orientations: Counter[str] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    spacings: list[tuple[float, ...]] = field(default_factory=list)
    n_normalised: int = 0
    _samples: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def add(self, facts: Facts) -> None:
        """Take in an image."""
        self.moments += facts.moments
        if facts.orientation:
            self.orientations[facts.orientation] += 1
        self.channels[facts.channels] += 1
        self.sizes.append(facts.size)
        if facts.spacing:
            self.spacings.append(facts.spacing)
        self.n_normalised += facts.is_normalised
        keep = max(16, _VALUES // max(1, self.images))
        self._samples.append(facts.sample[:: max(1, len(facts.sample) // keep)])

    @property
    def median_shape(self) -> tuple[int, ...]:
        """The commonest number of channels and the median spatial size, over images."""
        return (self.channels.most_common(1)[0][0], *(int(x) for x in np.median(np.array(self.sizes), axis=0)))

    @property
    def percentiles(self) -> dict[int, float]:
        """Percentiles of intensity, of up to 2 million values evenly taken from all images."""
        if not self._samples:
            return {}
        values = np.percentile(np.concatenate(self._samples), PERCENTILES)
        return {percent: float(value) for percent, value in zip(PERCENTILES, values, strict=True)}

    def plain(self) -> dict[str, Any]:
        """Return the summary as JSON has it."""
        return {
            "images": len(self.sizes),
            "orientation": ", ".join(f"{name} {count}" for name, count in self.orientations.most_common()),
            "spacing mm": _range(self.spacings, "{:.3g}"),
            "size": _range(self.sizes, "{:d}"),
            "channels": ", ".join(str(count) for count in sorted(self.channels)),
            "mean": self.moments.mean,
            "std": self.moments.std,
            "percentiles": {str(percent): value for percent, value in self.percentiles.items()},
        }


def _range(rows: Sequence[Sequence[float]], form: str) -> str:
    """Return ``AxBxC`` with ``low..high`` where an axis varies.

    >>> _range([(2, 3), (2, 5)], "{:d}")
    '2x3..5'
    """
    parts = []
    for axis in zip(*rows, strict=True):
        low, high = form.format(min(axis)), form.format(max(axis))
        parts.append(low if low == high else f"{low}..{high}")
    return "x".join(parts)
