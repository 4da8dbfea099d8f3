"""A part of the training samples, for studies of how much data a site has."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError

__all__ = ["stratified_subset"]


def stratified_subset(labels: ArrayLike, limit: int, *, seed: int, site: str = "") -> NDArray[np.int64]:
    """Draw ``limit`` samples with the shares that the classes have in all; a smaller draw lies within a larger one.

    Each class is shuffled; its j-th sample of n gets the place (j + 1/2) / n, j from 0; all samples are ordered by
    their places, equal ones at random, and the first ``limit`` are taken. So 1 % of the data is a part of 10 %, as in
    the study of data sizes of Li et al. 2021, FedBN, ICLR, arXiv 2102.07623.

    Args:
        labels: class of each sample, shape (n,).
        limit: samples to draw, 1 .. n.
        seed: of the shuffle and of equal places.
        site: named in messages.

    Returns:
        The numbers of the drawn samples, ascending, shape (limit,).

    Raises:
        ConfigError: ``limit`` is no whole number, less than 1 or more than there are samples.

    Example:
        >>> labels = np.repeat([0, 1], [6, 3])
        >>> labels[stratified_subset(labels, 3, seed=0)].tolist()
        [0, 0, 1]
    """
    classes = np.asarray(labels)
    require_whole(f"site {site or '?'}", "limit", limit, 1)
    if limit > len(classes):
        raise ConfigError(
            f"site {site or '?'}: limit={limit}, but its training split has {len(classes)} samples; "
            f"give at most {len(classes)}, or null for all"
        )
    rng = np.random.default_rng(seed)
    places = np.zeros(len(classes))
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        places[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    return np.sort(np.lexsort((rng.permutation(len(classes)), places))[:limit])
