import pytest
import torch
from torch import Tensor

from monai_fedskew.core import Broadcast
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, DataError, RoundError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.exchange import Request
from monai_fedskew.federation.resident import Resident
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedrdn, parse_method
from monai_fedskew.sites.store import SiteStore
from monai_fedskew.transforms import SiteStatistics, measure

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


def vectors(n: int = 40) -> Tensor:
    """Two features of some examples."""
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(3)) * 2 + 1


def test_too_few_subjects_refuse_the_survey(view) -> None:
    """Eight examples of four subjects; the text, which the server may read, does not tell how many there are."""
    part = fedrdn(min_subjects=5).parts[0]

    with pytest.raises(RoundError, match="site A: fewer training subjects than min_subjects=5; .* not shared") as told:
        part.bind(view("A", [vectors(8)], subjects=[0, 0, 1, 1, 2, 2, 3, 3])).survey()
    assert "4" not in str(told.value)
    assert part.bind(view("A", [vectors(8)], subjects=[0, 1, 2, 3, 4, 4, 4, 4])).survey()


def test_noise_is_sent_and_the_exact_statistics_stay(view) -> None:
    """The report is drawn; evaluation and the exported model normalise by the exact statistics."""
    values = vectors()
    exact = measure([values], site="A").to_state()
    site = view("A", [values], subjects=list(range(40)))
    bound = fedrdn(clip=4, noise=1).parts[0].bind(site)

    sent = bound.survey()

    assert {key: value.shape for key, value in sent.items()} == {key: value.shape for key, value in exact.items()}
    assert not torch.equal(sent["mean"], exact["mean"])
    assert not torch.equal(sent["std"], exact["std"])
    by_hand = (values - exact["mean"].float()) / exact["std"].float()
    assert torch.equal(site.batch("normalise_eval", values), by_hand)
    assert torch.equal(bound.deploy().tensors["mean"], exact["mean"])


def test_a_rebuilt_site_sends_the_same_numbers_again(view) -> None:
    """Surveyed twice, kept or rebuilt, a site spends its privacy budget once."""
    part, values = fedrdn(clip=4, noise=1).parts[0], vectors()
    first = part.bind(view("A", [values], subjects=list(range(40))))
    sent = first.survey()
    rebuilt = part.bind(view("A", [values], subjects=list(range(40))))

    rebuilt.restore(first.private())

    for again in (first.survey(), rebuilt.survey()):
        assert all(torch.equal(again[key], sent[key]) for key in sent)
    other = part.bind(view("A", [values], subjects=list(range(40)))).survey()
    assert not torch.equal(other["mean"], sent["mean"])


def test_noise_without_named_subjects_warns(view) -> None:
    """Several windows of one person would go unnoticed."""
    with pytest.warns(UserWarning, match="site A: the training data name no subjects .* hides one example"):
        fedrdn(clip=4, noise=0.1).parts[0].bind(view("A", [vectors()])).survey()


def test_the_options_switched_off_change_no_bit(sources) -> None:
    """A minimum every site meets, and no noise: the same run."""
    settings = Settings(rounds=2)
    plain, asked = (simulate(parse_method(text), sources, settings) for text in ("fedrdn", "fedrdn:min_subjects=5"))

    assert all(torch.equal(plain.last[key], asked.last[key]) for key in plain.last)
    assert set(plain.last) == set(asked.last)


def test_noise_composes_with_fedbn_and_survives_rebuilt_clients(sources) -> None:
    """One site alive at a time: the table the server holds is still the one each site drew first."""
    method = parse_method("fedrdn:clip=2,noise=0.1+fedbn")

    outcome = simulate(method, sources, Settings(rounds=2), max_alive=1)

    for site in sources:
        for key in ("mean", "std"):
            told = outcome.cast.aux["fedrdn"][f"{site}/{key}"]
            assert torch.equal(told, outcome.private[site][f"part.fedrdn/sent/{key}"])
            assert not torch.equal(told, outcome.private[site][f"part.fedrdn/{key}"])


def test_the_unit_of_a_real_site_is_its_subject(sources) -> None:
    """Groups reach the part through the site: 9 training subjects of 4 windows each, in rows of one subject each."""
    client = Client(parse_method("fedrdn:clip=2,noise=0.1"), sources["A"], Settings(rounds=1))
    groups = client.site.example_groups()

    assert len(groups.unique()) == client.site.groups < client.site.samples
    assert set(groups.bincount().tolist()) == {4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_subjects": -1}, "method fedrdn: min_subjects=-1 must be a whole number, 0 or more"),
        ({"clip": 1.0}, r"clip=1\.0, noise=None: give both or neither"),
        ({"noise": 1.0}, r"clip=None, noise=1\.0: give both or neither"),
        ({"clip": 1.0, "noise": 0.0}, r"noise=0\.0 must be a finite number above 0"),
    ],
)
def test_wrong_privacy_options_are_refused(arguments, message) -> None:
    """The value seen and what to do."""
    with pytest.raises(ConfigError, match=message):
        fedrdn(**arguments)


def test_a_site_surveyed_twice_in_a_run_sends_the_same_numbers(sources, tmp_path) -> None:
    """The reply was lost, or the server restarted: no second draw, in the same process or in a new one."""
    method, request = parse_method("fedrdn:clip=2,noise=0.1+fedbn"), Request("survey", "study", "run")
    first = Resident(method, sources["A"], Settings(rounds=1), SiteStore(tmp_path))
    tables = [first.answer(request).message.aux["fedrdn"]["mean"] for _ in range(2)]
    first.store.close()
    again = Resident(method, sources["A"], Settings(rounds=1), SiteStore(tmp_path))

    tables.append(again.answer(request).message.aux["fedrdn"]["mean"])
    other = again.answer(Request("survey", "study", "another-run")).message.aux["fedrdn"]["mean"]

    assert torch.equal(tables[0], tables[1])
    assert torch.equal(tables[0], tables[2])
    assert not torch.equal(tables[0], other)
