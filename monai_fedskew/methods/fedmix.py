"""FedMix: a site trains towards blends with averages of the sites' examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Part, SiteView
from monai_fedskew.core.ranges import require_number, require_whole
from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import State, describe, nest, unnest
from monai_fedskew.errors import ConfigError, DataError, RoundError, StateError
from monai_fedskew.transforms.soft_labels import require_soft_labels, soft_form, soft_labels

__all__ = ["AveragedBlend", "fedmix"]

_ENTRIES = ("inputs", "labels")
_TRIED = 4  # examples the network and the loss are tried on
_RAW = "fedmix shares averages of raw inputs, which are of another scale than normalised ones; leave one of them out"


def fedmix(lam: float = 0.05, mean_batch: int = 5, means: int = 16) -> Method:
    """Blend each training example with an average of others, which may be of other sites, to first order.

    (1 - l) L(f(x'), y) + l L(f(x'), y_) + l <dL(f(x'), y)/dx', x_> with x' = (1 - l) x. A pair (x_, y_) is the mean of
    the inputs and of the one-hot labels (masks, in segmentation) of ``mean_batch`` examples; one is drawn for each
    step, uniformly over those of all sites, own included. The last term is differentiated a second time, so a step
    costs about twice as much. With ``amp: true`` on CUDA its gradient would not be scaled as the loss is, and could
    become 0 in float16, so that is refused. Evaluation sees plain examples. ``lam=0`` is FedAvg bit for bit, and sends
    nothing.

    What leaves a site, once, and is told to all: at most ``means`` pairs, each of the size of one example and its mask.
    Subjects are put in fixed teams of ``mean_batch``, the same whatever the seed of the run, and a mean takes one
    example of every member: all the means together tell of teams, never of a member. (Another fold has other subjects
    and so other teams.) Who is left over is in no mean; a site with fewer subjects than a team refuses to be surveyed.
    Where the data name no subjects, each example counts as one. A mean of images is an image: look at some of them.

    Paper: Yoon et al. 2021, FedMix: Approximation of Mixup under Mean Augmented Federated Learning, ICLR, arXiv
    2107.00233, proposition 1; there lambda is 0.05 to 0.2. The authors' code is not public. A re-implementation in use,
    with these defaults, divides the last term by the batch size twice and multiplies it by 1 - l once more; this one
    does not.

    Args:
        lam: weight of the average, in [0, 1).
        mean_batch: examples in a mean, at least 2: a mean of one is a raw example.
        means: at most so many pairs of a site; all of them travel in every broadcast.

    Raises:
        ConfigError: a value out of range. At a site: labels that cannot be averaged, or a loss that does not take the
            average (cross-entropy, with class weights too, and MONAI's Dice losses do).

    >>> fedmix(lam=0.1).parts
    (AveragedBlend(lam=0.1, mean_batch=5, means=16),)
    """
    require_number("method fedmix", "lam", lam, least=0, below=1)
    require_whole("method fedmix", "mean_batch", mean_batch, 2)
    require_whole("method fedmix", "means", means, 1)
    refuses = dict.fromkeys(("fedrdn", "sitenorm"), _RAW) if lam else {}
    return Method("fedmix", parts=(AveragedBlend(float(lam), mean_batch, means),), refuses=refuses)


@dataclass(frozen=True)
class AveragedBlend(Part):
    """Share averages of examples once, and blend with them in training."""

    name: ClassVar[str] = "fedmix"
    stages: ClassVar[tuple[str, ...]] = ("mix", "replace")
    differentiates: ClassVar[bool] = True
    lam: float
    mean_batch: int
    means: int

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; lam = 0 attaches nothing."""
        return _Bound(self, site) if self.lam else Bound()

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Add the reported means to those known.

        Raises:
            StateError: a site whose means are missing, not whole, of another shape, or told a second time.
        """
        if not self.lam:
            return memory
        known = {name.split("/", 1)[0] for name in memory}
        if again := sorted(known & reports.keys()):
            raise StateError(f"site {again[0]}: fedmix means a second time; they are told before the first round")
        if len(known | reports.keys()) < n_sites:
            told = ", ".join(sorted(known | reports.keys())) or "none"
            raise StateError(f"fedmix has means of {told} only, of {n_sites} sites; use the same method everywhere")
        merged = {**memory, **nest(reports)}
        for site, report in sorted(reports.items()):
            _require_whole(site, report, self.means)
        _require_one_shape(unnest(merged))
        return merged


class _Bound(Bound):
    def __init__(self, part: AveragedBlend, site: SiteView) -> None:
        self._part, self._site = part, site
        self._soft_loss = soft_form(site.loss_function)
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._drawn: tuple[Tensor, Tensor] | None = None  # this batch's; the loss may be asked for again
        site.add(part, "mix", self._mix)
        site.add(part, "replace", self._replace)

    def survey(self) -> State:
        site, part = self._site, self._part
        subjects = site.example_groups()
        if subjects is None:
            subjects = torch.arange(site.samples)
        rows = _teams(subjects, part.mean_batch, part.means, seed=derive(0, site.name, part=part.name))
        if not len(rows):
            # The count itself stays at the site: the server reads this text as the reason of the failure.
            raise RoundError(
                f"site {site.name}: fewer training subjects than mean_batch={part.mean_batch}; no average of it is "
                "shared. Leave the site out, or agree on a smaller number"
            )
        inputs, labels = _means(site, rows)
        return {"inputs": inputs, "labels": labels}

    def receive(self, cast: Broadcast) -> None:
        told = unnest(cast.aux.get(self._part.name, {}))
        self._pairs = [pair for name in sorted(told) for pair in zip(*(told[name][e] for e in _ENTRIES), strict=True)]

    def _mix(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if not self._pairs:
            raise StateError(f"site {self._site.name}: fedmix has no broadcast to draw from; survey the site first")
        mean, label = self._pairs[int(torch.randint(len(self._pairs), (), generator=generator))]
        if mean.shape != inputs.shape[1:]:
            raise DataError(
                f"site {self._site.name}: fedmix has averages of shape {tuple(mean.shape)}, but trains on "
                f"{tuple(inputs.shape[1:])}; the clean examples (`survey#dataset`) must be of the size trained on"
            )
        # A tensor of its own: the loss is differentiated by it.
        scaled = ((1 - self._part.lam) * inputs).detach().requires_grad_()
        self._drawn = mean.to(scaled.device, scaled.dtype), label.to(scaled.device)
        return scaled, targets

    def _replace(self, output: Mapping[str, Tensor]) -> Tensor:
        assert self._drawn is not None
        (mean, label), lam = self._drawn, self._part.lam
        loss, pred = output["loss"], output["pred"]
        # Of the mean loss, so the sum over samples is already the mean of their directional derivatives.
        (slope,) = torch.autograd.grad(loss, output["image"], create_graph=True)
        blended = self._soft_loss(pred, label.to(pred.dtype).expand(len(pred), *label.shape)).mean()
        return (1 - lam) * loss + lam * (blended + (slope * mean).sum())


def _teams(subjects: Tensor, size: int, most: int, *, seed: int) -> Tensor:
    """Return the numbers of the examples in each mean, (means, size): always one a member of a fixed team."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(subjects), generator=generator)
    names = torch.unique(subjects)
    names = names[torch.randperm(len(names), generator=generator)]
    teams = names[: len(names) // size * size].view(-1, size).tolist()
    examples = {name: order[subjects[order] == name].tolist() for team in teams for name in team}
    depths = [min(len(examples[name]) for name in team) for team in teams]
    rows = [
        [examples[name][depth] for name in team]
        for depth in range(max(depths, default=0))
        for team, deepest in zip(teams, depths, strict=True)
        if depth < deepest
    ]
    return torch.tensor(rows[:most], dtype=torch.int64).view(-1, size)


def _means(site: SiteView, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Average inputs and one-hot labels over each row of example numbers, reading the data once."""
    mean_of = {int(example): mean for mean, row in enumerate(rows) for example in row}
    sums: list[Tensor] = []
    outputs: Tensor | None = None
    start = 0
    for batch in site.labelled_examples():
        images, labels = (tensor.detach().as_subclass(Tensor).cpu() for tensor in batch)
        if outputs is None:
            outputs = _outputs(site, images, labels)
        chosen = [i for i in range(len(images)) if start + i in mean_of]
        start += len(images)
        if not chosen:
            continue
        soft = soft_labels(labels[chosen], outputs.expand(len(chosen), *outputs.shape[1:]), what=_what(site))
        into = torch.tensor([mean_of[start - len(images) + i] for i in chosen])
        for place, values in enumerate((images[chosen], soft)):
            if len(sums) == place:
                sums.append(torch.zeros(len(rows), *values.shape[1:], dtype=torch.float64))
            sums[place].index_add_(0, into, values.double())
    if start <= max(mean_of):
        raise DataError(f"{_what(site)}: {start} clean examples for {site.samples} training samples; they must agree")
    inputs, shares = (total.div_(rows.shape[1]).float() for total in sums)
    return inputs, shares


@torch.no_grad()
def _outputs(site: SiteView, images: Tensor, labels: Tensor) -> Tensor:
    """Return one row of the network's shape of output, after trying the loss on it."""
    model = site.model
    device = next(model.parameters()).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    pred = model(images[:_TRIED].float().to(device))
    for module, training in modes:
        module.training = training
    if not isinstance(pred, Tensor):
        raise ConfigError(f"{_what(site)} needs a network with one output, not {type(pred).__name__}")
    require_soft_labels(site.loss_function, pred, labels[:_TRIED].to(device), what=_what(site))
    return pred[:1].cpu()


def _what(site: SiteView) -> str:
    return f"site {site.name}: fedmix"


def _require_whole(site: str, report: State, most: int) -> None:
    if set(report) != set(_ENTRIES):
        raise StateError(f"site {site}: fedmix means hold {', '.join(sorted(report))}, not inputs and labels")
    counts = {len(value) if value.ndim else 0 for value in report.values()}
    if len(counts) > 1 or not 1 <= max(counts) <= most or any(v.dtype != torch.float32 for v in report.values()):
        raise StateError(
            f"site {site}: fedmix means are {', '.join(f'{k} {describe(v)}' for k, v in sorted(report.items()))}; "
            f"they must be as many float32 inputs as labels, 1 to {most}; use one version and method everywhere"
        )


def _require_one_shape(told: Mapping[str, State]) -> None:
    (first, known), *others = sorted(told.items())
    for site, report in others:
        for entry in _ENTRIES:
            if report[entry].shape[1:] != known[entry].shape[1:]:
                raise StateError(
                    f"fedmix {entry} are of shape {tuple(report[entry].shape[1:])} at site {site}, of "
                    f"{tuple(known[entry].shape[1:])} at site {first}; all sites need one size of examples"
                )
