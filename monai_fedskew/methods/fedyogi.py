"""FedYogi: the server steps by Yogi's rule."""

from dataclasses import dataclass

from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.methods.fedopt import AdaptiveServer, require_adaptive

__all__ = ["SignedSquare", "fedyogi"]


def fedyogi(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """Take the sites' mean movement for a gradient and step by Yogi's rule, at the server.

    As fedadam, but v <- v - (1 - beta2) d^2 sign(v - d^2): after one large movement v comes down again by the size of
    d^2 and not by a share of its own, so the step grows back slowly.

    Paper: Reddi et al. 2021, Adaptive Federated Optimization, ICLR, arXiv 2003.00295, algorithm 2.

    Args:
        lr: learning rate of the server, above 0.
        beta1: decay of m, in [0, 1).
        beta2: 1 - beta2 is the share of d^2 that v takes or gives, in [0, 1).
        tau: bounds the step where d is small, above 0.

    Raises:
        ConfigError: a value out of range.

    >>> fedyogi().aggregate.second
    SignedSquare(beta2=0.99)
    """
    require_adaptive("method fedyogi", lr=lr, tau=tau, beta1=beta1, beta2=beta2)
    second = SignedSquare(float(beta2))
    return Method("fedyogi", aggregate=AdaptiveServer(float(lr), float(beta1), float(tau), second))


@dataclass(frozen=True)
class SignedSquare:
    """v <- v - (1 - beta2) d^2 sign(v - d^2)."""

    beta2: float

    def __call__(self, v: Tensor, d: Tensor) -> Tensor:
        """Return the new v."""
        square = d.square()
        return v - (1 - self.beta2) * square * (v - square).sign()
