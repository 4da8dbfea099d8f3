"""GradAug: narrower sub-networks that see the image at other resolutions learn from the whole network."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate, kl_div, log_softmax

from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number, require_whole
from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.narrow import Narrowed
from monai_fedskew.networks.stages import require_convolutions

__all__ = ["SubNetworks", "divergence", "gradaug"]

_STEP = 1 / 32  # of a width: one multiple of 8 in a layer of 256 channels
_RESOLUTIONS = 4  # 32, 28, 24, 20 pixels of 32 in the paper
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def gradaug(mu: float = 1.75, n: int = 2, width: float = 0.8, resolution: float = 0.625) -> Method:
    """Train narrow sub-networks on resized images towards the prediction of the whole network.

    L + mu sum_i KL(softmax(f(x)) || softmax(f_i(x_i))): f_1 has the leading ``width`` of the channels of every layer,
    f_2 .. f_n leading fractions drawn from [width, 1] in every batch (in steps of 1/32), all on the weights of f. x_i
    is the image at one of four resolutions from ``resolution`` to 1, drawn for each. f(x) has no gradient there. The
    divergence is averaged over the batch, and in segmentation over the voxels of x too. A single output channel is
    taken for the logit of two classes. Running statistics are those of the whole network, which alone evaluates.

    A resolution that the network cannot take (a linear layer on flattened maps, a decoder whose skip connections no
    longer meet) is resized back before it enters: the detail is lost, the size stays. ``mu=0`` is FedAvg bit for bit.

    Paper: Yang et al. 2020, GradAug: A New Regularization Method for Deep Neural Networks, NeurIPS, arXiv 2006.07989,
    eq. 2 to 4; with the settings of Mendieta et al. 2022, arXiv 2111.14213, as a federated method.

    Args:
        mu: weight of the term, 0 or more. The second paper has 2.0, 1.75, 1.5, 1.25 for n = 1, 2, 3, 4.
        n: number of sub-networks, 1 or more; each costs a pass at its width and resolution.
        width: smallest fraction of the channels, above 0, up to 1; multiples of 8 are kept, 8 at least.
        resolution: smallest fraction of each spatial dimension, above 0, up to 1, where images stay as they are.

    Raises:
        ConfigError: a value out of range; at a site, a network without convolutions, or one that cannot be narrowed.

    >>> gradaug(n=1, mu=2).parts
    (SubNetworks(mu=2.0, n=1, width=0.8, resolution=0.625),)
    """
    require_number("method gradaug", "mu", mu, least=0)
    require_whole("method gradaug", "n", n, 1)
    require_number("method gradaug", "width", width, above=0, most=1)
    require_number("method gradaug", "resolution", resolution, above=0, most=1)
    part = SubNetworks(float(mu), n, float(width), float(resolution))
    return Method("gradaug", parts=(part,), refuses=_REFUSES)


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)), the mean over batch and places; no gradient to the teacher.

    Args:
        teacher: logits (B, C, ...); one channel is the logit of two classes.
        student: logits (B, C, ...), resized to the teacher's places where they differ.

    >>> value = divergence(torch.tensor([[0.0]]), torch.tensor([[3.0]]).log())  # 1/2 log(2/3) + 1/2 log 2
    >>> round(value.item(), 4)
    0.1438
    """
    if student.shape[2:] != teacher.shape[2:]:
        student = _resized(student, list(teacher.shape[2:]))
    target, found = (
        log_softmax(_two(x.float() if x.element_size() < 4 else x), 1) for x in (teacher.detach(), student)
    )
    return kl_div(found, target, reduction="none", log_target=True).sum(1).mean()


