"""The rows of all sites at made-up clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from laws import assert_same
from variants import bundle_with

from monai_fedskew.data.partition import Partition
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.partition import DealtSite, deal_sites

FIVE = Partition("dirichlet", 5, 1.0)


@pytest.fixture
def clients(sources: dict[str, Any]) -> dict[str, DealtSite]:
    """Four sites of 36 training, 12 validation and 16 test rows at five clients."""
    return deal_sites(FIVE, tuple(sources.values()), seed=0)


def _single(study: Path, bundle: Path, tmp_path: Path, target: str) -> tuple[BundleSite, ...]:
    def single(config: dict[str, Any]) -> None:
        config["train"]["dataset"] = {"_target_": target, "folder": "@dataset_dir"}
        config["train"]["dataloader"] |= {"drop_last": True}
        del config["train"]["dataloader"]["collate_fn"]

    changed = bundle_with(bundle, tmp_path / "b", single)
    return tuple(BundleSite(changed, site, study / site) for site in "AB")


def test_every_row_is_at_one_client_in_its_own_split(clients: dict[str, DealtSite], sources: dict[str, Any]) -> None:
    """4 * 36, 4 * 12 and 4 * 16 rows, those of the sites; no subject at two clients nor in two splits."""
    opened = [client.open() for client in clients.values()]
    tested = [client.open(split="test").evaluator.data_loader.dataset for client in clients.values()]
    trained = [site.trainer.data_loader.dataset for site in opened]
    validated = [site.evaluator.data_loader.dataset for site in opened]
    assert [sum(map(len, split)) for split in (trained, validated, tested)] == [144, 48, 64]
    subjects = [set(share.subject_ids) for split in (trained, validated, tested) for share in split if len(share)]
    assert sum(map(len, subjects)) == len(set.union(*subjects)) == 4 * 16
    images = torch.cat([share.__getitems__(range(len(share)))["image"] for share in trained])
    own = torch.cat(
        [source.open().trainer.data_loader.dataset.__getitems__(range(36))["image"] for source in sources.values()]
    )
    assert torch.equal(images.sum(1).sort().values, own.sum(1).sort().values)


def test_a_client_counts_and_names_what_it_holds(clients: dict[str, DealtSite]) -> None:
    """Names in order, samples are windows, subjects have four each, labels add up."""
    assert list(clients) == ["client01", "client02", "client03", "client04", "client05"]
    about = [client.about for client in clients.values()]
    assert sum(one["samples"] for one in about) == 144
    assert all(one["samples"] == sum(one["labels"]) == 4 * one["subjects"] for one in about)
    site = clients["client02"].open()
    assert (site.name, site.samples, site.groups) == ("client02", about[1]["samples"], about[1]["subjects"])


def test_rows_are_not_copied(clients: dict[str, DealtSite]) -> None:
    """All clients read the same datasets, which map the same files."""
    pools = {id(client.open().trainer.data_loader.dataset.pool) for client in clients.values()}
    assert len(pools) == 1


def test_what_is_scored_is_dealt_evenly(sources: dict[str, Any]) -> None:
    """16 test subjects, 8 of each class, at 4 clients: 2 and 2 each, 4 windows a subject; whatever the alpha."""
    clients = deal_sites(Partition("dirichlet", 4, 0.3), tuple(sources.values()), seed=0)
    for client in clients.values():
        share = client.open(split="test").evaluator.data_loader.dataset
        assert np.bincount(share.labels).tolist() == [8, 8]


def test_the_bundles_references_are_to_the_clients_rows(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """A loss that weighs classes by `@train#dataset.labels` weighs those of the client, not of a site."""

    def weigh(config: dict[str, Any]) -> None:
        target = "monai_fedskew.data.batches.class_weights"
        config["weights"] = {"_target_": target, "labels": "$@train#dataset.labels", "n_classes": 2}
        config["loss"]["weight"] = "$torch.as_tensor(@weights)"

    bundle = bundle_with(tiny_bundle, tmp_path / "b", weigh)
    sources = tuple(BundleSite(bundle, site, study / site) for site in "ABCD")
    for client in deal_sites(Partition("dirichlet", 3, 0.5), sources, seed=1).values():
        counts = np.array(client.about["labels"])
        assert client.open().loss_function.weight.tolist() == pytest.approx((counts.sum() / (2 * counts)).tolist())


def test_a_seed_deals_otherwise(sources: dict[str, Any], clients: dict[str, DealtSite]) -> None:
    """The same seed the same clients, another seed others."""
    again = deal_sites(FIVE, tuple(sources.values()), seed=0)
    other = deal_sites(FIVE, tuple(sources.values()), seed=1)
    told = [[client.about for client in found.values()] for found in (clients, again, other)]
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize("method", ["fedavg", "fedrdn+fedbn", "local"])
def test_rebuilt_clients_equal_kept_ones(method: str, clients: dict[str, DealtSite]) -> None:
    """One alive at a time gives what keeping all gives, bit for bit, although they share their datasets."""
    settings = Settings(rounds=2, fraction=0.6, choose="last")
    kept = simulate(parse_method(method), clients, settings)
    assert_same(kept, simulate(parse_method(method), clients, settings, max_alive=1))


def test_rows_without_subjects_are_dealt_one_by_one(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Single items that tell no labels are read for them; there are no subjects to keep together."""
    sources = _single(study, tiny_bundle, tmp_path, "variants.Ungrouped")
    clients = deal_sites(Partition("homogeneous", 3), sources, seed=0)
    about = [client.about for client in clients.values()]
    assert [(one["samples"], one["subjects"]) for one in about] == [(24, None)] * 3
    assert all(max(counts) - min(counts) <= 1 for counts in zip(*(one["labels"] for one in about), strict=True))
    site = clients["client01"].open()
    assert site.train(1, 1, keep_optimizer=False)[0] == 2
    assert sum(len(batch) for batch in site.examples()) == 24


