"""Where things are inside a network: convolutions, stages, residual blocks."""

from torch import nn
from torch.nn.modules.conv import _ConvNd

from monai_fedskew.errors import ConfigError

__all__ = ["require_convolutions"]


def require_convolutions(what: str, model: nn.Module) -> None:
    """Refuse a network of vectors.

    Args:
        what: opens the message: site and method.
        model: the network.

    Raises:
        ConfigError: the network has no convolution.
    """
    if not any(isinstance(module, _ConvNd) for module in model.modules()):
        raise ConfigError(
            f"{what} needs a network with convolutions, on images; {type(model).__name__} has none, so there are no "
            "feature maps. Leave the method out on vectors"
        )
