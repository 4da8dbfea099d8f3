"""HarmoFL: images get one amplitude spectrum at all sites, and training looks for flat minima."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.part import Bound, Deployment, Part, SiteView
from monai_fedskew.core.ranges import require_choice, require_number, require_whole
from monai_fedskew.core.state import State, describe
from monai_fedskew.errors import RoundError, StateError
from monai_fedskew.networks.stages import require_convolutions
from monai_fedskew.transforms.amplitude import AmplitudeNormaliser, band_count, mean_amplitude

__all__ = ["Amplitude", "AmplitudeMode", "Sharpness", "harmofl"]

AmplitudeMode = Literal["full", "low", "dc", "off"]
_TOLD = "told/"  # the server remembers who was measured
_RAW = (
    "fedmix shares averages of raw inputs, which have other amplitudes than normalised ones; leave it out or set "
    "harmofl:amplitude=off"
)


def harmofl(
    alpha: float = 0.05, amplitude: AmplitudeMode = "full", band: float = 0.1, *, min_subjects: int = 2
) -> Method:
    """Give all images one amplitude spectrum, and take each step by the gradient at a perturbed model.

    Inputs, in training and evaluation: the phase stays, the amplitude becomes the mean of the sites' mean amplitudes,
    measured once on the clean training images, each site counting the same. What an image tells by the replaced
    amplitudes (brightness, texture) is lost; compare with "dc" and "off". Training: delta = alpha g / ||g|| for the
    gradient g of a batch; the step is taken from w by the gradient at w + delta, at the cost of a second pass.

    Paper: Jiang et al. 2022, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous
    Medical Images, AAAI, arXiv 2112.10775. The public code is ``amplitude="dc"``: it replaces the coefficient of
    frequency 0 alone, so that an image becomes x - mean(x) + reference. It also stops averaging after its first batch,
    by an integer that should be a fraction, and trains its first round before the reference is shared; these are not
    repeated. Its networks use batch norm without affine pair and running statistics, which is the bundle's affair.

    What leaves a site, once: its mean amplitude, one number for each channel ("dc") or coefficient (half an image).
    The reference is frozen: a site that joins late is normalised by it and does not change it.

    Args:
        alpha: length of the perturbation, 0 or more; 0 leaves it out.
        amplitude: "full" replaces all frequencies (the paper), "low" those of ``band``, "dc" the mean alone (the public
            code), "off" none. "full" and "low" need images of one size at all sites, also in evaluation; all but "off"
            need images. On vectors use "off".
        band: with "low", frequencies |k| <= band * size along each axis, above 0 and below 0.5.
        min_subjects: a site with fewer training subjects refuses to be measured: the mean over one is that one's own.

    Raises:
        ConfigError: a value out of range; at a site, amplitudes without images.

    >>> harmofl(amplitude="dc").parts
    (Amplitude(mode='dc', band=0.0, min_subjects=2), Sharpness(alpha=0.05))
    """
    require_number("method harmofl", "alpha", alpha, least=0)
    require_choice("method harmofl", "amplitude", amplitude, get_args(AmplitudeMode))
    require_number("method harmofl", "band", band, above=0, below=0.5)
    require_whole("method harmofl", "min_subjects", min_subjects, 1)
    reach = {"full": 0.5, "low": float(band), "dc": 0.0}
    first = () if amplitude == "off" else (Amplitude(amplitude, reach[amplitude], min_subjects),)
    second = (Sharpness(float(alpha)),) if alpha else ()
    return Method("harmofl", parts=(*first, *second), refuses={"fedmix": _RAW} if first else {})


@dataclass(frozen=True)
class Amplitude(Part):
    """Replace the amplitude spectrum of inputs by a shared one."""

    name: ClassVar[str] = "amplitude"
    stages: ClassVar[tuple[str, ...]] = ("normalise", "normalise_eval")
    mode: AmplitudeMode
    band: float
    min_subjects: int

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; ConfigError on vectors."""
        require_convolutions(f"site {site.name}: harmofl with amplitude={self.mode}", site.model)
        return _Amplitude(self, site)

    def merge(self, memory: State, reports: Mapping[str, State], n_sites: int) -> State:
        """Average the first sites' amplitudes, each counting the same; later sites are checked against the reference.

        Raises:
            StateError: a site whose amplitude is missing, not whole, of other images, or told a second time.
        """
        known = {name.removeprefix(_TOLD) for name in memory if name.startswith(_TOLD)}
        if again := sorted(known & reports.keys()):
            raise StateError(f"site {again[0]}: amplitude a second time; it is told before the first round")
        if len(known | reports.keys()) < n_sites:
            told = ", ".join(sorted(known | reports.keys())) or "none"
            raise StateError(f"harmofl has amplitudes of {told} only, of {n_sites} sites; use one method everywhere")
        if not reports:
            return memory
        ordered = sorted(reports.items())
        for site, report in ordered:
            _require_whole(site, report, self.band)
        base = self.tell(memory)
        against = ("the reference", base) if base else (f"site {ordered[0][0]}", ordered[0][1])
        for site, report in ordered:
            _require_alike(site, report, *against)
        if not base:
            mean = torch.stack([report["amplitude"] for _, report in ordered]).mean(0)
            base = {"amplitude": mean, "size": ordered[0][1]["size"]}
        return {**memory, **base, **{_TOLD + site: torch.tensor(True) for site in reports}}

    def tell(self, memory: State) -> State:
        """Return the reference."""
        return {key: value for key, value in memory.items() if not key.startswith(_TOLD)}


