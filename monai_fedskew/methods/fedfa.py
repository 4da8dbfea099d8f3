"""FedFA: the statistics of feature maps are augmented by what is known of the other sites' statistics."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.core.state import State, describe, nest, require_alike, require_same_keys, unnest
from monai_fedskew.errors import ConfigError, StateError
from monai_fedskew.networks.stages import feature_stages, require_convolutions

__all__ = ["FeatureAugmentation", "channel_moments", "fedfa", "restyle", "sharing"]

_EPS = 1e-6  # under every root, so that a constant map has a gradient; as the public code


def fedfa(p: float = 0.5, momentum: float = 0.99, variant: Variant = "paper") -> Method:
    """Draw new channel means and stds of the feature maps after each stage, wider where sites differ more.

    x' = s' (x - m) / s + m', m' ~ N(m, (1 + gamma_m) V_m), s' ~ N(s, (1 + gamma_s) V_s): m and s are an example's
    mean and std over space, a channel each, V their variances over the batch, gamma = C r / sum r with r = U / (1 + U),
    and U the variance over the sites of their running means of m and s, a channel each. V and U have the divisors
    B - 1 and K - 1, as in the public code. Only in training, with probability p for each stage and batch; a batch of
    one has no variance and stays as it is. The stages are those of ``networks.stages.feature_stages``. A further pass
    over the same batch (``site.loss()``) meets the same draw. Before two sites have reported, gamma is 1, its mean over
    the channels in every later round.

    A site reports its running means, (2, C) a stage, and keeps them in private state. ``p=0`` is FedAvg bit for bit.

    Paper: Zhou and Konukoglu 2023, FedFA: Federated Feature Augmentation, ICLR, arXiv 2301.12995.

    Args:
        p: probability of a draw, 0 to 1, for each stage and batch.
        momentum: weight of the past in the running means, 0 or more and below 1; they begin with a site's first batch.
        variant: "official" augments as the public code does in effect. It takes U over sites and channels at once, so
            that gamma is 1 whatever the sites report; nothing is reported here.

    Raises:
        ConfigError: a value out of range; at a site, a network without convolutions or of unknown stages.

    >>> fedfa(p=0.25).parts
    (FeatureAugmentation(p=0.25, momentum=0.99, variant='paper'),)
    """
    require_number("method fedfa", "p", p, least=0, most=1)
    require_number("method fedfa", "momentum", momentum, least=0, below=1)
    require_variant("method fedfa", variant)
    return Method("fedfa", parts=(FeatureAugmentation(float(p), float(momentum), variant),))


def channel_moments(maps: Tensor) -> Tensor:
    """Return mean and std over space, (2, B, C), of feature maps (B, C, ...); the variance has the divisor n.

    >>> channel_moments(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]])).round().tolist()
    [[[2.0], [2.0]], [[1.0], [0.0]]]
    """
    flat = maps.flatten(2)
    variance, mean = torch.var_mean(flat, dim=2, correction=0)
    return torch.stack([mean, (variance + _EPS).sqrt()])


def sharing(variance: Tensor) -> Tensor:
    """Return gamma, how much wider a channel is drawn, from its variance over the sites: (C,), of mean 1.

    >>> sharing(torch.tensor([1.0, 3.0])).tolist()  # r = 1/2 and 3/4: 2 (0.4, 0.6)
    [0.800000011920929, 1.2000000476837158]
    """
    part = variance / (1 + variance)
    total = part.sum()
    return len(part) * part / total if total > 0 else torch.ones_like(part)


def restyle(maps: Tensor, moments: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """Give feature maps new means and stds.

    Args:
        maps: (B, C, ...), two examples at least.
        moments: their ``channel_moments``, (2, B, C).
        gamma: of means and stds, (2, C).
        noise: standard normal, (2, B, C).
    """
    spread = ((1 + gamma) * moments.var(1) + _EPS).sqrt()  # the root has a gradient where all examples agree, too
    shape = (2, *maps.shape[:2], *(1,) * (maps.ndim - 2))
    (mean, std), (new_mean, new_std) = moments.view(shape), (moments + noise * spread[:, None]).view(shape)
    restyled: Tensor = (maps - mean) / std * new_std + new_mean
    return restyled


@dataclass(frozen=True)
class FeatureAugmentation(Part):
    """Augment the statistics of the features after each stage."""

    name: ClassVar[str] = "fedfa"
    stages: ClassVar[tuple[str, ...]] = ("mix",)
    p: float
    momentum: float
    variant: Variant

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; p = 0 attaches nothing."""
        return _Bound(self, site) if self.p else Bound()

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Keep each site's latest running means.

        Raises:
            StateError: a report that is not (2, C) a stage, or of other stages than the sites before.
        """
        known = unnest(memory)
        for site, report in sorted(reports.items()):
            if self.variant == "official":
                raise StateError(f"site {site}: fedfa reports nothing with variant=official; use the same method")
            _require_moments(f"site {site}: fedfa report", report)
            others = [name for name in sorted(known) if name != site]
            if others:
                expected, got = ({key: describe(v) for key, v in state.items()} for state in (known[others[0]], report))
                require_alike(f"site {site}: fedfa report", expected, got, f"site {others[0]}")
            known[site] = dict(report)
        return nest(dict(sorted(known.items())))

    def tell(self, memory: State) -> State:
        """Return gamma for mean and std of each stage, once two sites have reported."""
        reports = [report for _, report in sorted(unnest(memory).items())]
        if len(reports) < 2:
            return {}
        values = {name: torch.stack([report[name].double() for report in reports]) for name in reports[0]}
        return {name: torch.stack([sharing(row) for row in value.var(0)]).float() for name, value in values.items()}


class _Bound(Bound):
    def __init__(self, part: FeatureAugmentation, site: SiteView) -> None:
        require_convolutions(f"site {site.name}: fedfa", site.model)
        try:
            names = feature_stages(site.model)
        except ConfigError as error:
            raise ConfigError(f"site {site.name}: fedfa: {error}") from None
        self._part, self._site, self._names = part, site, names
        self._running: dict[str, Tensor] = {}  # stage -> running mean of the moments, (2, C)
        self._gamma: dict[str, Tensor] = {}  # stage -> (2, C)
        self._draws: dict[str, Tensor | None] = {}  # stage -> noise for the current batch; None: not augmented
        self._size = 0  # of the current batch; 0 while there is none
        for name in names:
            site.model.get_submodule(name).register_forward_hook(partial(self._augment, name))
        site.add(part, "mix", self._begin)

    def receive(self, cast: Broadcast) -> None:
        self._size, self._draws = 0, {}
        told = cast.aux.get(self._part.name, {})
        if told:
            require_same_keys(f"site {self._site.name}: fedfa's broadcast", self._names, told)
        self._gamma = dict(told)

    def end_round(self) -> State:
        self._size, self._draws = 0, {}
        return self.private()

    def private(self) -> State:
        return dict(self._running)

    def restore(self, state: State) -> None:
        self._running = dict(state)

    def _begin(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self._size, self._draws = len(inputs), {}
        return inputs, targets

    def _augment(self, name: str, module: nn.Module, args: object, output: object) -> Tensor | None:
        if not (self._size and module.training and torch.is_grad_enabled()):
            return None
        if not isinstance(output, Tensor) or output.ndim < 3:
            raise ConfigError(f"site {self._site.name}: fedfa: stage {name} does not yield feature maps (B, C, ...)")
        if len(output) != self._size:  # another part's pass over other examples
            return None
        maps = output if output.element_size() >= 4 else output.float()
        is_first = name not in self._draws
        if is_first:
            self._draws[name] = self._draw(maps)
        noise = self._draws[name]
        moments = channel_moments(maps if noise is not None else maps.detach())
        if is_first and self._part.variant == "paper":
            self._follow(name, moments.detach().mean(1))
        if noise is None:
            return None
        gamma = self._gamma.get(name)
        gamma = torch.ones_like(moments[:, 0]) if gamma is None else gamma.to(moments)
        self._gamma[name] = gamma.detach()
        return restyle(maps, moments, gamma, noise.to(moments)).to(output.dtype)

    def _draw(self, maps: Tensor) -> Tensor | None:
        """Return noise, or None where the batch passes as it is: by chance, or for want of a variance."""
        stream = self._site.stream(self._part)
        is_drawn = bool(torch.rand((), generator=stream) < self._part.p)
        return torch.randn(2, *maps.shape[:2], generator=stream) if is_drawn and len(maps) > 1 else None

    def _follow(self, name: str, now: Tensor) -> None:
        past = self._running.get(name)
        self._running[name] = now if past is None else torch.lerp(now, past.to(now), self._part.momentum)


def _require_moments(what: str, report: State) -> None:
    for name, value in report.items():
        if value.ndim != 2 or len(value) != 2 or not value.is_floating_point():
            raise StateError(f"{what}: {name} is {describe(value)}, not means and stds, floating (2, C)")
        if (value[1] < 0).any():  # what is not finite is for the server to see, which may have to stop at it
            raise StateError(f"{what}: {name} has a std below 0")
