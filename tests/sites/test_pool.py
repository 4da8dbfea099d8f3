"""The pooled baseline: all sites' rows as one site's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler
from variants import bundle_with

from monai_fedskew.cli.execute import RunSpec, execute
from monai_fedskew.data.batches import ShuffledBatches
from monai_fedskew.data.synthetic import write_synthetic_study
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.pool import PooledSites
from monai_fedskew.sites.site import Site


@pytest.fixture
def pooled(sources: dict[str, Any]) -> Site:
    """All four sites in one."""
    return PooledSites(tuple(sources.values())).open()


def test_rows_come_in_the_order_asked(pooled: Site, sources: dict[str, Any]) -> None:
    """Rows of all sites, mixed and repeated, are those of the sites one after the other."""
    pool = pooled.trainer.data_loader.dataset
    rows = [source.open().trainer.data_loader.dataset.__getitems__(range(36)) for source in sources.values()]
    images, labels = (torch.cat([batch[key] for batch in rows]) for key in ("image", "label"))
    for order in ([100, 3, 36, 35, 3, 143, 0], list(range(143, -1, -1)), torch.tensor([72, 71])):
        batch = pool.__getitems__(order)
        index = torch.as_tensor(order)
        assert torch.equal(batch["image"], images[index])
        assert torch.equal(batch["label"], labels[index])
    assert torch.equal(pool[37]["image"], images[37])


def test_samples_and_subjects_are_sums_and_never_merge(pooled: Site, sources: dict[str, Any]) -> None:
    """Subject 0 of A is not subject 0 of B: 4 * 36 windows of 4 * 9 subjects."""
    assert (pooled.name, pooled.samples, pooled.groups) == ("pooled", 144, 36)
    groups = pooled.trainer.data_loader.dataset.groups
    assert not {*groups[:36]} & {*groups[36:72]}
    assert len(pooled.evaluator.data_loader.dataset) == 4 * 12


def test_batches_are_those_of_the_bundle(pooled: Site) -> None:
    """Batch size and shuffling stay, in training and validation."""
    train, validate = pooled.trainer.data_loader, pooled.evaluator.data_loader
    assert (train.batch_size, validate.batch_size) == (10, 50)
    assert isinstance(train.sampler, RandomSampler)
    assert isinstance(validate.sampler, SequentialSampler)
    assert pooled.train(1, 1, keep_optimizer=False)[0] == 15


@pytest.mark.parametrize(("asked", "drawn"), [(None, 144), (50, 200)])
def test_merged_last_batches_stay_merged(
    asked: int | None, drawn: int, study: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    """A bundle with ShuffledBatches pools into ShuffledBatches: 144 = 13 * 11 + 1 in 13 batches.

    An epoch is as long as those of the sites: 4 * 36 samples, or 4 * 50 where each draws 50.
    """

    def merge(config: dict[str, Any]) -> None:
        loader = config["train"]["dataloader"]
        del loader["batch_size"], loader["shuffle"]
        target = "monai_fedskew.data.batches.ShuffledBatches"
        more = {"dataset": "@train#dataset", "batch_size": 11, "samples_per_epoch": asked}
        loader["batch_sampler"] = {"_target_": target, **more}

    bundle = bundle_with(tiny_bundle, tmp_path / "b", merge)
    pooled = PooledSites(tuple(BundleSite(bundle, site, study / site) for site in "ABCD")).open()
    batches = pooled.trainer.data_loader.batch_sampler
    assert isinstance(batches, ShuffledBatches)
    assert (batches.batch_size, batches.shuffle, len(batches)) == (11, True, 13 if asked is None else 19)
    assert sum(len(batch) for batch in batches) == drawn


def test_single_items_are_collated_by_the_bundle(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Datasets of single items without subjects pool as well; then the pool knows no subjects either."""

    def single(config: dict[str, Any]) -> None:
        config["train"]["dataset"] = {"_target_": "variants.Ungrouped", "folder": "@dataset_dir"}
        del config["train"]["dataloader"]["collate_fn"]

    bundle = bundle_with(tiny_bundle, tmp_path / "b", single)
    pooled = PooledSites(tuple(BundleSite(bundle, site, study / site) for site in "AB")).open()
    assert pooled.samples == 72
    assert not hasattr(pooled.trainer.data_loader.dataset, "groups")
    assert pooled.train(1, 1, keep_optimizer=False)[0] == 8


def test_a_site_without_validation_data_is_no_hindrance(sources: dict[str, Any]) -> None:
    """What is there is pooled."""
    without = replace(sources["B"], overrides={"validation_fraction": 0.0})
    pooled = PooledSites((sources["A"], without)).open()
    assert pooled.samples == 36 + 48
    assert len(pooled.evaluator.data_loader.dataset) == 12


def test_a_sampler_of_the_bundles_own_cannot_be_carried_over(study: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """It was made for one site's rows; the error names it and what to use."""

    def weigh(config: dict[str, Any]) -> None:
        loader = config["train"]["dataloader"]
        del loader["shuffle"]
        loader["sampler"] = {"_target_": "torch.utils.data.WeightedRandomSampler", "num_samples": 36}
        loader["sampler"]["weights"] = "$[1.0] * len(@train#dataset)"

    bundle = bundle_with(tiny_bundle, tmp_path / "b", weigh)
    with pytest.raises(ConfigError, match="pooled: .*WeightedRandomSampler.*ShuffledBatches"):
        PooledSites(tuple(BundleSite(bundle, site, study / site) for site in "AB")).open()


@pytest.mark.parametrize("method", ["fedrdn+pooled", "sitenorm+pooled"])
def test_a_normalised_pool_runs_to_its_summary(method: str, tmp_path: Path) -> None:
    """Statistics are the pool's; the sites are scored one by one, with the same statistics."""
    data = write_synthetic_study(tmp_path / "data", sites=("EAST", "WEST"), n_regions=5)
    settings = Settings(rounds=1, choose="last")
    overrides = {"in_features": 10, "batch_size": 16}
    summary = execute(RunSpec(find_bundle("abide_connectome"), data, method, settings, tmp_path / "run", (), overrides))
    assert set(summary["sites"]) == {"EAST", "WEST"}
    assert summary["mean"]["window"]["accuracy"] is not None
    assert (tmp_path / "run" / "summary.json").is_file()
