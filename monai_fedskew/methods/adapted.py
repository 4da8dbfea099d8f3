"""The network of an exported model, changed as the method changed it in training."""

from torch import nn

from monai_fedskew.core.part import adapt_network
from monai_fedskew.methods import parse_method

__all__ = ["adapted_network"]


def adapted_network(network: nn.Module, method: str, seed: int) -> nn.Module:
    """Let the parts of a method change a network, as the exported ``inference.yaml`` asks for.

    Args:
        network: as the bundle defines it.
        method: as text, e.g. ``fedrdn+fedbn``.
        seed: the seed of the run.

    Raises:
        ConfigError: an unknown method or parameter.
    """
    return adapt_network(network, parse_method(method).parts, seed)
