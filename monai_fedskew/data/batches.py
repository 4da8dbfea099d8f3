"""Whole batches of indices, and what each class weighs."""

import logging
from collections.abc import Iterator, Sized
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Sampler

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError

__all__ = ["ShuffledBatches", "class_weights", "whole_batch"]

logger = logging.getLogger(__name__)
Batch = TypeVar("Batch")


class ShuffledBatches(Sampler[Tensor]):
    """Yield one tensor of indices a batch, drawn by one permutation an epoch, or by as many as its length asks for.

    A last batch of a single sample joins the batch before it, since BatchNorm cannot train on one value a channel; as
    the order is drawn anew each epoch it is not always the same sample, and every sample is seen once an epoch.

    With ``samples_per_epoch`` N, sites of n samples each all make the same number of steps: small ones repeat their
    samples (Li et al. 2021, FedBN, ICLR, arXiv 2102.07623, appendix E.6). An epoch then is permutation after
    permutation, the last one cut: it has each sample floor(N / n) or ceil(N / n) times.

    Args:
        dataset: anything with a length.
        batch_size: samples a batch, at least 1; the last batch may be smaller, or larger by one.
        shuffle: False keeps the order of the dataset (evaluation).
        samples_per_epoch: samples an epoch draws, at least 1, whatever the length of the dataset; None: each once.

    Attributes:
        generator: source of the permutations; None is torch's default generator.

    Raises:
        ConfigError: ``batch_size`` or ``samples_per_epoch`` is not positive, or there is no sample to repeat.

    Example:
        >>> [len(batch) for batch in ShuffledBatches(range(33), 32)]
        [33]
        >>> [batch.tolist() for batch in ShuffledBatches(range(5), 3, shuffle=False)]
        [[0, 1, 2], [3, 4]]
        >>> [batch.tolist() for batch in ShuffledBatches(range(3), 4, shuffle=False, samples_per_epoch=7)]
        [[0, 1, 2, 0], [1, 2, 0]]
    """

    def __init__(
        self, dataset: Sized, batch_size: int, *, shuffle: bool = True, samples_per_epoch: int | None = None
    ) -> None:
        require_whole("batches", "batch_size", batch_size, 1)
        if samples_per_epoch is not None:
            require_whole("batches", "samples_per_epoch", samples_per_epoch, 1)
            if not len(dataset):
                raise ConfigError(f"samples_per_epoch={samples_per_epoch}, but the dataset is empty: nothing to repeat")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.samples_per_epoch = samples_per_epoch
        self.generator: torch.Generator | None = None

    def __len__(self) -> int:
        n = self.samples_per_epoch or len(self.dataset)
        return -(-n // self.batch_size) - self._merges(n)

    def __iter__(self) -> Iterator[Tensor]:
        n = self.samples_per_epoch or len(self.dataset)
        order = self._order(n)
        batches = [order[start : start + self.batch_size] for start in range(0, n, self.batch_size)]
        if self._merges(n):
            batches[-2:] = [order[-(self.batch_size + 1) :]]
        return iter(batches)

    def _order(self, n: int) -> Tensor:
        """The first n of permutation after permutation."""
        held = len(self.dataset)
        passes = -(-n // held) if held else 1
        if not self.shuffle:
            return torch.arange(held).repeat(passes)[:n]
        return torch.cat([torch.randperm(held, generator=self.generator) for _ in range(passes)])[:n]

    def _merges(self, n: int) -> bool:
        return 1 < self.batch_size < n and n % self.batch_size == 1


def whole_batch(batch: Batch) -> Batch:
    """Return what a dataset's ``__getitems__`` made: the collate function of a dataset that returns whole batches.

    Example:
        >>> whole_batch({"label": [0, 1]})
        {'label': [0, 1]}
    """
    return batch


def class_weights(labels: ArrayLike, n_classes: int, *, site: str = "") -> NDArray[np.float32]:
    """Weigh classes by n / (K n_c), with K the number of classes that are present.

    A class that is absent from a site's training data weighs 1: it occurs in no training loss, and a validation loss
    stays finite. One warning names the site and the class.

    Args:
        labels: the site's training labels only, integers in 0 .. n_classes - 1, shape (n,).
        n_classes: classes of the network.
        site: named in messages.

    Returns:
        Weights of shape (n_classes,), all finite; over the samples present they average to 1.

    Raises:
        ConfigError: there is no label, or one lies outside the range.

    Example:
        >>> class_weights([0] * 20 + [1] * 5, 2).tolist()
        [0.625, 2.5]
    """
    values = np.asarray(labels, dtype=np.int64)
    if values.size == 0 or values.min() < 0 or values.max() >= n_classes:
        seen = np.unique(values).tolist()
        raise ConfigError(f"site {site or '?'}: labels are {seen}; class weights need some in 0 .. {n_classes - 1}")
    counts = np.bincount(values, minlength=n_classes)
    present = counts > 0
    if not present.all():
        missing = ", ".join(str(c) for c in np.flatnonzero(~present))
        logger.warning("site %s: no training sample of class %s; it weighs 1", site or "?", missing)
    weights = np.ones(n_classes, np.float32)
    weights[present] = values.size / (present.sum() * counts[present])
    return weights
