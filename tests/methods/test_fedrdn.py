import pytest
import torch
from torch import Tensor

from monai_fedskew.core import Broadcast
from monai_fedskew.errors import DataError, StateError
from monai_fedskew.methods import fedrdn
from monai_fedskew.transforms import SiteStatistics

FIFTY = torch.full((200, 1, 4, 4, 4), 50.0)


def told(**sites: tuple[list[float], list[float]]) -> dict[str, Tensor]:
    """A server's memory of given pairs."""
    reports = {
        site: SiteStatistics(site, tuple(mean), tuple(std), "image", 1, 10).to_state()
        for site, (mean, std) in sites.items()
    }
    return fedrdn().parts[0].merge({}, reports, len(reports))


def at(view, memory, *, name="A", variant="paper"):
    """A bound site that holds its own pair and received the broadcast."""
    part, site = fedrdn(variant=variant).parts[0], view(name)
    bound = part.bind(site)
    bound.restore({key.removeprefix(f"{name}/"): v for key, v in memory.items() if key.startswith(f"{name}/")})
    bound.receive(Broadcast(1, {}, {"fedrdn": memory}))
    return site, bound


def test_mean_and_std_come_from_one_site(view) -> None:
    """Case 14: A (0, 1) gives (50-0)/1 = 50, B (100, 10) gives (50-100)/10 = -5; both occur, a mixture never."""
    site, _ = at(view, told(A=([0], [1]), B=([100], [10])))

    out = site.batch("normalise", FIFTY)

    assert set(out.unique().tolist()) == {50.0, -5.0}
    assert all(len(sample.unique()) == 1 for sample in out)  # one draw an image


def test_draws_are_uniform_over_all_sites(view) -> None:
    """Four sites, own included: a quarter of 200 draws each, within five standard errors of 6."""
    memory = told(**{name: ([value], [1]) for name, value in zip("ABCD", (10, 20, 30, 40), strict=True)})
    site, _ = at(view, memory)

    counts = site.batch("normalise", FIFTY)[:, 0, 0, 0, 0].unique(return_counts=True)

    assert counts[0].tolist() == [10, 20, 30, 40]
    assert all(abs(int(count) - 50) < 30 for count in counts[1])


def test_draws_are_anew_in_every_batch(view) -> None:
    """The same batch meets other statistics the next time."""
    site, _ = at(view, told(A=([0], [1]), B=([100], [10])))

    assert not torch.equal(site.batch("normalise", FIFTY), site.batch("normalise", FIFTY))


def test_official_draws_once_a_batch_and_mixes_pairs(view) -> None:
    """The public code: one value a batch, and over 50 batches also (50-0)/10 = 5 and (50-100)/1 = -50."""
    site, _ = at(view, told(A=([0], [1]), B=([100], [10])), variant="official")

    batches = [site.batch("normalise", FIFTY[:3]) for _ in range(50)]

    assert all(len(batch.unique()) == 1 for batch in batches)
    assert {batch.unique().item() for batch in batches} == {50.0, -5.0, 5.0, -50.0}


def test_evaluation_uses_the_own_pair_and_no_randomness(view) -> None:
    """Case 18: T1 (110-100)/10 = 1, FLAIR (1050-1000)/50 = 1, on 20 calls alike, random state untouched."""
    site, _ = at(view, told(A=([100, 1000], [10, 50]), B=([0, 0], [1, 1])))
    image = torch.stack([torch.full((2, 2, 2), 110.0), torch.full((2, 2, 2), 1050.0)])[None]
    states = torch.get_rng_state(), site.generator.get_state()

    outs = [site.batch("normalise_eval", image) for _ in range(20)]

    assert all(torch.equal(out, torch.ones_like(image)) for out in outs)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(site.generator.get_state(), states[1])


def test_one_site_alone_is_per_site_normalisation(view) -> None:
    """With K = 1 there is nothing to draw: training equals evaluation bit for bit."""
    site, _ = at(view, told(A=([3], [7])))

    assert torch.equal(site.batch("normalise", FIFTY), site.batch("normalise_eval", FIFTY))


