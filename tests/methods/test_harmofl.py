import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.final import finish_site
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.methods.harmofl import harmofl
from monai_fedskew.transforms import AmplitudeBatch

LAST = {"choose": "last"}


def conv() -> nn.Module:
    """Any network with a convolution."""
    return nn.Conv2d(1, 2, 3)


def test_reference_is_the_uniform_mean_over_sites_and_applies_in_both_stages(view, federate) -> None:
    """Means 1 (two images) and 5 (four): the reference is 3, not 11/3; (0, 2) at mean 1 becomes (2, 4)."""
    few, many = torch.tensor([[[[0.0, 2.0]]]]).repeat(2, 1, 1, 1), torch.full((4, 1, 1, 2), 5.0)
    sites = [view("A", [few], model=conv()), view("B", [many], model=conv())]
    federate(harmofl(amplitude="dc").parts[0], sites)

    for stage in ("normalise", "normalise_eval"):
        assert sites[0].batch(stage, few[:1]).tolist() == [[[[2.0, 4.0]]]]
        assert sites[1].batch(stage, many[:1]).tolist() == [[[[3.0, 3.0]]]]


@pytest.mark.parametrize("amplitude", ["full", "low", "dc"])
@pytest.mark.parametrize("size", [(8, 8), (6, 8, 8)])
def test_sites_of_another_scale_become_alike(view, federate, amplitude, size) -> None:
    """2-D and 3-D: after it, the mean intensity of two scanners is one."""
    images = torch.rand(6, 1, *size) + 0.5
    sites = [view("A", [images], model=conv()), view("B", [images * 7 + 20], model=conv())]
    federate(harmofl(amplitude=amplitude).parts[0], sites)

    means = [
        site.batch("normalise", batch).mean(tuple(range(1, images.ndim)))
        for site, batch in zip(sites, (images, images * 7 + 20), strict=True)
    ]

    assert torch.allclose(means[0], means[1], rtol=1e-4)


def test_what_leaves_a_site(view) -> None:
    """One number a channel, or one a coefficient of the half spectrum; the band is smaller."""
    images = torch.rand(4, 3, 8, 8)
    shapes = {}
    for amplitude in ("dc", "low", "full"):
        report = harmofl(amplitude=amplitude, band=0.2).parts[0].bind(view("A", [images], model=conv())).survey()
        shapes[amplitude] = tuple(report["amplitude"].shape)
        assert sorted(report) == ["amplitude", "size"]

    assert shapes == {"dc": (3, 1), "low": (3, 3 * 2), "full": (3, 8 * 5)}


def test_sites_of_other_sizes_are_named(view) -> None:
    """Full spectra need one size; the mean alone does not."""
    surveys = {}
    for mode in ("full", "dc"):
        part = harmofl(amplitude=mode).parts[0]
        sites = [view(name, [torch.rand(3, 1, n, n)], model=conv()) for name, n in {"A": 8, "B": 6}.items()]
        surveys[mode] = {site.name: part.bind(site).survey() for site in sites}

    with pytest.raises(StateError, match=r"site B: .* 1 channels and size \[6, 6\], but those of site A .* \[8, 8\]"):
        harmofl(amplitude="full").parts[0].merge({}, surveys["full"], 2)
    assert harmofl(amplitude="dc").parts[0].merge({}, surveys["dc"], 2)["amplitude"].shape == (1, 1)


def test_a_late_site_changes_nothing_and_is_checked(view) -> None:
    """The reference stays as frozen; only the list of sites grows, and that is not told."""
    part = harmofl(amplitude="dc").parts[0]
    sites = [view("A", [torch.full((2, 1, 2, 2), value)], model=conv()) for value in (1.0, 9.0)]
    told = [part.bind(site).survey() for site in sites]
    memory = part.merge({}, {"A": told[0]}, 1)

    later = part.merge(memory, {"B": told[1]}, 2)

    assert torch.equal(later["amplitude"], memory["amplitude"])
    assert sorted(part.tell(later)) == ["amplitude", "size"]
    assert part.merge(later, {}, 2) == later
    with pytest.raises(StateError, match="site A: amplitude a second time"):
        part.merge(later, {"A": told[0]}, 2)
    with pytest.raises(StateError, match="harmofl has amplitudes of A, B only, of 3 sites"):
        part.merge(later, {}, 3)
    with pytest.raises(StateError, match="site C: .*2 channels .*but those of the reference are of 1 channels"):
        part.merge(later, {"C": {**told[0], "amplitude": torch.ones(2, 1, dtype=torch.float64)}}, 3)


def test_malformed_amplitudes_name_the_site() -> None:
    """Entries, types, negative numbers, another number of coefficients than the size has."""
    part = harmofl(amplitude="full").parts[0]
    good = {"amplitude": torch.ones(1, 12, dtype=torch.float64), "size": torch.tensor([4, 4])}
    assert part.merge({}, {"A": good}, 1)

    for change in (
        {"amplitude": good["amplitude"].float()},
        {"amplitude": -good["amplitude"]},
        {"amplitude": good["amplitude"][:, :5]},
        {"amplitude": good["amplitude"][0]},
        {"size": torch.tensor([4.0, 4.0])},
        {"size": torch.tensor([4, -4])},
        {"size": torch.ones(9, dtype=torch.int64)},
        {"more": torch.ones(1)},
    ):
        with pytest.raises(StateError, match="site A: harmofl amplitudes hold .*use one version"):
            part.merge({}, {"A": {**good, **change}}, 1)


