"""What our handlers need of the engine they are attached to."""

from typing import Any

from torch import nn

from monai_fedskew.errors import ConfigError

__all__ = ["network_of"]


def network_of(engine: Any, handler: str) -> nn.Module:
    """Return the engine's network; to be asked for in a running engine, as MONAI attaches handlers before it is set.

    Raises:
        ConfigError: the engine has none; ``handler`` opens the message.
    """
    network = getattr(engine, "network", None)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"{handler}: {type(engine).__name__} has no network; attach it to a MONAI trainer")
    return network
