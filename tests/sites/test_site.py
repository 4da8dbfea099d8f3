"""What a site refuses, and what it counts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from variants import Piece, bundle_with

from monai_fedskew.core.method import Method
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.site import Site


def _data(target: str, **more: Any) -> Any:
    """A change that gives the training loader another dataset, of single items."""

    def change(config: dict[str, Any]) -> None:
        config["train"]["dataset"] = {"_target_": target, "folder": "@dataset_dir"}
        del config["train"]["dataloader"]["collate_fn"]
        config.update(more)

    return change


def test_two_networks_are_refused(sources: dict[str, Any]) -> None:
    """Scores would be those of a network that was never trained."""
    one, two = sources["A"].open(), sources["A"].open()
    with pytest.raises(ConfigError, match="site A: trainer and evaluator hold two networks; give both `@network`"):
        Site("A", one.trainer, two.evaluator)


def test_persistent_workers_are_refused(sources: dict[str, Any]) -> None:
    """Worker processes would carry random state over rounds."""
    site = sources["A"].open()
    data = site.trainer.data_loader.dataset
    site.trainer.data_loader = DataLoader(data, batch_size=10, num_workers=1, persistent_workers=True)
    with pytest.raises(ConfigError, match="site A: persistent_workers"):
        Site("A", site.trainer, site.evaluator)


def test_no_training_data_are_refused(sources: dict[str, Any]) -> None:
    """An empty split is named before anything runs."""
    site = sources["A"].open()
    site.trainer.data_loader = DataLoader(torch.zeros(0, 15), batch_size=10)
    with pytest.raises(ConfigError, match="site A: no training examples"):
        Site("A", site.trainer, site.evaluator)


@pytest.mark.parametrize("batch_size", [7, 35])
def test_a_last_batch_of_one_with_batch_norm_is_refused(batch_size: int, sources: dict[str, Any]) -> None:
    """Case 32: 36 = 5 * 7 + 1 = 35 + 1; found before round 1, with what to do, instead of failing in the round."""
    source = replace(sources["A"], overrides={"batch_size": batch_size})
    with pytest.raises(ConfigError, match=rf"site A.*\b36\b.*\b{batch_size}\b.*") as caught:
        Client(parse_method("fedbn"), source, Settings(rounds=1))
    assert "drop_last" in str(caught.value)
    assert "ShuffledBatches" in str(caught.value)


def test_a_last_batch_of_one_is_dropped_or_merged_on_request(
    study: Path, tiny_bundle: Path, sources: dict[str, Any], tmp_path: Path
) -> None:
    """Case 32: drop_last makes 5 steps of 7, ShuffledBatches 5 with the last of 8; 36 samples are reported."""

    def drop(config: dict[str, Any]) -> None:
        config["batch_size"] = 7
        config["train"]["dataloader"]["drop_last"] = True

    def merge(config: dict[str, Any]) -> None:
        loader = config["train"]["dataloader"]
        del loader["batch_size"], loader["shuffle"]
        target = "monai_fedskew.data.batches.ShuffledBatches"
        loader["batch_sampler"] = {"_target_": target, "dataset": "@train#dataset", "batch_size": 7}

    for name, change in (("drop", drop), ("merge", merge)):
        bundle = bundle_with(tiny_bundle, tmp_path / name, change)
        client = Client(parse_method("fedavg"), BundleSite(bundle, "A", study / "A"), Settings(rounds=1))
        assert client.site.train(1, 1, keep_optimizer=False)[0] == 5
        assert client.survey().samples == 36


def test_a_last_batch_of_one_without_batch_norm_is_fine(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Only batch norm cannot train on one vector."""

    def change(config: dict[str, Any]) -> None:
        config.update(batch_size=7, norm="$torch.nn.LayerNorm(6)")

    source = BundleSite(bundle_with(tiny_bundle, tmp_path / "b", change), "A", study / "A")
    assert source.open().train(1, 1, keep_optimizer=False)[0] == 6


