"""Normalise one image by the statistics of a site, its own or one drawn at random: MONAI transforms for arrays."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor, get_track_meta
from monai.transforms import InvertibleTransform, RandomizableTransform
from monai.utils import TraceKeys, TransformBackends, convert_to_tensor, get_equivalent_dtype
from numpy.typing import DTypeLike
from torch import Tensor
from torch.utils.data import get_worker_info

from monai_fedskew.core.ranges import require_number
from monai_fedskew.core.seeding import derive
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms.reuse import ReusedMemory
from monai_fedskew.transforms.statistics import SiteStatistics, warn_constant
from monai_fedskew.transforms.table import as_table, read_statistics

__all__ = ["RandSiteNormalize", "SiteNormalize"]

Statistics = SiteStatistics | str | Path
DType = DTypeLike | torch.dtype | None
_DTYPES = (None, torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BACKEND = [TransformBackends.TORCH, TransformBackends.NUMPY]


class SiteNormalize(InvertibleTransform):  # type: ignore[misc]  # MONAI comes without types
    """Compute ``(x - mean) / std`` per channel with the statistics of one site; a std of 0 divides by 1.

    Every voxel is normalised, also where the statistics are those of the foreground. The image itself stays as it is;
    meta data are kept, and ``inverse`` gives the image back to within rounding.

    Args:
        statistics: of the site, or the file that ``write_statistics`` wrote.
        dtype: floating type of the result, numpy's or torch's; None keeps the image's, or float32 for integers.
            Arithmetic is in float32 at least.

    Raises:
        ConfigError: dtype is no floating type.
        DataError: the file cannot be used; when called, an image with another number of channels.

    >>> site = SiteStatistics("A", (100.0,), (10.0,), "image", 1, 20)
    >>> SiteNormalize(site)(torch.tensor([[110.0, 90.0]])).tolist()
    [[1.0, -1.0]]
    """

    backend = _BACKEND

    def __init__(self, statistics: Statistics, dtype: DType = np.float32) -> None:
        self.statistics = statistics if isinstance(statistics, SiteStatistics) else read_statistics(Path(statistics))
        warn_constant(self.statistics.site, self.statistics.std)
        self._pair = _Pair(self.statistics, dtype)

    def __call__(self, img: Any) -> Any:
        """Normalise an image (C, *spatial): a MetaTensor, as MONAI's transforms give it while it tracks meta data."""
        return _normalise(self, img, self._pair)

    def inverse(self, data: Any) -> Any:
        """Undo the normalisation that the image's record names; of an image without record, that of the own pair."""
        return _undo(self, data, self._pair)


class RandSiteNormalize(RandomizableTransform, InvertibleTransform):  # type: ignore[misc]  # as above
    """Normalise each image by the mean and std of a site drawn uniformly, own included: FedRDN's augmentation.

    (x - mean_j) / std_j, j anew for every call. Evaluation takes ``SiteNormalize`` with the own statistics. A worker
    process of a DataLoader, MONAI's or torch's, forked or spawned, draws a stream of its own, a function of the
    worker's seed and of ``set_random_state``; so do the workers of the next epoch.

    Paper: Yan et al. 2025, A Simple Data Augmentation for Feature Distribution Skewed Federated Learning, CVPR,
    arXiv 2306.09363.

    Args:
        statistics: of all sites, or their files, or a table as ``read_table`` gives it.
        own_site: name of the site the images are of.
        prob: probability of a draw from all sites, in [0, 1]; otherwise the own pair is used.
        dtype: as for ``SiteNormalize``.

    Raises:
        ConfigError: dtype is no floating type, or prob is out of range.
        DataError: statistics that do not compare (both sites are named), a site given twice, or an unknown own site;
            when called, an image with another number of channels.

    >>> sites = [SiteStatistics(name, (mean,), (1.0,), "image", 1, 20) for name, mean in (("A", 0.0), ("B", 100.0))]
    >>> normalise = RandSiteNormalize(sites, own_site="A").set_random_state(0)
    >>> [normalise(torch.tensor([[50.0]])).item() for _ in range(4)]
    [-50.0, -50.0, -50.0, 50.0]
    """

    backend = _BACKEND

    def __init__(
        self,
        statistics: Iterable[Statistics] | Mapping[str, SiteStatistics],
        *,
        own_site: str,
        prob: float = 1.0,
        dtype: DType = np.float32,
    ) -> None:
        require_number("RandSiteNormalize", "prob", prob, least=0, most=1)
        RandomizableTransform.__init__(self, prob)
        self.statistics = as_table(statistics, own=own_site)
        for site in self.statistics.values():
            warn_constant(site.site, site.std)
        self._pairs = [_Pair(site, dtype) for site in self.statistics.values()]
        self._own = self._drawn = list(self.statistics).index(own_site)
        self._origin = 0  # what tells streams of two workers with one seed apart
        self._seeded_for: int | None = None

    def set_random_state(self, seed: int | None = None, state: Any = None) -> "RandSiteNormalize":
        """Set the source of randomness, as MONAI does."""
        super().set_random_state(seed, state)
        self._origin = int(deepcopy(self.R).randint(2**31))
        self._seeded_for = _worker_seed()
        return self

    def randomize(self, data: Any = None) -> None:
        """Draw a site."""
        worker = _worker_seed()
        if worker is not None and worker != self._seeded_for:
            # torch's DataLoader leaves every worker of every epoch with a copy of one and the same random state.
            self.R = np.random.RandomState(derive(worker, part=f"RandSiteNormalize|{self._origin}") % 2**32)
            self._seeded_for = worker
        super().randomize(None)
        drawn = int(self.R.randint(len(self._pairs)))
        self._drawn = drawn if self._do_transform else self._own

    def __call__(self, img: Any, randomize: bool = True) -> Any:
        """Normalise an image (C, *spatial); without ``randomize``, by the site drawn last."""
        if randomize:
            self.randomize()
        return _normalise(self, img, self._pairs[self._drawn])

    def inverse(self, data: Any) -> Any:
        """Undo the normalisation by the pair that was drawn for this image, which its record names.

        Raises:
            DataError: an image without record.
        """
        return _undo(self, data, None)