@dataclass(frozen=True)
class SubNetworks(Part):
    """Add the divergence of narrow sub-networks to the loss."""

    name: ClassVar[str] = "gradaug"
    stages: ClassVar[tuple[str, ...]] = ("mix", "add")
    mu: float
    n: int
    width: float
    resolution: float

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; mu = 0 attaches nothing."""
        return _Bound(self, site) if self.mu else Bound()


class _Bound(Bound):
    def __init__(self, part: SubNetworks, site: SiteView) -> None:
        self._part, self._site, self._what = part, site, f"site {site.name}: gradaug"
        require_convolutions(self._what, site.model)
        self._drawn: list[tuple[float, float]] = []  # (width, resolution) of every sub-network of this batch
        self._narrowed: dict[float, Narrowed] = {}
        self._fits: dict[tuple[int, ...], bool] = {}
        site.add(part, "mix", self._draw)
        site.add(part, "add", self._add)

    def _draw(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw here, and not where the loss is computed: that may happen more than once a batch."""
        part = self._part
        widths = torch.rand(part.n, generator=generator, dtype=torch.float64).tolist()
        steps = torch.randint(_RESOLUTIONS, (part.n,), generator=generator).tolist()
        self._drawn = [
            (_width(part.width, u if i else 0.0), part.resolution + (1 - part.resolution) * step / (_RESOLUTIONS - 1))
            for i, (u, step) in enumerate(zip(widths, steps, strict=True))
        ]
        return inputs, targets

    def _add(self, output: Mapping[str, Tensor]) -> Tensor:
        loss, image, teacher = output["loss"], output["image"], output["pred"]
        if not isinstance(teacher, Tensor):
            raise ConfigError(
                f"{self._what} compares one tensor of logits (B, C, ...); this network gives a "
                f"{type(teacher).__name__}; switch deep supervision off"
            )
        terms = []
        with self._site.replay(self._part):
            for width, resolution in self._drawn:
                narrowed = self._narrow(width, image)
                size = [max(1, round(length * resolution)) for length in image.shape[2:]]
                terms.append(divergence(teacher, narrowed(self._seen(narrowed, image, size, teacher))))
        return loss + self._part.mu * sum(terms)

    def _narrow(self, width: float, image: Tensor) -> Narrowed:
        if width not in self._narrowed:
            try:
                narrowed = Narrowed(self._site.model, width, (image,), narrow_inputs=False, keep_outputs=True)
            except ConfigError as error:
                raise ConfigError(f"{self._what}: {error}") from error
            self._narrowed[width] = narrowed
        return self._narrowed[width]

    def _seen(self, narrowed: Narrowed, image: Tensor, size: list[int], teacher: Tensor) -> Tensor:
        """Return the image as the sub-network sees it: at ``size``, resized back if the network cannot take that."""
        whole = list(image.shape[2:])
        if size == whole:
            return image
        small, key = _resized(image, size), (len(image) > 1, *whole, *size)  # no norm takes one image of one pixel
        if key not in self._fits:
            self._fits[key] = _takes(narrowed, small, teacher)
        return small if self._fits[key] else _resized(small, whole)


def _takes(narrowed: Narrowed, image: Tensor, teacher: Tensor) -> bool:
    devices = [image.device.index] if image.is_cuda else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():  # a rebuilt site asks again and must draw alike
        try:
            found = narrowed(image)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError):
            return False
    return found.shape[:2] == teacher.shape[:2] and found.ndim == teacher.ndim


def _width(least: float, u: float) -> float:
    """Return a width between ``least`` and 1, on steps that few sub-networks have to be built for."""
    width = least + (1 - least) * u
    return least if u == 0 else min(1.0, max(least, round(width / _STEP) * _STEP))


def _resized(image: Tensor, size: list[int]) -> Tensor:
    resized: Tensor = interpolate(image, size=size, mode=_MODES[len(size)], align_corners=False)
    return resized


def _two(logits: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


_REFUSES: Mapping[str, str] = {
    "fedwon": "weights standardised over all channels are other weights with fewer of them, so that the sub-networks "
    "of gradaug would not share them; use gradaug on a network with norm layers",
    "hbn": "the sub-networks of gradaug have no statistics of the federation at their width to mix with the batch's; "
    "use gradaug with batch norm",
}