def test_random_transforms_are_the_clients_own(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Case of shared augmenting datasets: rebuilt equals kept, as each fit sets their random state."""
    sources = _single(study, tiny_bundle, tmp_path, "variants.Jittered")
    clients = deal_sites(Partition("homogeneous", 3), sources, seed=0)
    settings, method = Settings(rounds=2, choose="last"), parse_method("fedavg")
    kept = simulate(method, clients, settings)
    assert_same(kept, simulate(method, clients, settings, max_alive=1))


def test_clean_examples_are_dealt_with_the_training_rows(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """A `survey#dataset` of its own gives the same rows; one of other length is refused."""

    def survey(config: dict[str, Any]) -> None:
        config["survey"] = {"dataset": dict(config["train"]["dataset"])}

    bundle = bundle_with(tiny_bundle, tmp_path / "b", survey)
    sources = tuple(BundleSite(bundle, site, study / site) for site in "AB")
    site = deal_sites(Partition("homogeneous", 3), sources, seed=0)["client03"].open()
    rows = site.trainer.data_loader.dataset
    assert torch.equal(torch.cat(list(site.examples())), rows.__getitems__(range(len(rows)))["image"])
    shorter = [BundleSite(bundle, s.site, s.data, {"survey#dataset#split": "validation"}) for s in sources]
    with pytest.raises(ConfigError, match="survey#dataset has 24 rows, train#dataset 72"):
        deal_sites(Partition("homogeneous", 3), shorter, seed=0)


def test_too_many_clients_are_refused_by_split(sources: dict[str, Any]) -> None:
    """16 test subjects do not score 20 clients; validation may be short, which only a choice of the best refuses."""
    with pytest.raises(DataError, match="partition homogeneous, test rows: 16 subjects cannot be dealt to 20 clients"):
        deal_sites(Partition("homogeneous", 20), tuple(sources.values()), seed=0)
    clients = deal_sites(Partition("homogeneous", 14), tuple(sources.values()), seed=0)
    scored = [client.open().has_evaluation_data for client in clients.values()]
    assert (scored.count(True), scored.count(False)) == (12, 2)


def test_clients_of_a_site_hold_rows_of_that_site_only(sources: dict[str, Any]) -> None:
    """9 training subjects of 4 windows in three parts are 12 rows each; every row of a site at one of its clients."""
    clients = deal_sites(Partition("by-site", 3, parts=3), [sources["A"], sources["B"]], seed=0)
    assert list(clients) == ["A-01", "A-02", "A-03", "B-01", "B-02", "B-03"]
    for site in "AB":
        whole = sources[site].open()
        for split, own in (("train", whole.trainer), ("train", whole.evaluator)):
            mine = [client.open(split=split) for name, client in clients.items() if name.startswith(site)]
            loaders = [(one.trainer if own is whole.trainer else one.evaluator).data_loader for one in mine]
            rows = [loader.dataset.rows for loader in loaders]
            assert sorted(np.concatenate(rows)) == own.data_loader.dataset.rows.tolist()
            assert {subject.split("/")[0] for loader in loaders for subject in loader.dataset.subject_ids} == {site}
        subjects = [
            set(client.train["train#dataset"].subject_ids) for name, client in clients.items() if name[0] == site
        ]
        assert [len(one) for one in subjects] == [3, 3, 3]
        assert len(set.union(*subjects)) == 9
    assert clients["B-02"].open().name == "B-02"


def test_a_part_is_the_same_however_many_take_part_and_all_test_rows_are_scored(sources: dict[str, Any]) -> None:
    """One of three parts of A holds what it holds beside the others; alone it is scored on all 16 test rows of A."""
    one = deal_sites(Partition("by-site", 1, parts=3), [sources["A"]], seed=0)
    three = deal_sites(Partition("by-site", 3, parts=3), [sources["A"], sources["B"]], seed=0)
    assert list(one) == ["A-01"]
    assert one["A-01"].train["train#dataset"].rows.tolist() == three["A-01"].train["train#dataset"].rows.tolist()
    tested = one["A-01"].open(split="test").evaluator.data_loader.dataset
    assert tested.rows.tolist() == sources["A"].open(split="test").evaluator.data_loader.dataset.rows.tolist()


def test_clients_of_a_site_keep_its_overlay(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """What configs/site_a.yaml changes at A holds at its clients and not at those of B."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", lambda config: None)
    (bundle / "configs" / "site_a.yaml").write_text("optimizer#lr: 0.125\n")
    sources = [BundleSite(bundle, site, study / site) for site in "AB"]
    clients = deal_sites(Partition("by-site", 2, parts=2), sources, seed=0)
    rates = {name: client.open().optimizer.param_groups[0]["lr"] for name, client in clients.items()}
    assert rates["A-01"] == rates["A-02"] == 0.125 != rates["B-01"] == rates["B-02"]


def test_a_site_with_too_few_subjects_for_its_parts_is_named(sources: dict[str, Any]) -> None:
    """4 test subjects do not score 5 clients."""
    with pytest.raises(
        DataError, match="site A: partition by-site:parts=5, test rows: 4 subjects cannot be dealt to 5"
    ):
        deal_sites(Partition("by-site", 5, parts=5), [sources["A"]], seed=0)


def test_a_bundle_that_reads_other_rows_is_refused(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Its loader would train every client on one site's rows."""

    def other(config: dict[str, Any]) -> None:
        config["train"]["dataloader"]["dataset"] = dict(config["train"]["dataset"])

    bundle = bundle_with(tiny_bundle, tmp_path / "b", other)
    clients = deal_sites(Partition("homogeneous", 2), [BundleSite(bundle, s, study / s) for s in "AB"], seed=0)
    with pytest.raises(ConfigError, match="a loader does not read `@train#dataset`"):
        clients["client01"].open()
