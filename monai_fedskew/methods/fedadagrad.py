"""FedAdagrad: the server steps by Adagrad's rule."""

from dataclasses import dataclass

from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.methods.fedopt import AdaptiveServer, require_adaptive

__all__ = ["SumOfSquares", "fedadagrad"]


def fedadagrad(lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """Take the sites' mean movement for a gradient and step by Adagrad's rule, at the server.

    As fedadam, but v <- v + d^2: the step of a parameter shrinks with all it ever moved.

    Paper: Reddi et al. 2021, Adaptive Federated Optimization, ICLR, arXiv 2003.00295, algorithm 2.

    Args:
        lr: learning rate of the server, above 0.
        beta1: decay of m, in [0, 1); 0, as in the paper's experiments, has no momentum.
        tau: bounds the step where d is small, above 0.

    Raises:
        ConfigError: a value out of range.

    >>> fedadagrad().aggregate
    AdaptiveServer(lr=0.01, beta1=0.0, tau=0.001, second=SumOfSquares())
    """
    require_adaptive("method fedadagrad", lr=lr, tau=tau, beta1=beta1)
    return Method("fedadagrad", aggregate=AdaptiveServer(float(lr), float(beta1), float(tau), SumOfSquares()))


@dataclass(frozen=True)
class SumOfSquares:
    """v <- v + d^2."""

    def __call__(self, v: Tensor, d: Tensor) -> Tensor:
        """Return the new v."""
        return v + d.square()