class _Amplitude(Bound):
    def __init__(self, part: Amplitude, site: SiteView) -> None:
        self._part, self._site = part, site
        self._told: State = {}
        self._normalise: AmplitudeNormaliser | None = None
        for stage in part.stages:
            site.add(part, stage, self._apply)

    def survey(self) -> State:
        site, part = self._site, self._part
        if site.groups < part.min_subjects:
            # The count itself stays at the site: the server reads this text as the reason of the failure.
            raise RoundError(
                f"site {site.name}: fewer training subjects than min_subjects={part.min_subjects}; its mean amplitude "
                "is not shared. Leave the site out, or agree on a smaller number"
            )
        amplitude, size = mean_amplitude(site.examples(), part.band, site=site.name)
        return {"amplitude": amplitude, "size": torch.tensor(size or (0,))}

    def receive(self, cast: Broadcast) -> None:
        told = cast.aux.get(self._part.name, {})
        if told and (not self._told or any(not torch.equal(told[key], value) for key, value in self._told.items())):
            self._told = told
            size = told["size"].tolist() if self._part.band else ()
            self._normalise = AmplitudeNormaliser(told["amplitude"], size, self._part.band)

    def deploy(self) -> Deployment | None:
        if not self._told:
            return None
        band = torch.tensor(self._part.band, dtype=torch.float64)
        return Deployment("monai_fedskew.transforms.AmplitudeBatch", {**self._told, "band": band})

    def _apply(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self._normalise is None:
            raise StateError(f"site {self._site.name}: harmofl has no reference amplitude; survey the site first")
        return self._normalise(inputs), targets


@dataclass(frozen=True)
class Sharpness(Part):
    """Take the gradient at the worst model nearby, to first order (sharpness-aware minimisation)."""

    name: ClassVar[str] = "sharpness"
    stages: ClassVar[tuple[str, ...]] = ("perturb",)
    alpha: float

    def bind(self, site: SiteView) -> Bound:
        """Attach to a site; alpha = 0 attaches nothing."""
        if self.alpha:
            site.add(self, "perturb", lambda: self._perturb(site))
        return Bound()

    def _perturb(self, site: SiteView) -> None:
        trained = [(p, p.grad) for p in site.model.parameters() if p.grad is not None]
        kept = [p.detach().clone() for p, _ in trained]
        with torch.no_grad():
            norm = torch.stack([torch.linalg.vector_norm(grad).to(trained[0][1]) for _, grad in trained]).norm()
            scale = torch.where(norm > 0, self.alpha / norm, 0.0)
            for p, grad in trained:
                p.add_(grad * scale.to(grad))
                grad.zero_()
        try:
            with site.replay(self):
                site.loss().backward()  # type: ignore[no-untyped-call]  # torch has no types here
        finally:
            with torch.no_grad():
                for (p, _), value in zip(trained, kept, strict=True):
                    p.copy_(value)  # subtracting delta would leave the rounding of w + delta


def _require_whole(site: str, report: State, band: float) -> None:
    found = ", ".join(f"{key} {describe(value)}" for key, value in sorted(report.items()))
    wrong = StateError(
        f"site {site}: harmofl amplitudes hold {found}; they must be amplitude float64 (channels, coefficients) of the "
        "band, none negative, and size int64; use one version and method everywhere"
    )
    if set(report) != {"amplitude", "size"}:
        raise wrong
    amplitude, size = report["amplitude"], report["size"]
    if amplitude.ndim != 2 or amplitude.dtype != torch.float64 or size.ndim != 1 or size.dtype != torch.int64:
        raise wrong
    if not 1 <= len(size) <= 3 or (band and int(size.min()) < 1) or not (amplitude >= 0).all():
        raise wrong
    if amplitude.shape[1] != band_count(size.tolist() if band else (), band):
        raise wrong


def _require_alike(site: str, report: State, origin: str, known: State) -> None:
    if len(report["amplitude"]) != len(known["amplitude"]) or not torch.equal(report["size"], known["size"]):
        sizes = [f"{len(state['amplitude'])} channels and size {state['size'].tolist()}" for state in (report, known)]
        raise StateError(
            f"site {site}: amplitudes of images of {sizes[0]}, but those of {origin} are of {sizes[1]}; resample all "
            "sites' images to one size, or replace the mean only (amplitude=dc)"
        )
