"""Stochastic depth: in every batch some residual blocks are left out."""

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.residual import ResidualRule, residual_rule
from monai_fedskew.networks.stages import residual_blocks

__all__ = ["StochasticDepth", "keep_chances", "stochdepth"]


def stochdepth(keep: float = 0.9, variant: Variant = "paper") -> Method:
    """Leave out residual blocks at random in training, the deeper the more often.

    Block l of L is kept with chance p_l = 1 - l/L (1 - keep), drawn once a batch. A block left out passes on its
    shortcut (through its projection, where it has one) and what follows the sum, and is not run at all: no time, no
    gradient, no running statistics. Evaluation, here and in the exported model, takes p_l branch + shortcut.
    ``keep=1`` is FedAvg bit for bit.

    Paper: Huang et al. 2016, Deep Networks with Stochastic Depth, ECCV, arXiv 1603.09382, eq. 2 to 5. In a federation
    with keep 0.9: Mendieta et al. 2022, Local Learning Matters, CVPR, arXiv 2111.14213.

    Args:
        keep: chance of the last block, above 0, up to 1.
        variant: "official" counts as FedAlign's public code: p_l = 1 - (l - 1)/(L - 1) (1 - keep), the first at 1.

    Raises:
        ConfigError: a value out of range, or a network without residual blocks.

    >>> stochdepth(keep=0.8).parts
    (StochasticDepth(keep=0.8, variant='paper'),)
    """
    require_number("method stochdepth", "keep", keep, above=0, most=1)
    require_variant("method stochdepth", variant)
    return Method("stochdepth", parts=(StochasticDepth(float(keep), variant),))


def keep_chances(blocks: int, keep: float, variant: Variant = "paper") -> list[float]:
    """Return the chance of each block to be kept, linear down to ``keep`` of the last one.

    >>> keep_chances(4, 0.5)
    [0.875, 0.75, 0.625, 0.5]
    >>> keep_chances(3, 0.5, "official")
    [1.0, 0.75, 0.5]
    """
    if variant == "paper":
        return [1 - depth / blocks * (1 - keep) for depth in range(1, blocks + 1)]
    return [1 - depth / max(blocks - 1, 1) * (1 - keep) for depth in range(blocks)]


@dataclass(frozen=True)
class StochasticDepth(Part):
    """Let residual blocks be left out."""

    name: ClassVar[str] = "stochdepth"
    stages: ClassVar[tuple[str, ...]] = ("mix",)
    keep: float
    variant: Variant

    def adapt(self, model: nn.Module, seed: int) -> nn.Module:
        """Give every residual block a forward that can do without its branch; keep=1 changes nothing."""
        if self.keep == 1:
            return model
        names = residual_blocks(model)
        if not names:
            raise ConfigError(
                f"method stochdepth: {type(model).__name__} has no residual blocks that could be left out; use a MONAI "
                "ResNet, SENet, SegResNet, VNet, UNet with num_res_units or DynUNet with res_block, or give your "
                "blocks the methods shortcut(*inputs), branch(shortcut, *inputs) and join(sum)"
            )
        for name, chance in zip(names, keep_chances(len(names), self.keep, self.variant), strict=True):
            block = model.get_submodule(name)
            block.forward = StochasticForward(block, Gate(chance))
        return model

    def bind(self, site: SiteView) -> Bound:
        """Draw before every batch; keep=1 attaches nothing."""
        return Bound() if self.keep == 1 else _Bound(self, site)


class Gate:
    """Whether a block is run in this batch; copies of a network share it, so that they do as the network does.

    Args:
        keep: chance to be open.
    """

    def __init__(self, keep: float) -> None:
        self.keep, self.is_open = keep, True

    def __deepcopy__(self, memo: object) -> "Gate":
        return self


class StochasticForward:
    """Run a residual block in place of its own ``forward``; names and types of all modules stay as they are.

    Args:
        block: a residual block.
        gate: tells in training whether to run the branch, and in evaluation how much of it to take.
    """

    def __init__(self, block: nn.Module, gate: Gate) -> None:
        # weak, for the block holds this: a network that refers to itself is only freed when Python looks for circles
        self._block, self.gate = weakref.ref(block), gate

    def __call__(self, *inputs: Any) -> Tensor:
        block: Any = self._block()
        if block.training and self.gate.is_open:
            out: Tensor = type(block).forward(block, *inputs)
            return out
        rule = residual_rule(block)
        assert isinstance(rule, ResidualRule)
        shortcut = rule.shortcut(block, *inputs)
        if block.training:
            return rule.join(block, shortcut.clone())  # the activation may work in place, on what others still need
        return rule.join(block, shortcut + self.gate.keep * rule.branch(block, shortcut, *inputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return StochasticForward, (self._block(), self.gate)


class _Bound(Bound):
    def __init__(self, part: StochasticDepth, site: SiteView) -> None:
        forwards = [vars(module).get("forward") for module in site.model.modules()]
        self._gates = [forward.gate for forward in forwards if isinstance(forward, StochasticForward)]
        if not self._gates:
            raise ConfigError(f"site {site.name}: stochdepth finds no block to leave out; adapt the network first")
        site.add(part, "mix", self._draw)

    def receive(self, cast: Broadcast) -> None:
        for gate in self._gates:  # whatever was drawn last: a site that is kept must equal one that is rebuilt
            gate.is_open = True

    def _draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chances = torch.rand(len(self._gates), generator=generator, dtype=torch.float64).tolist()
        for gate, chance in zip(self._gates, chances, strict=True):
            gate.is_open = chance < gate.keep
        return inputs, targets
