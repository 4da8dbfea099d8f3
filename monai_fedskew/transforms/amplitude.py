"""Give images a reference amplitude spectrum and keep their phase."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monai_fedskew.errors import DataError
from monai_fedskew.transforms.deployed import change_inputs, read_entries

__all__ = ["AmplitudeBatch", "AmplitudeNormaliser", "band_count", "mean_amplitude"]

_CHUNK = 32  # images transformed at once while measuring


class AmplitudeNormaliser:
    """Replace the amplitudes of an image's low frequencies by those of a reference; phases stay.

    Per channel, with F the discrete Fourier transform over space, F(y) = reference e^(i arg F(x)) within the band and
    F(x) outside. In the band of the mean alone (``band=0``) that is y = x - mean(x) + reference, the reference with the
    sign of mean(x), for images of any size. A coefficient of an image that is 0 but for rounding has phase 0.

    Args:
        amplitude: (C, coefficients) from ``mean_amplitude``.
        size: spatial size of the images, 1-D to 3-D; empty in the band of the mean alone.
        band: as measured.

    Raises:
        DataError: the number of coefficients is not that of the band.

    >>> AmplitudeNormaliser(torch.tensor([[5.0]]))(torch.tensor([[[1.0, 3.0]]])).tolist()
    [[[4.0, 6.0]]]
    """

    def __init__(self, amplitude: Tensor, size: Sequence[int] = (), band: float = 0.0) -> None:
        if amplitude.ndim != 2 or amplitude.shape[1] != band_count(size, band):
            raise DataError(
                f"amplitude of shape {tuple(amplitude.shape)} must be (channels, {band_count(size, band)}) for images "
                f"of size {tuple(size)} and band={band}"
            )
        self._size, self._band = tuple(size) if band else (), band
        self._mask = _mask(self._size, band)
        self._reference = torch.zeros(len(amplitude), *self._mask.shape, dtype=torch.float64)
        self._reference[:, self._mask] = amplitude.to("cpu", torch.float64)
        self._cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """Normalise a batch; the input stays as it is.

        Args:
            inputs: (B, C, *spatial).

        Raises:
            DataError: another number of channels or another size than the reference's.
        """
        channels, size = len(self._reference), tuple(inputs.shape[2:])
        if inputs.ndim < 3 or inputs.shape[1] != channels or (self._band and size != self._size):
            expected = f"size {self._size}" if self._band else "any size"
            raise DataError(
                f"inputs of shape {tuple(inputs.shape)} do not fit amplitudes of {channels} channels and {expected}; "
                "with whole images of several sizes only the mean can be replaced (amplitude=dc)"
            )
        images = inputs if inputs.dtype in (torch.float32, torch.float64) else inputs.float()
        out = self._replace(images) if self._band else self._shift(images)
        return out.to(inputs.dtype) if inputs.is_floating_point() else out

    def _shift(self, images: Tensor) -> Tensor:
        reference, _ = self._tables(images)
        mean = images.mean(tuple(range(2, images.ndim)), keepdim=True)
        wanted = reference.view(-1, *[1] * (images.ndim - 2))
        return images + (torch.where(mean < 0, -wanted, wanted) - mean)

    def _replace(self, images: Tensor) -> Tensor:
        reference, mask = self._tables(images)
        axes = tuple(range(2, images.ndim))
        spectrum = torch.fft.rfftn(images, dim=axes, norm="forward")
        amplitude = spectrum.abs()
        floor = amplitude.amax(axes, keepdim=True) * torch.finfo(images.dtype).eps
        phase = torch.where(amplitude > floor, spectrum / amplitude, torch.ones_like(spectrum))
        spectrum = torch.where(mask, phase * reference, spectrum)
        out: Tensor = torch.fft.irfftn(spectrum, s=images.shape[2:], dim=axes, norm="forward")
        return out

    def _tables(self, images: Tensor) -> tuple[Tensor, Tensor]:
        kind = (images.dtype, images.device)
        if kind not in self._cast:
            self._cast[kind] = (self._reference.to(images.device, images.dtype), self._mask.to(images.device))
        return self._cast[kind]


def mean_amplitude(batches: Iterable[Tensor], band: float, *, site: str) -> tuple[Tensor, tuple[int, ...]]:
    """Average the amplitude spectra of images, in float64.

    Args:
        batches: images (B, C, *spatial), all of one size unless ``band`` is 0.
        band: frequencies |k| <= band * size along every axis, 0 (the mean alone) to 0.5 (all).
        site: name of the site, for messages.

    Returns:
        (C, coefficients) amplitudes divided by the number of voxels, so that the first is the mean's; and the size of
        the images, empty where ``band`` is 0.

    Raises:
        DataError: no image, vectors, images of two sizes, or a value that is not finite.

    >>> mean_amplitude([torch.tensor([[[1.0, 3.0]], [[4.0, 8.0]]])], 0.0, site="A")
    (tensor([[4.]], dtype=torch.float64), ())
    """
    total: Tensor | None = None
    size: tuple[int, ...] = ()
    count = 0
    for chunk in (chunk for batch in batches for chunk in torch.split(batch, _CHUNK)):
        images = chunk.detach().as_subclass(Tensor).to("cpu", torch.float64)
        found = tuple(images.shape[2:]) if band else ()
        if images.ndim < 3:
            raise DataError(f"site {site}: inputs of shape {tuple(images.shape)} are no images; they have no amplitude")
        if total is not None and (found != size or images.shape[1] != len(total)):
            raise DataError(
                f"site {site}: images of {images.shape[1]} channels and size {found} after {len(total)} and {size}; "
                "amplitudes cannot be averaged. Resample them to one size, or replace the mean alone (amplitude=dc)"
            )
        summed = _amplitudes(images, band).sum(0)
        total, size, count = (summed if total is None else total + summed), found, count + len(images)
    if total is None:
        raise DataError(f"site {site}: no training example to measure; check its training data")
    if not total.isfinite().all():
        raise DataError(f"site {site}: values that are not finite among the images; clean the inputs")
    return total / count, size


def band_count(size: Sequence[int], band: float) -> int:
    """Return the number of coefficients a channel in the half spectrum of real images.

    >>> band_count((8, 8), 0.5), band_count((8, 8), 0.25), band_count((), 0.0)
    (40, 15, 1)
    """
    reach = [min(math.floor(band * n + 1e-9), n // 2) for n in size]
    halved = reach.pop() + 1 if reach else 1  # the last axis holds no negative frequencies
    return math.prod(min(2 * k + 1, n) for k, n in zip(reach, size, strict=False)) * halved


def _mask(size: tuple[int, ...], band: float) -> Tensor:
    """Say which coefficients of the half spectrum are in the band."""
    mask = torch.ones((), dtype=torch.bool)
    for axis, n in enumerate(size):
        k = torch.arange(n)
        near = torch.minimum(k, n - k) <= band * n + 1e-9
        mask = mask[..., None] & (near[: n // 2 + 1] if axis == len(size) - 1 else near)
    return mask


def _amplitudes(images: Tensor, band: float) -> Tensor:
    axes = tuple(range(2, images.ndim))
    if not band:
        return images.mean(axes).abs()[..., None]
    spectrum: Tensor = torch.fft.rfftn(images, dim=axes, norm="forward")
    return spectrum.abs()[..., _mask(tuple(images.shape[2:]), band)]


class AmplitudeBatch:
    """Prepare a batch as MONAI does, then give the inputs the amplitudes in a file.

    An exported model names it as the ``prepare_batch`` of its evaluator, so that plain ``monai.bundle run`` repeats
    what the site saw.

    Args:
        file: safetensors file with "amplitude", "size" and "band"; see ``AmplitudeNormaliser``.

    Raises:
        DataError: the file is absent or lacks a tensor.

    >>> import tempfile; from safetensors.torch import save_file
    >>> file = str(Path(tempfile.mkdtemp()) / "site.safetensors")
    >>> save_file({"amplitude": torch.tensor([[5.0]]), "size": torch.tensor([0]), "band": torch.tensor(0.0)}, file)
    >>> AmplitudeBatch(file)({"image": torch.tensor([[[1.0, 3.0]]]), "label": torch.tensor([0])})[0].tolist()
    [[[4.0, 6.0]]]
    """

    def __init__(self, file: str | Path) -> None:
        tensors = read_entries(file, {"amplitude", "size", "band"}, "amplitudes")
        band = float(tensors["band"])
        size = tensors["size"].tolist() if band else ()
        self._normalise = AmplitudeNormaliser(tensors["amplitude"], size, band)

    def __call__(
        self,
        batchdata: Mapping[str, Tensor],
        device: str | torch.device | None = None,
        non_blocking: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return inputs and targets; MONAI passes further keyword arguments of the device transfer through."""
        from monai.engines.utils import default_prepare_batch  # here: a server has no use for MONAI

        return change_inputs(default_prepare_batch(batchdata, device, non_blocking, **kwargs), self._normalise)
