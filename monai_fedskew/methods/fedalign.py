"""FedAlign: the last stage of the network is held to change its features as little at full width as at a narrow one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import Variant, require_number, require_variant
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.networks.channels import channels_kept
from monai_fedskew.networks.narrow import Narrowed
from monai_fedskew.networks.stages import last_stage, require_convolutions
from monai_fedskew.networks.tap import StageTap

__all__ = ["Alignment", "fedalign", "spectral_norm", "transmitting_matrix"]

_ITERATIONS = 10
_LARGEST = 16  # maps are pooled to at most so many positions a dimension; those of classifiers are smaller


def fedalign(
    mu: float = 0.45,
    width: float = 0.25,
    stage: str | None = None,
    variant: Variant = "paper",
    *,
    clip: float | None = 10.0,
) -> Method:
    """Align the Lipschitz constant of the last stage at a reduced width with that at full width.

    L + mu mean_b (k_S - k_F)^2. k_F is the spectral norm of the transmitting matrix of the maps that enter and leave
    the last stage, X = A B^T / positions; k_S is the same of the stage run with the leading ``width`` of its channels
    on the leading channels of its input. k_F has no gradient and neither have the inputs of the stage, so the term
    trains the leading weights of the last stage only. Running statistics are those of the full-width pass.

    Maps of different size are pooled to the smaller one, and to 16 positions a dimension at most; of a stage with
    several inputs (up-sampled features and a skip connection), A are the channels of all. ``mu=0`` and ``width=1`` are
    FedAvg bit for bit: at full width both numbers agree.

    Paper: Mendieta et al. 2022, Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR,
    arXiv 2111.14213, eq. 5 and section 4; power iteration as there: from ones, 10 steps, differentiated as it stands.

    Args:
        mu: weight of the term, 0 or more.
        width: fraction of the channels, above 0, up to 1; multiples of 8 are kept, 8 at least.
        stage: name of the module to align, for networks whose last stage is not known: ``layer3`` of a CIFAR ResNet.
        variant: "official" weighs the term by mu L / term (a number, without gradient) instead of mu, so that its value
            is always mu L, as in the public code; where the term is 0 it stays 0, which there is 0/0.
        clip: largest L2 norm of the whole gradient, above 0; 10 is the published recipe. None does not clip, as
            training in mixed precision needs.

    Raises:
        ConfigError: a value out of range; at a site, a network without convolutions, whose last stage is not known, or
            one that cannot be narrowed, or is too narrow for that.

    >>> fedalign(width=0.5).parts
    (Alignment(mu=0.45, width=0.5, stage=None, variant='paper', clip=10.0),)
    """
    require_number("method fedalign", "mu", mu, least=0)
    require_number("method fedalign", "width", width, above=0, most=1)
    require_variant("method fedalign", variant)
    if clip is not None:
        require_number("method fedalign", "clip", clip, above=0)
    norm = None if clip is None else float(clip)
    return Method("fedalign", parts=(Alignment(float(mu), float(width), stage, variant, norm),))


def transmitting_matrix(inputs: Sequence[Tensor], output: Tensor) -> Tensor:
    """Return the mean products of the channels that enter a stage with those that leave it, (B, C_in, C_out).

    Args:
        inputs: maps (B, C, ...) of one or more sizes; their channels are put together.
        output: map (B, C_out, ...).

    >>> one = torch.ones(1, 1, 2, 2)
    >>> transmitting_matrix([3 * one], torch.cat([one, 2 * one], 1)).tolist()
    [[[3.0, 6.0]]]
    """
    entering, leaving = _flat(inputs, output)
    return entering @ leaving.mT / entering.shape[-1]


def spectral_norm(matrix: Tensor) -> Tensor:
    """Return the largest singular value of each matrix (B, n, m) by power iteration on X X^T from a vector of ones.

    The value and the gradient of a matrix of zeros are 0.

    >>> spectral_norm(torch.tensor([[[3.0, 0.0], [4.0, 5.0]]])).square()  # X X^T has the eigenvalues 45 and 5
    tensor([45.])
    """
    return _iterate(matrix @ matrix.mT, None, matrix.new_ones(len(matrix), 1, matrix.shape[1]))


@dataclass(frozen=True)
class Alignment(Part):
    """Add the alignment of the last stage to the loss, and hold the gradient to a norm."""

    name: ClassVar[str] = "alignment"
    stages: ClassVar[tuple[str, ...]] = ("add", "clip")
    mu: float
    width: float
    stage: str | None
    variant: Variant
    clip: float | None

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; mu = 0 and width = 1 attach nothing."""
        return _Bound(self, site) if self.mu and self.width < 1 else Bound()


