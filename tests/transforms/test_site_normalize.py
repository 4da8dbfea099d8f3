import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from monai.data import MetaTensor, set_track_meta
from monai.transforms import NormalizeIntensity
from monai.transforms.traits import RandomizableTrait
from safetensors.torch import save_file
from torch.utils.data._utils import worker as torch_worker

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.transforms import (
    NormaliseBatch,
    RandSiteNormalize,
    SiteNormalize,
    SiteStatistics,
    StatisticsCalculator,
    write_statistics,
)


def site(name, mean, std) -> SiteStatistics:
    """Statistics of a site."""
    return SiteStatistics(name, tuple(mean), tuple(std), "image", 1, 10)


A, B = site("A", [0.0], [1.0]), site("B", [100.0], [10.0])
TWO = site("A", [100.0, 1000.0], [10.0, 50.0])  # case 18: T1 and FLAIR
SCAN = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(0)) * 30 + 500


def test_mean_and_std_come_from_one_site() -> None:
    """Case 14: A gives 50, B (50 - 100) / 10 = -5; both occur in 200 draws, a mixture never."""
    normalise = RandSiteNormalize([A, B], own_site="A").set_random_state(0)

    drawn = [normalise(torch.full((1, 4, 4, 4), 50.0)).unique().tolist() for _ in range(200)]

    assert all(len(values) == 1 for values in drawn)
    assert {values[0] for values in drawn} == {50.0, -5.0}


def test_draws_are_uniform_and_the_own_site_is_among_them() -> None:
    """Four sites, 400 draws: 100 each within five standard errors of 8.7."""
    sites = [site(name, [k], [1.0]) for k, name in enumerate("ABCD")]
    normalise = RandSiteNormalize(sites, own_site="C").set_random_state(1)

    counts = np.bincount([int(-normalise(torch.zeros(1, 1))) for _ in range(400)])

    assert all(abs(count - 100) < 43 for count in counts)


def test_constant_channel_divides_by_one() -> None:
    """Case 16: a channel that is 7 everywhere becomes 0, and 9 becomes 2; one warning names site and channel."""
    scan = torch.stack([torch.full((4, 4, 4), 7.0), torch.arange(64.0).view(4, 4, 4)])
    calculator = StatisticsCalculator("A")
    calculator.update(scan)
    with pytest.warns(UserWarning, match="site A: std is 0 in channel 0"):
        found = calculator.result()

    with pytest.warns(UserWarning, match="site A: std is 0 in channel 0: .*divided by 1") as caught:
        normalise = SiteNormalize(found)
    assert len(caught) == 1
    other = scan.clone()
    other[0] = 9

    assert normalise(scan)[0].unique().tolist() == [0.0]
    assert normalise(other)[0].unique().tolist() == [2.0]
    assert normalise(scan).isfinite().all()
    with pytest.warns(UserWarning, match="site A: std is 0 in channel 0"):
        RandSiteNormalize([found, replace(found, site="B", std=(1.0, 1.0))], own_site="A")


def test_evaluation_uses_the_own_pair_and_no_randomness() -> None:
    """Case 18: T1 (110 - 100) / 10 = 1, FLAIR (1050 - 1000) / 50 = 1, on 20 calls; no random state moves."""
    normalise, scan = SiteNormalize(TWO), torch.tensor([110.0, 1050.0]).view(2, 1, 1, 1)
    before, of_torch = np.random.get_state()[1].tolist(), torch.get_rng_state()

    assert {tuple(normalise(scan).flatten().tolist()) for _ in range(20)} == {(1.0, 1.0)}
    assert np.random.get_state()[1].tolist() == before
    assert torch.equal(torch.get_rng_state(), of_torch)
    assert not isinstance(normalise, RandomizableTrait)


def test_other_numbers_of_channels_are_refused() -> None:
    """Case 18: of sites, naming site and both numbers; of an image, too."""
    with pytest.raises(ValueError, match="site C has statistics of 3 channels, site A of 2"):
        RandSiteNormalize([TWO, site("C", [0.0] * 3, [1.0] * 3)], own_site="A")
    for normalise in (SiteNormalize(TWO), RandSiteNormalize([TWO], own_site="A")):
        for shape in ((3, 4, 4), (1, 4, 4), ()):
            with pytest.raises(DataError, match=r"site A: statistics of 2 channels, but an image of (3|1|0), shape"):
                normalise(torch.zeros(shape))


def test_unknown_own_site_is_refused() -> None:
    """Case 18: the known ones are listed."""
    with pytest.raises(ValueError, match="site 'Z' has no statistics; known sites: A, B"):
        RandSiteNormalize([A, B], own_site="Z")


