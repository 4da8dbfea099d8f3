"""Replace layers of a network by type, wherever they are held."""

from collections.abc import Callable

from torch import nn
from torch.nn.modules.conv import _ConvNd

__all__ = ["output_layer", "replace_modules"]


def replace_modules(network: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Put ``make(module)`` in the place of every module, in place; names stay.

    Goes through the parents, since layers of one kind have other names in every network. A layer that is held twice
    stays one layer.

    Args:
        network: is changed.
        make: returns the new module, or the same one to leave it; it is asked once a module, parents before children.

    Returns:
        The network; another object only where ``make`` replaces the network itself.

    >>> replace_modules(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), lambda m: nn.Tanh() if type(m) is nn.ReLU else m)
    Sequential(
      (0): Linear(in_features=1, out_features=1, bias=True)
      (1): Tanh()
    )
    """
    made = {module: make(module) for module in network.modules()}
    for module, new in made.items():
        if new is not module:
            new.train(module.training)
    for parent in made:
        for name, child in list(parent._modules.items()):  # named_children() names a layer that is held twice once
            if child is not None and made[child] is not child:
                setattr(parent, name, made[child])
    return made[network]


def output_layer(network: nn.Module) -> nn.Module | None:
    """Return the linear or convolutional layer that gives the network's output: the last one it registers.

    >>> output_layer(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    Linear(in_features=3, out_features=1, bias=True)
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | _ConvNd)]
    return layers[-1] if layers else None
