"""Normalise a batch by the statistics of sites: one arithmetic for training, evaluation and an exported model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monai_fedskew.errors import DataError
from monai_fedskew.transforms.deployed import change_inputs, read_entries
from monai_fedskew.transforms.reuse import ReusedMemory
from monai_fedskew.transforms.statistics import SiteStatistics, require_comparable

__all__ = ["NormaliseBatch", "SiteNormaliser"]


class SiteNormaliser:
    """Compute ``(x - mean_j) / std_j`` with the statistics of a row j of a table; a std of 0 divides by 1.

    Subtraction and division are rounded as IEEE 754 says whatever the batch, so every caller gets the same bits.

    Args:
        mean: (K, C), one row a site, or (C,) for a single one; C channels of images or features of vectors. One
            column serves every feature of a vector.
        std: of the same shape.

    Raises:
        DataError: the shapes differ.

    >>> SiteNormaliser(torch.tensor([1.0]), torch.tensor([2.0]))(torch.tensor([[[5.0, 1.0]]])).tolist()
    [[[2.0, 0.0]]]
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        if mean.shape != std.shape or mean.ndim not in (1, 2):
            raise DataError(
                f"mean {tuple(mean.shape)} and std {tuple(std.shape)} must both be (channels,) or (sites, channels)"
            )
        self._mean = mean.reshape(-1, mean.shape[-1])
        self._std = torch.where(std == 0, torch.ones_like(std), std).reshape(-1, std.shape[-1])
        self._cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}
        self._results, self._scratch = ReusedMemory(), ReusedMemory()

    @classmethod
    def of(cls, sites: Sequence[SiteStatistics]) -> "SiteNormaliser":
        """Return the normaliser whose rows are these sites, in this order; DataError if they do not compare."""
        require_comparable(sites)
        rows = [torch.tensor([getattr(s, name) for s in sites], dtype=torch.float64) for name in ("mean", "std")]
        return cls(*rows)

    @property
    def n_sites(self) -> int:
        """Number of rows."""
        return len(self._mean)

    def __call__(self, inputs: Tensor, mean_rows: Tensor | None = None, std_rows: Tensor | None = None) -> Tensor:
        """Normalise a batch; the input stays as it is.

        Args:
            inputs: (B, C, *spatial) or (B, F).
            mean_rows: (B,) row of the table each sample takes its mean from; None takes the first row for all.
            std_rows: (B,) the same for the std; None takes ``mean_rows``, the pair of one site.

        Raises:
            DataError: the number of channels is not that of the table.
        """
        channels = self._mean.shape[1]
        if inputs.ndim < 2 or (inputs.shape[1] != channels and not (inputs.ndim == 2 and channels == 1)):
            raise DataError(
                f"inputs of shape {tuple(inputs.shape)} do not fit statistics of {channels} channels; measure the "
                "site again with the data it trains on"
            )
        if not inputs.is_floating_point():
            inputs = inputs.float()
        mean, std = self._tables(inputs)
        shape = (-1, channels, *[1] * (inputs.ndim - 2))
        std_rows = mean_rows if std_rows is None else std_rows
        out = scratch = None
        if type(inputs) is Tensor and inputs.device.type == "cpu" and not inputs.requires_grad:
            out = self._results.empty(tuple(inputs.shape), inputs.dtype)
            if std_rows is not None:
                scratch = self._scratch.empty((len(inputs), channels), inputs.dtype)
        # Means are gathered where the result will be: 100 x 5995 numbers are moved once less.
        place = out if inputs.shape[1:] == (channels,) else None
        centred = torch.sub(inputs, _rows(mean, mean_rows, place).view(shape), out=out)
        return centred.div_(_rows(std, std_rows, scratch).view(shape))

    def _tables(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        kind = (inputs.dtype, inputs.device)
        if kind not in self._cast:
            self._cast[kind] = (self._mean.to(inputs.device, inputs.dtype), self._std.to(inputs.device, inputs.dtype))
        return self._cast[kind]


def _rows(table: Tensor, rows: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Return the first row, or those asked for, in ``out`` if it is given."""
    if rows is None:
        return table[:1]
    return torch.index_select(table, 0, rows.to(table.device), out=out)


class NormaliseBatch:
    """Prepare a batch as MONAI does, then normalise the inputs by the statistics in a file.

    An exported model names it as the ``prepare_batch`` of its evaluator, so that plain ``monai.bundle run``
    repeats what the site saw.

    Args:
        file: safetensors file with "mean" and "std", one number a channel.

    Raises:
        DataError: the file is absent or lacks a tensor.

    >>> import tempfile; from safetensors.torch import save_file
    >>> file = str(Path(tempfile.mkdtemp()) / "site.safetensors")
    >>> save_file({"mean": torch.tensor([1.0]), "std": torch.tensor([2.0])}, file)
    >>> NormaliseBatch(file)({"image": torch.tensor([[5.0]]), "label": torch.tensor([0])})[0].tolist()
    [[2.0]]
    """

    def __init__(self, file: str | Path) -> None:
        tensors = read_entries(file, {"mean", "std"}, "mean and std")
        self._normalise = SiteNormaliser(tensors["mean"], tensors["std"])

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
