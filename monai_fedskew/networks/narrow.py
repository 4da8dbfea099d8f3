"""Run any network, or a stage of it, with the leading part of its channels and the same weights."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.channels import Channels, alive, leading
from monai_fedskew.networks.layers import NORMS, Layer, bare, cannot, channel_dim, has_channels, layer_left, own_weights

__all__ = ["Narrowed"]

_TOLERANCE = 0.05  # of the norm: rounding of float32 or TF32 stays far below, a channel in another's place far above


class Narrowed:
    """A module at reduced width; gradients reach the leading slices of the module's own parameters.

    No layer has to be slimmable. Which channels each layer meets is found once, by marking what is dropped and
    following the marks through the network (so concatenations, flattened maps and depthwise layers come out right);
    each call then runs a bare copy of the module on slices of the live parameters. The result is what masking the
    dropped channels after every convolution and every norm layer would give; that is checked when it is built. (A
    group norm keeps whole groups where it can, and else its number of groups.)

    Norm layers use the statistics of the batch and update none. Dropout follows the module's train or eval mode.
    Hooks of the module do not run.

    Args:
        module: stays untouched; its parameters are read at every call.
        width: fraction of the channels, above 0, up to 1; see `channels.channels_kept`.
        examples: inputs as they come at full width (B, C, ...); only shape and device are looked at.
        narrow_inputs: cut each input to its leading channels (a stage within a network), or leave it (an image).
        keep_outputs: leave the output at full width (logits).

    Raises:
        ConfigError: a layer that cannot be narrowed, or layers whose remaining channels do not meet; it is named.

    >>> net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4, 3))
    >>> image = torch.zeros(2, 1, 4, 4)
    >>> half = Narrowed(net, 0.5, (image,), narrow_inputs=False, keep_outputs=True)
    >>> half(image).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, module: nn.Module, width: float, examples: tuple[Tensor, ...], *, narrow_inputs: bool, keep_outputs: bool
    ) -> None:
        what = f"{type(module).__name__} at width {width:g}"
        if not 0 < width <= 1:
            raise ConfigError(f"{what}: the width must be above 0 and at most 1")
        self._module = module
        self._inputs = [leading(x.shape[1], width if narrow_inputs else 1, x.device) for x in examples]
        generator = torch.Generator().manual_seed(0)
        self._places = [(name, layer, key) for name, layer, key, _ in own_weights(module)]
        weights = {_join(name, key): _drawn(generator, value) for name, _, key, value in own_weights(module)}
        dtype = next(iter(weights.values())).dtype if weights else torch.float32
        inputs = [_drawn(generator, x.new_empty((2, *x.shape[1:]), dtype=dtype)) for x in examples]
        trial = _Trial(module, what, width, weights)
        # a stage met under autocast: the trial passes are short and have to be exact
        with torch.no_grad(), torch.autocast(examples[0].device.type, enabled=False):
            marked = trial.marked([c.mark(x, 1) for c, x in zip(self._inputs, inputs, strict=True)], keep_outputs)
            self._plan, self._skeleton = dict(trial.plan), bare(module, trial.plan)
            self._buffers = [name for name, _ in self._skeleton.named_buffers()]
            trial.require_equal(self._skeleton.eval(), lambda: self._run(weights, inputs), marked, self._inputs, inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return the module's output at reduced width, from inputs as they come at full width."""
        for ours, theirs in zip(self._skeleton.modules(), self._module.modules(), strict=True):
            ours.training = theirs.training
        return self._run({_join(name, key): getattr(layer, key) for name, layer, key in self._places}, inputs)

    def _run(self, weights: dict[str, Tensor], inputs: Iterable[Tensor]) -> Tensor:
        state = dict(weights)
        for name, layer, key in self._places:
            if name in self._plan:
                state[_join(name, key)] = self._plan[name].cut(layer, state[_join(name, key)])
        state |= {name: self._module.get_buffer(name) for name in self._buffers}
        cut = tuple(channels.cut(x, 1) for channels, x in zip(self._inputs, inputs, strict=True))
        # tied weights come with their own slice each
        output: Tensor = functional_call(self._skeleton, state, cut, tie_weights=False)
        return output


@dataclass
class _Trial:
    """Passes at full width that find out, by marks, what every layer keeps, and what masking would give."""

    module: nn.Module
    what: str
    width: float
    weights: Mapping[str, Tensor]
    plan: dict[str, Layer] = field(default_factory=dict)  # in the order in which layers are run

    def __post_init__(self) -> None:
        self._copied = bare(self.module, {}).eval()

    def marked(self, inputs: list[Tensor], keep_outputs: bool) -> Tensor:
        """Fill ``plan`` and return the marked output; ``keep_outputs`` leaves the layers it is made of whole."""
        whole: set[str] = set()
        output = self._mark(inputs, whole)
        if not keep_outputs:
            return output
        for name in [name for name in reversed(self.plan) if not isinstance(self._layer(name), NORMS)]:
            if output.isnan().any():
                whole.add(name)
                output = self._mark(inputs, whole)
        if output.isnan().any():
            raise cannot(self.what, "", self.module, "its outputs cannot be left at full width")
        if len(whole) < 2:
            return output
        for name in sorted(whole):  # a layer beside the way to the output
            if not self._mark(inputs, whole - {name}).isnan().any():
                whole.remove(name)
        return self._mark(inputs, whole)

    def require_equal(
        self, skeleton: nn.Module, run: Callable[[], Tensor], marked: Tensor, kept: list[Channels], inputs: list[Tensor]
    ) -> None:
        """Compare ``run``, which goes through ``skeleton``, with masking: layer by layer, on drawn weights."""
        expected: dict[str, list[Tensor]] = {}
        output = self._masked(expected, [c.zero(x, 1) for c, x in zip(kept, inputs, strict=True)])
        at = [""]

        def compare(name: str, found: Tensor, wanted: Tensor) -> None:
            if found.shape != wanted.shape:
                raise self._conflict(name, f"it gives {tuple(found.shape)}, masking {tuple(wanted.shape)}")
            if not bool((found - wanted).norm() <= _TOLERANCE * wanted.norm() + 1e-6):
                raise self._conflict(name, "its values are not those of masking")

        def after(name: str, layer: nn.Module, args: Any, output: Tensor) -> None:
            compare(name, output, expected[name].pop(0))

        handles = []
        for name, layer in skeleton.named_modules():
            handles.append(layer.register_forward_pre_hook(lambda _, args, name=name: at.append(name)))
            if name in expected:
                handles.append(layer.register_forward_hook(partial(after, name)))
        try:
            compare("", run(), alive(marked, 1).cut(output, 1))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._conflict(at[-1], str(error).partition("\n")[0]) from error
        finally:
            for handle in handles:
                handle.remove()

    def _conflict(self, name: str, why: str) -> ConfigError:
        return cannot(self.what, name, self._layer(name), f"{why}; the channels left before it do not meet")

    def _layer(self, name: str) -> nn.Module:
        return self.module.get_submodule(name)

    def _mark(self, inputs: list[Tensor], whole: set[str]) -> Tensor:
        self.plan.clear()

        def after(name: str, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
            if not args:
                raise cannot(self.what, name, layer, "it is not called on its input alone")
            left = alive(args[0], channel_dim(layer))
            if not left.count:
                raise cannot(self.what, name, layer, "no channel of its input is left, or all were mixed before it")
            try:
                now = layer_left(layer, left, 1 if name in whole else self.width)
            except ConfigError as error:
                raise cannot(self.what, name, layer, error) from None
            if not self.plan.setdefault(name, now).inputs.is_same(now.inputs):
                raise cannot(self.what, name, layer, "it is used twice, with other channels")
            return now.outputs.mark(output, channel_dim(layer))

        return self._pass(inputs, lambda name, layer, args: None, after)

    def _masked(self, found: dict[str, list[Tensor]], inputs: list[Tensor]) -> Tensor:
        """Run with the dropped channels at zero; ``found`` gets what every layer gives on what is left."""

        def before(name: str, layer: nn.Module, args: Any) -> Any:
            return (self.plan[name].inputs.zero(args[0], channel_dim(layer)), *args[1:])

        def after(name: str, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
            left, dim = self.plan[name], channel_dim(layer)
            if isinstance(layer, nn.GroupNorm):  # the only norm whose channels do not stand alone
                weight, bias = (None if p is None else left.inputs.cut(p, 0) for p in (layer.weight, layer.bias))
                part = nn.functional.group_norm(left.inputs.cut(args[0], 1), left.groups, weight, bias, layer.eps)
                output = torch.zeros_like(output).index_copy_(1, left.inputs.index, part)
            found.setdefault(name, []).append(left.outputs.cut(output, dim).clone())  # later layers work in place
            return left.outputs.zero(output, dim)

        return self._pass(inputs, before, after)

    def _pass(self, inputs: list[Tensor], before: Callable[..., Any], after: Callable[..., Tensor]) -> Tensor:
        handles = []
        for name, layer in self._copied.named_modules():
            if has_channels(layer):
                handles.append(layer.register_forward_pre_hook(partial(before, name)))
                handles.append(layer.register_forward_hook(partial(after, name)))
        output: Tensor = functional_call(self._copied, dict(self.weights), tuple(inputs), tie_weights=False)
        for handle in handles:
            handle.remove()
        if not isinstance(output, Tensor):
            raise cannot(self.what, "", self.module, f"it returns a {type(output).__name__}, not one tensor")
        return output


def _drawn(generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw what keeps activations near 1: no zero and no tie hides a channel in another's place."""
    if like.ndim < 2:
        return (0.5 + torch.rand(like.shape, generator=generator)).to(like)
    fan_in = like[0].numel() if isinstance(like, nn.Parameter) else 1
    return (torch.randn(like.shape, generator=generator) / math.sqrt(fan_in)).to(like)


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key
