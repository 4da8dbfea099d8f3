"""Normalise images by the statistics of a site: the dictionary forms of the MONAI transforms."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from monai.transforms import InvertibleTransform, MapTransform, RandomizableTransform

from monai_fedskew.transforms.site_normalize import DType, RandSiteNormalize, SiteNormalize, Statistics
from monai_fedskew.transforms.statistics import SiteStatistics

__all__ = [
    "RandSiteNormalizeD",
    "RandSiteNormalizeDict",
    "RandSiteNormalized",
    "SiteNormalizeD",
    "SiteNormalizeDict",
    "SiteNormalized",
]

Keys = Hashable | Iterable[Hashable]


class SiteNormalized(MapTransform, InvertibleTransform):  # type: ignore[misc]  # MONAI comes without types
    """Normalise the images under ``keys``; see ``SiteNormalize``.

    Args:
        keys: of the images.
        statistics: as for ``SiteNormalize``.
        dtype: as for ``SiteNormalize``.
        allow_missing_keys: whether a key may be absent.

    >>> site = SiteStatistics("A", (100.0,), (10.0,), "image", 1, 20)
    >>> SiteNormalized("image", site)({"image": np.array([[110.0, 90.0]])})["image"].tolist()
    [[1.0, -1.0]]
    """

    backend = SiteNormalize.backend

    def __init__(
        self, keys: Keys, statistics: Statistics, dtype: DType = np.float32, allow_missing_keys: bool = False
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        self._normalise = SiteNormalize(statistics, dtype)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with normalised images."""
        return {**data, **{key: self._normalise(data[key]) for key in self.key_iterator(data)}}

    def inverse(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with the normalisation undone."""
        return {**data, **{key: self._normalise.inverse(data[key]) for key in self.key_iterator(data)}}


class RandSiteNormalized(RandomizableTransform, MapTransform, InvertibleTransform):  # type: ignore[misc]  # as above
    """Normalise the images under ``keys`` by one site drawn at random for all of them; see ``RandSiteNormalize``.

    Args:
        keys: of the images.
        statistics: as for ``RandSiteNormalize``.
        own_site: as for ``RandSiteNormalize``.
        prob: as for ``RandSiteNormalize``.
        dtype: as for ``RandSiteNormalize``.
        allow_missing_keys: whether a key may be absent.

    >>> sites = [SiteStatistics(name, (mean,), (1.0,), "image", 1, 20) for name, mean in (("A", 0.0), ("B", 100.0))]
    >>> normalise = RandSiteNormalized("image", sites, own_site="A").set_random_state(0)
    >>> normalise({"image": np.array([[50.0]])})["image"].tolist()
    [[-50.0]]
    """

    backend = RandSiteNormalize.backend

    def __init__(
        self,
        keys: Keys,
        statistics: Iterable[Statistics] | Mapping[str, SiteStatistics],
        *,
        own_site: str,
        prob: float = 1.0,
        dtype: DType = np.float32,
        allow_missing_keys: bool = False,
    ) -> None:
        MapTransform.__init__(self, keys, allow_missing_keys)
        RandomizableTransform.__init__(self, prob)
        self._normalise = RandSiteNormalize(statistics, own_site=own_site, prob=prob, dtype=dtype)

    def set_random_state(self, seed: int | None = None, state: Any = None) -> "RandSiteNormalized":
        """Set the source of randomness, as MONAI does."""
        self._normalise.set_random_state(seed, state)
        return self

    def randomize(self, data: Any = None) -> None:
        """Draw a site."""
        self._normalise.randomize()

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with normalised images."""
        self.randomize()
        return {**data, **{key: self._normalise(data[key], randomize=False) for key in self.key_iterator(data)}}

    def inverse(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Return the data with each image's normalisation undone."""
        return {**data, **{key: self._normalise.inverse(data[key]) for key in self.key_iterator(data)}}


SiteNormalizeD = SiteNormalizeDict = SiteNormalized
RandSiteNormalizeD = RandSiteNormalizeDict = RandSiteNormalized