class _Pair:
    """(x - mean) / std of one site, forth and back."""

    def __init__(self, statistics: SiteStatistics, dtype: DType) -> None:
        self.site, self._mean = statistics.site, list(statistics.mean)
        self._std = [value or 1.0 for value in statistics.std]
        try:
            self._dtype = None if dtype is None else get_equivalent_dtype(dtype, Tensor)
        except TypeError:
            self._dtype = torch.bool
        if self._dtype not in _DTYPES:
            raise ConfigError(
                f"site {self.site}: dtype={dtype} of normalised images must be a floating type, of 16 to 64 bits"
            )
        self._tensors: dict[tuple[torch.dtype, torch.device, int], tuple[Tensor, Tensor]] = {}
        self._results = ReusedMemory()

    def __getstate__(self) -> dict[str, Any]:
        # What was made on the way stays behind: MONAI keys its caches on disk by what a transform's pickle says.
        return {**self.__dict__, "_tensors": {}, "_results": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _results=ReusedMemory())

    def record(self) -> dict[str, Any]:
        return {"site": self.site, "mean": list(self._mean), "std": list(self._std)}

    def forth(self, image: Tensor) -> Tensor:
        self._require_channels(image)
        mean, std, dtype = self._numbers(image)
        if not image.is_floating_point():  # torch subtracts nothing from truth values
            image = image.to(mean.dtype)
        out = None
        if image.device.type == "cpu" and not image.requires_grad:  # new pages for a volume cost more than the rest
            out = self._results.empty(tuple(image.shape), torch.promote_types(image.dtype, mean.dtype))
        return torch.sub(image, mean, out=out).div_(std).to(dtype)

    def back(self, image: Tensor) -> Tensor:
        self._require_channels(image)
        mean, std, dtype = self._numbers(image)
        return torch.mul(image, std).add_(mean).to(dtype)

    def _require_channels(self, image: Tensor) -> None:
        channels = len(self._mean)
        found = len(image) if image.ndim else 0
        if found != channels:
            raise DataError(
                f"site {self.site}: statistics of {channels} channels, but an image of {found}, "
                f"shape {tuple(image.shape)}; it must be (channels, *spatial), with the channels that were measured"
            )
        if image.is_complex():
            raise DataError(f"site {self.site}: a complex image cannot be normalised; give its magnitude")

    def _numbers(self, image: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
        kept = image.dtype if image.is_floating_point() else torch.float32
        dtype = kept if self._dtype is None else self._dtype
        kind = (torch.promote_types(torch.promote_types(kept, dtype), torch.float32), image.device, image.ndim)
        if kind not in self._tensors:
            shape = (-1, *[1] * (image.ndim - 1))
            numbers = [torch.tensor(values, dtype=torch.float64) for values in (self._mean, self._std)]
            mean, std = (values.to(kind[1], kind[0]).view(shape) for values in numbers)
            self._tensors[kind] = mean, std
        return *self._tensors[kind], dtype


def _normalise(transform: InvertibleTransform, img: Any, pair: _Pair) -> Any:
    out = _with_meta(pair.forth(_plain(img)), img)
    return transform.push_transform(out, extra_info=pair.record())


def _undo(transform: InvertibleTransform, data: Any, own: _Pair | None) -> Any:
    pair = own
    if isinstance(data, MetaTensor) and data.applied_operations:
        record = transform.pop_transform(data)[TraceKeys.EXTRA_INFO]
        numbers = tuple(record["mean"]), tuple(record["std"])
        pair = _Pair(SiteStatistics(record["site"], *numbers, "image", 1, 0), None)
    if pair is None:
        raise DataError("an image without record of its transforms: which site was drawn is not known; keep MetaTensor")
    return _with_meta(pair.back(_plain(data)), data)


def _plain(img: Any) -> Tensor:
    if isinstance(img, np.ndarray) and not img.dtype.isnative:
        img = img.astype(img.dtype.newbyteorder("="))
    tensor = img if isinstance(img, Tensor) else convert_to_tensor(img)
    if not isinstance(tensor, Tensor):
        raise DataError(f"an image is a tensor or an array of numbers, not {type(img).__name__}: {str(img)[:60]!r}")
    return tensor.as_subclass(Tensor)


def _with_meta(out: Tensor, img: Any) -> Tensor:
    """Return the result with the meta data of the image it came from, while MONAI tracks them."""
    if not get_track_meta():
        return out
    if not isinstance(img, MetaTensor):
        return MetaTensor(out)  # type: ignore[no-any-return]  # MONAI comes without types
    # MONAI's own conversions copy meta data three times, which costs more than normalising a small image.
    return out.as_subclass(MetaTensor).copy_meta_from(img)  # type: ignore[no-any-return]  # as above


def _worker_seed() -> int | None:
    worker = get_worker_info()
    return None if worker is None else worker.seed
