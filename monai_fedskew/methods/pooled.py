"""Pooled: one model on all sites' data together, the other end every study is compared with."""

from monai_fedskew.core.method import Method

__all__ = ["pooled"]


def pooled() -> Method:
    """Train one model on the data of all sites together, as if they could be collected.

    Simulator only; each site's data passes its own transforms first. Only a normalisation composes with it.

    Paper: Li et al. 2021, FedBN, arXiv 2102.07623 (centralised training).

    >>> pooled().scope
    'pooled'
    """
    return Method("pooled", scope="pooled")