class _Bound(Bound):
    def __init__(self, part: Alignment, site: SiteView) -> None:
        self._part, self._site, self._what = part, site, f"site {site.name}: fedalign"
        require_convolutions(self._what, site.model)
        try:
            self._name = last_stage(site.model, part.stage)
        except ConfigError as error:
            raise ConfigError(f"{self._what}: {error}") from None
        self._stage = site.model.get_submodule(self._name)
        _require_wide(f"{self._what}: stage {self._name}", self._stage, part.width)
        self._tap = StageTap(site.model, self._stage, partial(_read, self._what))
        self._narrowed: Narrowed | None = None
        site.add(part, "add", self._add)
        if part.clip is not None:
            site.add(part, "clip", self._clip)

    def _add(self, output: Mapping[str, Tensor]) -> Tensor:
        loss, reading = output["loss"], self._tap.take(output["pred"])
        if reading is None:
            raise RoundError(
                f"{self._what} saw no pass through {self._name} that gave these predictions; the trainer must take "
                "what the network returns (SimpleInferer), and the network must run that stage"
            )
        inputs, teacher = reading
        narrowed = self._narrowed or self._narrow(inputs)
        student = _lipschitz([_leading(x, self._part.width) for x in inputs], narrowed(*inputs))
        term = (student - teacher).square().mean()
        return loss + self._part.mu * (term if self._part.variant == "paper" else _scaled(term, loss))

    def _narrow(self, inputs: tuple[Tensor, ...]) -> Narrowed:
        width = self._part.width
        try:
            self._narrowed = Narrowed(self._stage, width, inputs, narrow_inputs=True, keep_outputs=False)
        except ConfigError as error:
            raise ConfigError(
                f"{self._what}: stage {self._name}: {error}; name another: fedalign:stage=NAME"
            ) from error
        return self._narrowed

    def _clip(self) -> None:
        assert self._part.clip is not None
        nn.utils.clip_grad_norm_(self._site.model.parameters(), self._part.clip)


def _require_wide(what: str, stage: nn.Module, width: float) -> None:
    convolutions = [module for module in stage.modules() if isinstance(module, _ConvNd)]
    widest = max(max(module.in_channels, module.out_channels) for module in convolutions)
    if channels_kept(widest, width) == widest:
        raise ConfigError(
            f"{what} has {widest} channels at most and keeps all of them at width {width:g} (8 are always kept), so "
            "there is nothing to align; name a wider stage or take a smaller width"
        )


def _read(what: str, inputs: tuple[Any, ...], output: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """The stage's inputs, and its constant at full width: at once, since later layers may work in place."""
    if not inputs or not all(isinstance(x, Tensor) and x.ndim > 2 for x in (*inputs, output)):
        raise ConfigError(f"{what}: a stage takes and gives maps (B, C, ...); name another: fedalign:stage=NAME")
    plain = tuple(x.detach().as_subclass(Tensor) for x in inputs)
    with torch.no_grad():
        return plain, _lipschitz(plain, output.as_subclass(Tensor))


def _lipschitz(inputs: Sequence[Tensor], output: Tensor) -> Tensor:
    """The spectral norm of the transmitting matrix.

    Where there are fewer positions than channels that enter, the vectors of the iteration are kept as their products
    with the entering map, u = A^T v: v <- A B^T B A^T v becomes u <- (A^T A) (B^T B) u, and its norm that of A w with
    w = B^T B u, so w^T (A^T A) w. The same numbers, without ever making X.
    """
    *entering, leaving = (x.float() if x.element_size() < 4 else x for x in (*inputs, output))
    with torch.autocast(output.device.type, enabled=False):
        a, b = _flat(entering, leaving)
        positions = a.shape[-1]
        if positions >= a.shape[1]:
            return spectral_norm(a @ b.mT / positions)
        return _iterate(b.mT @ b / positions, a.mT @ a / positions, a.sum(1)[:, None])


def _iterate(kernel: Tensor, metric: Tensor | None, vector: Tensor) -> Tensor:
    """The root of the norm of the last of ten vectors, each ``metric @ kernel @`` the one before over its norm.

    Both matrices are symmetric, and torch is several times as fast with rows (B, 1, n) as with columns.
    """
    length = is_alive = vector[..., :1]
    for _ in range(_ITERATIONS):
        before = vector @ kernel
        vector = before if metric is None else before @ metric
        square = (before * vector).sum(-1, keepdim=True)
        is_alive = square > 0
        length = torch.where(is_alive, square, 1).sqrt()  # 1 in time: at 0 neither root nor quotient has a gradient
        vector = vector / length
    return torch.where(is_alive, length.sqrt(), 0).flatten()


def _flat(inputs: Sequence[Tensor], output: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps as (B, C, positions), pooled to the smaller one."""
    maps = [*inputs, output]
    size = [min(*sizes, _LARGEST) for sizes in zip(*(x.shape[2:] for x in maps), strict=True)]
    flat = [_pooled(x, size).flatten(2) for x in maps]
    return flat[0] if len(flat) == 2 else torch.cat(flat[:-1], 1), flat[-1]


def _leading(x: Tensor, width: float) -> Tensor:
    return x[:, : channels_kept(x.shape[1], width)]


def _scaled(term: Tensor, loss: Tensor) -> Tensor:
    ratio = loss.detach() / term.detach()
    return torch.where(ratio.isfinite(), ratio, 0) * term


def _pooled(x: Tensor, size: list[int]) -> Tensor:
    if list(x.shape[2:]) == size:
        return x
    pools: tuple[Callable[..., Tensor], ...] = (
        nn.functional.adaptive_avg_pool1d,
        nn.functional.adaptive_avg_pool2d,
        nn.functional.adaptive_avg_pool3d,
    )
    return pools[len(size) - 1](x, size)