def test_other_definitions_and_sites_given_twice_are_refused() -> None:
    """Case 15: both sites are named."""
    with pytest.raises(ValueError, match="sites A and B were measured differently"):
        RandSiteNormalize([A, replace(B, std_mode="pooled")], own_site="A")
    with pytest.raises(DataError, match="site A is given twice"):
        RandSiteNormalize([A, A], own_site="A")


@pytest.mark.parametrize("prob", [-0.1, 1.1, float("nan")])
def test_a_probability_is_one(prob) -> None:
    """Not clipped in silence."""
    with pytest.raises(ConfigError, match="RandSiteNormalize: prob="):
        RandSiteNormalize([A, B], own_site="A", prob=prob)


def test_without_a_draw_the_own_pair_is_used() -> None:
    """Never an image that is not normalised."""
    normalise = RandSiteNormalize([A, B], own_site="B", prob=0.0)

    assert {float(normalise(torch.full((1, 1), 50.0))) for _ in range(20)} == {-5.0}


def test_one_site_is_site_normalize() -> None:
    """K = 1: the bits of the transform without randomness, and as MONAI has them for the same numbers."""
    expected = SiteNormalize(TWO)(SCAN)

    assert torch.equal(RandSiteNormalize([TWO], own_site="A")(SCAN), expected)
    assert torch.equal(NormalizeIntensity(TWO.mean, TWO.std, channel_wise=True)(SCAN.clone()), expected)


def test_an_exported_model_has_the_same_bits(tmp_path) -> None:
    """NormaliseBatch on a batch and the transform on each image."""
    mean, std = (123.456, 0.1), (7.89, 1 / 3)
    save_file({"mean": torch.tensor(mean).double(), "std": torch.tensor(std).double()}, tmp_path / "s.safetensors")
    batch = torch.stack([SCAN, SCAN.flip(1)])

    whole = NormaliseBatch(tmp_path / "s.safetensors")({"image": batch})[0]

    single = SiteNormalize(SiteStatistics("A", mean, std, "image", 1, 2))
    assert torch.equal(torch.stack([single(image).as_tensor() for image in batch]), whole)


@pytest.mark.parametrize("spatial", [(), (6,), (6, 5), (6, 5, 4), (6, 5, 4, 3)])
def test_any_number_of_axes(spatial) -> None:
    """Channels come first: also a vector, and a volume over time."""
    scan = torch.tensor([110.0, 1050.0]).view(2, *[1] * len(spatial)).expand(2, *spatial)

    assert torch.equal(SiteNormalize(TWO)(scan).as_tensor(), torch.ones(2, *spatial))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.bool_, np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("out", [np.float32, torch.float64, torch.float16, None])
def test_numpy_of_any_type_is_taken(dtype, out) -> None:
    """(1 - 3) / 2 = -1, exact in all of them; the result is a MetaTensor of the type asked for, as MONAI's are."""
    scan = np.ones((1, 3, 2)).astype(dtype)
    if dtype == ">f4":
        scan = scan.astype(np.float32)  # torch takes no other byte order; LoadImage changes it

    found = SiteNormalize(site("A", [3.0], [2.0]), dtype=out)(scan)

    expected = {np.float32: torch.float32, None: torch.from_numpy(scan).dtype}.get(out, out)
    assert isinstance(found, MetaTensor)
    assert found.dtype == (expected if expected.is_floating_point else torch.float32)
    assert found.unique().tolist() == [-1.0]


def test_half_precision_is_computed_in_single() -> None:
    """Values near 1000 in float16 are 0.5 apart, and so are their differences; the mean must not be rounded first."""
    found = SiteNormalize(site("A", [1000.3], [0.5]), dtype=None)(torch.tensor([[1000.5]], dtype=torch.float16))

    assert found.dtype == torch.float16
    assert found.item() == pytest.approx(0.4, abs=1e-3)


def test_an_integer_result_is_refused() -> None:
    """It would be rounded to nothing."""
    with pytest.raises(ConfigError, match="must be a floating type"):
        SiteNormalize(A, dtype=np.int16)


def test_meta_data_are_kept_and_the_input_stays() -> None:
    """Also while a cached image is normalised over and over."""
    scan = MetaTensor(
        SCAN.clone(), affine=torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0])), meta={"filename_or_obj": "a"}
    )

    found = RandSiteNormalize([TWO], own_site="A")(scan)

    assert found.meta["filename_or_obj"] == "a"
    assert torch.equal(found.affine, scan.affine)
    assert torch.equal(scan.as_tensor(), SCAN)
    assert (len(scan.applied_operations), len(found.applied_operations)) == (0, 1)