def test_training_and_evaluation_agree_bit_for_bit(view) -> None:
    """A training sample that drew the own pair equals the evaluated one."""
    site, _ = at(view, told(A=([0.1, 0.2, 0.3], [0.7, 0.9, 1.1]), B=([5.0] * 3, [1.0] * 3)))
    vectors = torch.randn(64, 3)

    trained, evaluated = site.batch("normalise", vectors), site.batch("normalise_eval", vectors)

    own = (trained == evaluated).all(1)
    assert 0 < int(own.sum()) < 64
    assert all(bool(same) or not bool((t == e).any()) for same, t, e in zip(own, trained, evaluated, strict=True))


def test_other_number_of_channels_is_refused() -> None:
    """Case 18: the site is named with both counts."""
    with pytest.raises(DataError, match="site C has statistics of 3 channels, site A of 2"):
        told(A=([100, 1000], [10, 50]), C=([0, 0, 0], [1, 1, 1]))


def test_other_std_is_refused() -> None:
    """Case 15: modes are never mixed; both sites are named."""
    reports = {s: SiteStatistics(s, (0.0,), (1.0,), m, 1, 9).to_state() for s, m in (("A", "image"), ("B", "pooled"))}

    with pytest.raises(DataError, match="sites A and B were measured differently: std 'image'.*'pooled'"):
        fedrdn().parts[0].merge({}, reports, 2)


def test_late_joiner_is_checked_and_added() -> None:
    """The memory grows; a joiner measured with another ddof is refused."""
    part, memory = fedrdn().parts[0], told(A=([0], [1]))
    joiner = SiteStatistics("B", (2.0,), (1.0,), "image", 1, 9)

    assert part.merge(memory, {"B": joiner.to_state()}, 2)["B/mean"].item() == 2.0
    with pytest.raises(DataError, match=r"ddof=1 against .* ddof=0"):
        part.merge(memory, {"B": SiteStatistics("B", (2.0,), (1.0,), "image", 0, 9).to_state()}, 2)


def test_unknown_own_site_is_refused(view) -> None:
    """Case 18: the known sites are listed."""
    with pytest.raises(StateError, match="site Z: fedrdn knows no statistics of it; known sites: A, B"):
        at(view, told(A=([0], [1]), B=([100], [10])), name="Z")


def test_survey_measures_and_private_state_survives(view, federate) -> None:
    """A site rebuilt from its private state normalises as before, without measuring again."""
    images = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(1)) * 3 + 1
    sites = [view("A", [images[:4], images[4:]]), view("B", [images + 9])]
    first, _ = federate(fedrdn().parts[0], sites)
    rebuilt = view("A")

    fedrdn().parts[0].bind(rebuilt).restore(first.private())

    assert torch.equal(rebuilt.batch("normalise_eval", images), sites[0].batch("normalise_eval", images))


def test_nothing_of_an_example_but_its_statistics_is_reported(view, federate) -> None:
    """2C numbers, how they were measured, and how many samples."""
    bound = fedrdn().parts[0].bind(view("A", [torch.randn(9, 2, 5)]))

    assert {key: tuple(value.shape) for key, value in bound.survey().items()} == {
        "mean": (2,),
        "std": (2,),
        "std_mode": (),
        "ddof": (),
        "samples": (),
    }


def test_inputs_already_normalised_give_a_warning(view) -> None:
    """Images z-scored one by one have mean 0 and std 1 everywhere: all pairs are alike."""
    images = torch.randn(8, 1, 50)
    images = (images - images.mean(-1, keepdim=True)) / images.std(-1, keepdim=True)

    with pytest.warns(UserWarning, match="site A: every channel has mean 0 and std 1 .* already z-scored"):
        fedrdn().parts[0].bind(view("A", [images])).survey()


def test_without_survey_nothing_is_normalised(view) -> None:
    """An error, not raw inputs."""
    site = view("A")
    fedrdn().parts[0].bind(site)

    with pytest.raises(StateError, match="site A: fedrdn has no statistics; survey the site first"):
        site.batch("normalise_eval", FIFTY)
    with pytest.raises(StateError, match="site A: fedrdn has no broadcast to draw from"):
        site.batch("normalise", FIFTY)
