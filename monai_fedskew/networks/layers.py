"""What is left of one layer at a reduced width: its channels, its weights, its attributes."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.channels import Channels, leading

__all__ = ["NORMS", "Layer", "bare", "cannot", "channel_dim", "has_channels", "layer_left", "own_weights"]

NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's channels at reduced width.

    Args:
        inputs: those left of its inputs.
        outputs: those left of its outputs.
        groups: of a convolution or a group norm.
        trim: which of the channels that arrive are ``inputs``, where some are cut off first to leave whole groups.
    """

    inputs: Channels
    outputs: Channels
    groups: int = 1
    trim: Channels | None = None

    def cut(self, layer: nn.Module, value: Tensor) -> Tensor:
        """Return the part of the parameter ``value`` of ``layer`` that is left; a view where it can be."""
        if value.ndim == 1:
            return self.outputs.cut(value, 0)
        if isinstance(layer, _ConvTransposeNd):
            value = self.inputs.cut(value, 0)
            return value if layer.groups > 1 else self.outputs.cut(value, 1)
        value = self.outputs.cut(value, 0)
        return value if isinstance(layer, _ConvNd) and layer.groups > 1 else self.inputs.cut(value, 1)

    def shrink(self, layer: nn.Module) -> None:
        """Make the attributes of ``layer`` agree."""
        if isinstance(layer, _ConvNd):
            layer.in_channels, layer.out_channels, layer.groups = self.inputs.count, self.outputs.count, self.groups
            if (trim := self.trim) is not None:
                layer.register_forward_pre_hook(lambda _, args: (trim.cut(args[0], 1), *args[1:]))
        elif isinstance(layer, nn.Linear):
            layer.in_features, layer.out_features = self.inputs.count, self.outputs.count
        elif isinstance(layer, nn.GroupNorm):
            layer.num_channels, layer.num_groups = self.inputs.count, self.groups
        elif isinstance(layer, _BatchNorm | _InstanceNorm):
            layer.num_features = self.inputs.count
        elif isinstance(layer, nn.PReLU):
            layer.num_parameters = self.inputs.count


def has_channels(layer: nn.Module) -> bool:
    """Tell whether a layer has to be cut: it has parameters of its own, or is a norm layer."""
    if isinstance(layer, nn.PReLU):
        return layer.num_parameters > 1
    return isinstance(layer, NORMS) or any(value is not None for value in layer._parameters.values())


def channel_dim(layer: nn.Module) -> int:
    """Return which dimension of a layer's inputs and outputs are its channels."""
    return -1 if isinstance(layer, nn.Linear) else 1


def layer_left(layer: nn.Module, inputs: Channels, width: float) -> Layer:
    """Say what is left of a layer of which ``inputs`` are left.

    Args:
        layer: convolution, linear, norm or PReLU.
        inputs: the channels that reach it.
        width: fraction of its outputs that stay, where it can choose.

    Raises:
        ConfigError: why it cannot be narrowed; the caller names it.
    """
    if layer._parameters.keys() - {"weight", "bias"}:
        raise ConfigError(f"it has the parameters {', '.join(sorted(layer._parameters))}, not only weight and bias")
    if isinstance(layer, _ConvNd) and layer.groups > 1:
        groups = inputs.whole_groups(layer.groups)
        if not groups.count:
            raise ConfigError(
                f"{inputs.count} of its {inputs.total} channels make up none of its {layer.groups} groups"
            )
        whole = groups.each(layer.in_channels // layer.groups)
        trim = None if whole.is_same(inputs) else inputs.find(whole)
        return Layer(whole, groups.each(layer.out_channels // layer.groups), groups.count, trim)
    if isinstance(layer, _ConvNd | nn.Linear):
        outputs = layer.out_channels if isinstance(layer, _ConvNd) else layer.out_features
        return Layer(inputs, leading(outputs, width, inputs.index.device))
    if isinstance(layer, nn.GroupNorm):
        groups = inputs.whole_groups(layer.num_groups)
        if groups.each(inputs.total // layer.num_groups).is_same(inputs):
            return Layer(inputs, inputs, groups.count)
        if inputs.count % layer.num_groups:
            raise ConfigError(f"{inputs.count} channels are left, which {layer.num_groups} groups do not divide")
        return Layer(inputs, inputs, layer.num_groups)
    if isinstance(layer, (*NORMS, nn.PReLU)):
        return Layer(inputs, inputs)
    raise ConfigError("layers of this type cannot be narrowed")


def own_weights(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Yield every parameter: name of its layer, the layer, its key there, and itself."""
    for name, layer in module.named_modules():
        for key, value in layer._parameters.items():
            if value is not None:
                yield name, layer, key, value


def bare(module: nn.Module, plan: Mapping[str, Layer]) -> nn.Module:
    """Copy a module without its hooks and values of parameters; norm layers use the statistics of the batch only.

    Args:
        module: stays untouched.
        plan: what is left of each layer, by name; others stay as they are.
    """
    # what the copy finds here it does not copy: a hook may lead to a whole site, and parameters come with each call
    instead: dict[int, object] = {id(p): nn.Parameter(torch.empty_like(p, device="meta")) for p in module.parameters()}
    for part in module.modules():
        for key, value in vars(part).items():
            if "hooks" in key and isinstance(value, dict):
                instead[id(value)] = type(value)()
    copied = copy.deepcopy(module, instead)
    for name, layer in copied.named_modules():
        if isinstance(layer, _BatchNorm | _InstanceNorm):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        if name in plan:
            plan[name].shrink(layer)
    return copied


def cannot(what: str, name: str, layer: nn.Module, why: object) -> ConfigError:
    """Return the error that names a layer."""
    where = f"module {name} ({type(layer).__name__})" if name else "the whole of it"
    return ConfigError(f"{what} cannot be built at {where}: {why}")