@pytest.mark.parametrize(
    "normalise", [SiteNormalize(TWO), RandSiteNormalize([TWO, replace(TWO, site="B")], own_site="A")]
)
def test_inverse_gives_the_image_back(normalise) -> None:
    """To within float32, and the record shrinks again."""
    scan = MetaTensor(SCAN)

    back = normalise.inverse(normalise(scan))

    assert torch.allclose(back, scan, rtol=1e-6)
    assert back.applied_operations == []


def test_inverse_takes_the_site_that_was_drawn() -> None:
    """Not the one drawn last: ten images normalised first, then each is given back."""
    sites = [site(name, [100.0 * k], [k + 1.0]) for k, name in enumerate("ABCD")]
    normalise = RandSiteNormalize(sites, own_site="A").set_random_state(0)
    images = [torch.full((1, 2, 2), float(k)) for k in range(10)]

    normalised = [normalise(image) for image in images]

    assert len({image.applied_operations[0]["extra_info"]["site"] for image in normalised}) > 1
    for image, found in zip(images, normalised, strict=True):
        assert torch.allclose(normalise.inverse(found).as_tensor(), image, atol=1e-4)


def test_without_meta_data_the_own_pair_is_undone_and_a_drawn_one_is_not_guessed() -> None:
    """Plain tensors are what MONAI gives when it does not track."""
    rand, own = RandSiteNormalize([A, B], own_site="A"), SiteNormalize(B)
    set_track_meta(False)
    try:
        out = own(torch.full((1, 2), 50.0))
        assert type(out) is torch.Tensor
        assert own.inverse(out).tolist() == [[50.0, 50.0]]
        with pytest.raises(DataError, match="which site was drawn is not known"):
            rand.inverse(rand(out))
    finally:
        set_track_meta(True)
    with pytest.raises(DataError, match="which site was drawn is not known"):
        rand.inverse(MetaTensor(torch.zeros(1, 2)))  # one that nothing was applied to


def test_statistics_may_be_files(tmp_path) -> None:
    """One a site, in any order; text or paths."""
    files = [tmp_path / "B.json", tmp_path / "A.json"]
    for file, statistics in zip(files, (B, A), strict=True):
        write_statistics(file, statistics)

    assert SiteNormalize(str(files[0])).statistics == B
    assert list(RandSiteNormalize(map(str, files), own_site="A").statistics.values()) == [A, B]
    assert RandSiteNormalize({"B": B, "A": A}, own_site="B").statistics == {"A": A, "B": B}


def test_a_seed_repeats_the_draws() -> None:
    """As for every random transform of MONAI; a given state, too."""
    normalise = RandSiteNormalize([A, B], own_site="A")

    def draws():
        return [float(normalise(torch.zeros(1, 1))) for _ in range(20)]

    normalise.set_random_state(3)
    first = draws()
    normalise.set_random_state(state=np.random.RandomState(3))

    assert draws() == first != draws()


def as_worker(monkeypatch, normalise, seed):
    """The draws of a worker process: a copy of the transform, and what torch says there of the worker."""
    info = torch_worker.WorkerInfo(id=0, num_workers=2, seed=seed, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    copy = pickle.loads(pickle.dumps(normalise))
    drawn = [float(copy(torch.zeros(1, 1))) for _ in range(30)]
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    return drawn


def test_workers_draw_streams_of_their_own(monkeypatch) -> None:
    """Case 19: a function of the worker's seed, which differs by worker and epoch, and of the transform's own seed."""
    normalise = RandSiteNormalize([A, B], own_site="A").set_random_state(0)

    first = as_worker(monkeypatch, normalise, 5)

    assert as_worker(monkeypatch, normalise, 5) == first
    assert as_worker(monkeypatch, normalise, 6) != first
    assert as_worker(monkeypatch, normalise.set_random_state(1), 5) != first


def test_a_seed_set_inside_a_worker_holds(monkeypatch) -> None:
    """As MONAI's DataLoader sets it."""
    info = torch_worker.WorkerInfo(id=0, num_workers=2, seed=5, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    normalise, plain = (RandSiteNormalize([A, B], own_site="A") for _ in range(2))
    normalise.set_random_state(9)
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    plain.set_random_state(9)

    expected = [float(plain(torch.zeros(1, 1))) for _ in range(20)]
    monkeypatch.setattr(torch_worker, "_worker_info", info)

    assert [float(normalise(torch.zeros(1, 1))) for _ in range(20)] == expected