def test_statistics_of_random_data_need_clean_examples(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Augmented data without survey#dataset are refused when a part measures, and only then."""
    source = BundleSite(bundle_with(tiny_bundle, tmp_path / "b", _data("variants.Jittered")), "A", study / "A")
    with pytest.raises(ConfigError, match="site A: the training data has random transforms.*survey#dataset"):
        Client(Method("m", parts=(Piece("p", surveys=True),)), source, Settings(rounds=1)).survey()
    assert Client(parse_method("fedavg"), source, Settings(rounds=1)).survey().samples == 36


def test_statistics_are_those_of_the_clean_examples(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """With survey#dataset the sum over examples is that of the data as they lie on disk."""
    clean = {"dataset": {"_target_": "variants.Ungrouped", "folder": "@dataset_dir"}}
    bundle = bundle_with(tiny_bundle, tmp_path / "b", _data("variants.Jittered", survey=clean))
    client = Client(
        Method("m", parts=(Piece("p", surveys=True),)), BundleSite(bundle, "A", study / "A"), Settings(rounds=1)
    )
    plain = BundleSite(tiny_bundle, "A", study / "A").open()
    expected = torch.cat(list(plain.examples())).sum(0)
    torch.testing.assert_close(client.survey().aux["p"]["sum"], expected)


def test_weighing_by_subjects_needs_subjects(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """weights=groups with data that know no groups would quietly weigh by samples."""
    bundle = bundle_with(tiny_bundle, tmp_path / "b", _data("variants.Ungrouped"))
    sites = {site: BundleSite(bundle, site, study / site) for site in ("A", "B")}
    with pytest.raises(ConfigError, match="site A.*groups"):
        simulate(parse_method("fedavg"), sites, Settings(rounds=1, weights="groups", choose="last"))


def test_samples_are_windows_and_groups_are_subjects(sources: dict[str, Any]) -> None:
    """16 subjects of 4 windows: a fourth is the test, a fourth of the rest the validation: 9 subjects, 36 windows."""
    site = sources["A"].open()
    assert (site.samples, site.groups) == (36, 9)
    assert site.has_evaluation_data
    assert [len(batch) for batch in site.examples()] == [36]


def test_the_same_round_is_trained_alike_whatever_came_before(sources: dict[str, Any]) -> None:
    """Round 3 after round 2 and round 3 at once: same order of batches, same dropout, same learning rate."""
    weights = []
    for rounds in ((2, 3), (3,)):
        site = sources["A"].open()
        first = {key: value.clone() for key, value in site.model.state_dict().items()}
        for round in rounds:
            site.model.load_state_dict(first)
            site.seed(0, round)
            site.train(round, 1, keep_optimizer=False)
        weights.append(site.model[0].weight)
    assert torch.equal(*weights)


def test_a_trainer_that_died_says_so(sources: dict[str, Any]) -> None:
    """After an exception inside a round ignite makes no step and says nothing; we raise."""
    site = sources["A"].open()
    part = Piece("p", ("add",))

    def fail(output: Any) -> Any:
        raise RuntimeError("scanner on fire")

    site.add(part, "add", fail)
    with pytest.raises(RuntimeError, match="scanner on fire"):
        site.train(1, 1, keep_optimizer=False)
    with pytest.raises(RoundError, match="site A: no training step was made in round 2; rebuild the client"):
        site.train(2, 1, keep_optimizer=False)


def test_scores_come_with_the_key_metric_first(sources: dict[str, Any]) -> None:
    """The first metric is the one models are chosen by."""
    samples, metrics = sources["A"].open().evaluate(0)
    assert samples == 12
    assert next(iter(metrics)) == "accuracy"


def test_labelled_examples_are_the_examples_with_their_labels(sources: dict[str, Any]) -> None:
    """Same rows in the same order, whether the data set gives whole batches or single items."""
    site = sources["A"].open()
    data = site.trainer.data_loader.dataset
    images, labels = zip(*site.labelled_examples(), strict=True)
    assert torch.equal(torch.cat(images), torch.cat(list(site.examples())))
    assert torch.cat(labels).tolist() == [int(data[i]["label"]) for i in range(len(data))]


def test_a_stream_is_a_function_of_seed_site_round_and_part(sources: dict[str, Any]) -> None:
    """What other parts draw does not matter, nor what was drawn before."""
    site, part, other = sources["A"].open(), Piece("one"), Piece("two")
    draws = []
    for before in (0, 3):
        site.stream(part), site.stream(other)
        site.seed(1, 2)
        torch.rand(before, generator=site.stream(other))
        draws.append(torch.rand(2, generator=site.stream(part)).tolist())
    assert draws[0] == draws[1]
    assert torch.rand(2, generator=site.stream(other)).tolist() != draws[0]
