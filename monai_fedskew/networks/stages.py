"""Where things are inside a network: convolutions, stages, residual blocks."""

import re
from collections.abc import Callable, Mapping

from torch import nn
from torch.nn.modules.conv import _ConvNd

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.residual import residual_rule

__all__ = ["feature_stages", "last_stage", "require_convolutions", "residual_blocks"]

_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def require_convolutions(what: str, model: nn.Module) -> None:
    """Refuse a network of vectors.

    Args:
        what: opens the message: site and method.
        model: the network.

    Raises:
        ConfigError: the network has no convolution.
    """
    if not _has_convolution(model):
        raise ConfigError(
            f"{what} needs a network with convolutions, on images; {type(model).__name__} has none, so there are no "
            "feature maps. Leave the method out on vectors"
        )


def feature_stages(model: nn.Module) -> list[str]:
    """Name the modules whose outputs are the features of one stage each, in the order they run.

    For a classifier all its stages; for a U-shaped network the encoder's, the bottleneck last. A network that is not
    MONAI's is known by children ``layer1``, ``layer2``, ... or by the pooling layers of a child ``features``.

    Args:
        model: ResNet, SENet, DenseNet, EfficientNet, VNet, BasicUNet, AttentionUnet, UNet, DynUNet or SegResNet of
            MONAI, or a network with such children.

    Raises:
        ConfigError: another network.

    >>> class Small(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer1, self.layer2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
    >>> feature_stages(Small())
    ['layer1', 'layer2']
    """
    for kind in _monai_kinds(model):
        if kind in _FEATURES:
            return _FEATURES[kind](model)
    if found := _numbered_layers(model) or _pooled_features(model):
        return found
    raise ConfigError(f"{type(model).__name__} has no known stages; {_KNOWN}")


def last_stage(model: nn.Module, name: str | None = None) -> str:
    """Name the last stage: the module between the last two maps of features, before any output layer.

    Args:
        model: a network that ``feature_stages`` knows.
        name: a module of the network, which is then taken as it is.

    Raises:
        ConfigError: no module of that name or none with convolutions, or a network whose last stage is not known.
    """
    if name is not None:
        return _named(model, name)
    for kind in _monai_kinds(model):
        if kind in _LAST:
            return _LAST[kind](model)
    if found := _numbered_layers(model) or _features_that_are_stages(model):
        return found[-1]
    raise ConfigError(f"{type(model).__name__} has no known last stage; name it: fedalign:stage=layer3. {_KNOWN}")


def residual_blocks(model: nn.Module) -> list[str]:
    """Name the residual blocks in the order they are defined, which is the order they run in; none is no error."""
    return [name for name, module in model.named_modules() if residual_rule(module) is not None]


def _named(model: nn.Module, name: str) -> str:
    modules = dict(model.named_modules())
    if name not in modules or not name:
        near = [other for other in modules if other.count(".") <= 1 and _has_convolution(modules[other])][1:9]
        raise ConfigError(f"{type(model).__name__} has no module {name!r}; among its modules: {', '.join(near)}")
    if not _has_convolution(modules[name]):
        raise ConfigError(f"{type(model).__name__}.{name} holds no convolution; name a stage such as layer3")
    return name


def _has_convolution(module: nn.Module) -> bool:
    return any(isinstance(part, _ConvNd) for part in module.modules())


def _monai_kinds(model: nn.Module) -> list[str]:
    """Names of the classes of MONAI a network is of; by name, so that MONAI need not be imported."""
    return [kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("monai.")]


def _numbered_layers(model: nn.Module) -> list[str]:
    found = {name: child for name, child in model.named_children() if re.fullmatch(r"layer\d+", name)}
    if len(found) < 2 or not all(map(_has_convolution, found.values())):
        return []
    return sorted(found, key=lambda name: int(name[5:]))


def _pooled_features(model: nn.Module) -> list[str]:
    features = dict(model.named_children()).get("features")
    if not isinstance(features, nn.Sequential):
        return []
    return [f"features.{name}" for name, child in features.named_children() if isinstance(child, _POOLS)]


def _features_that_are_stages(model: nn.Module) -> list[str]:
    """The children of ``features`` if its convolutions are all inside containers."""
    features = dict(model.named_children()).get("features")
    if not isinstance(features, nn.Sequential):
        return []
    found = [(name, child) for name, child in features.named_children() if _has_convolution(child)]
    return [] if any(isinstance(child, _ConvNd) for _, child in found) else [f"features.{name}" for name, _ in found]


def _children(prefix: str, start: str = "") -> Callable[[nn.Module], list[str]]:
    """All children of a module whose names begin alike."""
    return lambda model: [
        f"{prefix}.{name}" for name, _ in model.get_submodule(prefix).named_children() if name.startswith(start)
    ]


def _listed(*names: str) -> Callable[[nn.Module], list[str]]:
    return lambda model: list(names)


def _dynunet(model: nn.Module) -> list[str]:
    return ["input_block", *_children("downsamples")(model), "bottleneck"]


def _unet(model: nn.Module) -> list[str]:
    """Levels of UNet are nested: (down, skip around the level below, up)."""
    found, level = [], "model"
    while "1.submodule" in (inner := dict(model.get_submodule(level).named_modules())) and "2" in inner:
        found.append(f"{level}.0")
        level += ".1.submodule"
    return [*found, level]


def _attention_unet(model: nn.Module) -> list[str]:
    found, level = ["model.0"], "model.1.submodule"
    while "1.submodule" in dict(model.get_submodule(level).named_modules()):
        found.append(f"{level}.0")
        level += ".1.submodule"
    return [*found, level]


def _unet_last(model: nn.Module) -> str:
    """The top level yields the output itself; the one below it has the last features."""
    below = "model.1.submodule"
    return f"{below}.2" if "1.submodule" in dict(model.get_submodule(below).named_modules()) else below


_FOUR = _listed("layer1", "layer2", "layer3", "layer4")
_FEATURES: Mapping[str, Callable[[nn.Module], list[str]]] = {
    "ResNet": _FOUR,
    "SENet": _FOUR,
    "DenseNet": _children("features", "denseblock"),
    "EfficientNet": _children("_blocks"),
    "VNet": _listed("in_tr", "down_tr32", "down_tr64", "down_tr128", "down_tr256"),
    "BasicUNet": _listed("conv_0", "down_1", "down_2", "down_3", "down_4"),
    "AttentionUnet": _attention_unet,
    "UNet": _unet,
    "DynUNet": _dynunet,
    "SegResNet": _children("down_layers"),
}
_LAST: Mapping[str, Callable[[nn.Module], str]] = {
    **{kind: lambda model: "layer4" for kind in ("ResNet", "SENet")},
    "DenseNet": lambda model: _FEATURES["DenseNet"](model)[-1],
    "EfficientNet": lambda model: _FEATURES["EfficientNet"](model)[-1],
    # not up_tr32 itself: its sum of features and their concatenation with the skip connection cannot be narrowed
    "VNet": lambda model: "up_tr32.ops",
    "BasicUNet": lambda model: "upcat_1",
    "AttentionUnet": lambda model: "model.1.merge",
    "UNet": _unet_last,
    "DynUNet": lambda model: _children("upsamples")(model)[-1],
    "SegResNet": lambda model: _children("up_layers")(model)[-1],
}
_KNOWN = f"known are MONAI's {', '.join(sorted(_FEATURES))}, and networks of children layer1, layer2, ..."
