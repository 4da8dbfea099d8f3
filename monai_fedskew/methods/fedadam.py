"""FedAdam: the server steps by Adam's rule."""

from dataclasses import dataclass

from torch import Tensor

from monai_fedskew.core.method import Method
from monai_fedskew.methods.fedopt import AdaptiveServer, require_adaptive

__all__ = ["DecayingSquare", "fedadam"]


def fedadam(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Method:
    """Take the sites' mean movement for a gradient and step by Adam's rule, at the server.

    d = sum_k p_k w_k - x;  m <- beta1 m + (1 - beta1) d;  v <- beta2 v + (1 - beta2) d^2;
    x <- x + lr m / (sqrt(v) + tau), for parameters; running statistics are averaged. m starts at 0 and v at tau^2, and
    the bias of both is not corrected, as in the paper.

    Paper: Reddi et al. 2021, Adaptive Federated Optimization, ICLR, arXiv 2003.00295, algorithm 2.

    Args:
        lr: learning rate of the server, above 0; about the largest way a parameter goes in a round.
        beta1: decay of m, in [0, 1).
        beta2: decay of v, in [0, 1).
        tau: bounds the step where d is small, above 0.

    Raises:
        ConfigError: a value out of range.

    >>> fedadam(lr=0.1).aggregate
    AdaptiveServer(lr=0.1, beta1=0.9, tau=0.001, second=DecayingSquare(beta2=0.99))
    """
    require_adaptive("method fedadam", lr=lr, tau=tau, beta1=beta1, beta2=beta2)
    second = DecayingSquare(float(beta2))
    return Method("fedadam", aggregate=AdaptiveServer(float(lr), float(beta1), float(tau), second))


@dataclass(frozen=True)
class DecayingSquare:
    """v <- beta2 v + (1 - beta2) d^2."""

    beta2: float

    def __call__(self, v: Tensor, d: Tensor) -> Tensor:
        """Return the new v."""
        return v * self.beta2 + d.square() * (1 - self.beta2)