def test_too_few_subjects_are_not_measured(view) -> None:
    """The mean amplitude of one person is that person's; the number itself stays at the site."""
    site = view("A", [torch.rand(3, 1, 4, 4)], model=conv(), subjects=[5, 5, 5])

    with pytest.raises(RoundError, match="site A: fewer training subjects than min_subjects=2; .* not shared"):
        harmofl().parts[0].bind(site).survey()


def test_vectors_have_no_amplitude(view) -> None:
    """Refused when the site is opened, with what to do; with the perturbation alone vectors are as good as images."""
    with pytest.raises(ConfigError, match="site A: harmofl with amplitude=full needs a network with convolutions"):
        harmofl().parts[0].bind(view("A", [torch.rand(4, 3)]))
    assert [part.name for part in parse_method("harmofl:amplitude=off").parts] == ["sharpness"]


def test_alpha_zero_without_amplitudes_has_no_parts() -> None:
    """FedAvg bit for bit."""
    assert harmofl(0, "off").parts == ()
    assert [part.name for part in harmofl(0).parts] == ["amplitude"]


def test_without_a_reference_nothing_is_normalised(view) -> None:
    """An error, not raw inputs."""
    site = view("A", model=conv())
    harmofl().parts[0].bind(site)

    with pytest.raises(StateError, match="site A: harmofl has no reference amplitude; survey the site first"):
        site.batch("normalise_eval", torch.rand(1, 1, 4, 4))


@pytest.mark.parametrize("amplitude", ["full", "dc"])
def test_an_exported_model_normalises_as_the_site_did(view, federate, amplitude, tmp_path) -> None:
    """What is deployed, read back from its file, gives the same bits."""
    images = torch.rand(4, 1, 6, 6)
    site = view("A", [images], model=conv())
    (bound,) = federate(harmofl(amplitude=amplitude).parts[0], [site])
    deployment = bound.deploy()
    save_file(dict(deployment.tensors), tmp_path / "a.safetensors")

    prepared, _ = AmplitudeBatch(tmp_path / "a.safetensors")({"image": images, "label": torch.zeros(4)})

    assert deployment.target == "monai_fedskew.transforms.AmplitudeBatch"
    assert torch.equal(prepared, site.batch("normalise_eval", images))


def test_a_finished_site_is_left_with_the_reference(image_sources, tmp_path) -> None:
    """At the end of a run the site's folder holds the amplitudes the server told last."""
    from safetensors.torch import load_file

    method, settings = parse_method("harmofl+fedbn"), Settings(rounds=1, **LAST)
    outcome = simulate(method, image_sources, settings)

    finish_site(
        method, image_sources["A"], settings, cast=outcome.cast, private=outcome.private["A"], folder=tmp_path / "A"
    )

    left = load_file(tmp_path / "A" / "normalisation.safetensors")
    assert torch.equal(left["amplitude"], outcome.cast.aux["amplitude"]["amplitude"])
    assert left["size"].tolist() == [8, 8]


def test_a_late_site_trains_with_the_frozen_reference(image_sources) -> None:
    """It is surveyed, told the reference, and takes part."""
    method, settings = parse_method("harmofl:amplitude=dc"), Settings(rounds=2, **LAST)
    clients = {name: Client(method, image_sources[name], settings) for name in "AB"}
    server = Server(method, settings)
    server.open([clients["A"].survey()])
    first = server.cast().aux["amplitude"]["amplitude"]
    server.absorb([clients["A"].fit(server.cast())])

    server.open([clients["B"].survey()])

    assert torch.equal(server.cast().aux["amplitude"]["amplitude"], first)
    assert server.absorb([client.fit(server.cast()) for client in clients.values()]) == ()


def test_composes(image_sources) -> None:
    """With FedBN, FedProx and Mixup; two normalisations, and FedMix's raw averages, are refused in both orders."""
    outcome = simulate(parse_method("harmofl+fedbn+fedprox+mixup"), image_sources, Settings(rounds=1, **LAST))
    assert all(value.isfinite().all() for value in outcome.last.values() if value.is_floating_point())
    for other, message in (("fedrdn", "stage 'normalise'"), ("fedmix", "averages of raw inputs")):
        for text in (f"harmofl+{other}", f"{other}+harmofl"):
            with pytest.raises(ConfigError, match=message):
                parse_method(text)
    assert parse_method("harmofl:amplitude=off+fedmix").parts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -1.0}, r"method harmofl: alpha=-1\.0 must be a finite number of at least 0"),
        ({"alpha": math.inf}, "alpha=inf must be"),
        ({"amplitude": "high"}, "method harmofl: amplitude='high' must be one of full, low, dc, off"),
        ({"band": 0.5}, r"method harmofl: band=0\.5 must be a number above 0 and below 0\.5"),
        ({"min_subjects": 0}, "method harmofl: min_subjects=0 must be a whole number, 1 or more"),
    ],
)
def test_wrong_parameters_are_refused(arguments, message) -> None:
    """Name, value and range."""
    with pytest.raises(ConfigError, match=message):
        harmofl(**arguments)
