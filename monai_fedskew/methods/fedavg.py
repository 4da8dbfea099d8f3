"""FedAvg: the mean of the sites' models."""

from monai_fedskew.core.method import Method

__all__ = ["fedavg"]


def fedavg() -> Method:
    """Average all entries of the network, running statistics included.

    w = sum_k p_k w_k over the round's participants; integer counters take the maximum.

    Paper: McMahan et al. 2017, Communication-Efficient Learning of Deep Networks, arXiv 1602.05629, algorithm 1.

    >>> fedavg().name
    'fedavg'
    """
    return Method("fedavg")
