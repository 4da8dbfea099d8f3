import pickle
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from monai_fedskew.data.abide.prepare import Options, prepare
from monai_fedskew.data.batches import ShuffledBatches, whole_batch
from monai_fedskew.data.datasets import ConnectomeDataset, SplitName
from monai_fedskew.data.manifest import Store, read_manifest
from monai_fedskew.data.synthetic import SITES, write_synthetic_abide, write_synthetic_study
from monai_fedskew.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared synthetic site: 20 subjects, 6 rows each, 66 edges."""
    return write_synthetic_study(tmp_path_factory.mktemp("study"), sites=("EAST",)) / "EAST"


def test_batch_keeps_the_given_order(site: Path) -> None:
    """Row k of a batch is the row of vectors.npy that index k stands for, and the label its subject's."""
    data, stored = ConnectomeDataset(site, "train"), np.load(site / "vectors.npy")
    manifest = read_manifest(site)
    index = [5, 0, 40, 5]
    batch = data.__getitems__(index)
    assert batch["image"].dtype == torch.float32
    assert batch["label"].dtype == torch.int64
    np.testing.assert_array_equal(batch["image"].numpy(), stored[data.rows[index]])
    np.testing.assert_array_equal(batch["label"].numpy(), manifest.labels[data.rows[index]])


def test_one_sample_is_a_row_of_the_batch(site: Path) -> None:
    """Reading one sample and reading a batch give the same values, and an index beyond the end is an error."""
    data = ConnectomeDataset(site, "test")
    batch = data.__getitems__(torch.arange(len(data)))
    assert all(torch.equal(data[i]["image"], batch["image"][i]) for i in range(len(data)))
    assert data[0]["label"].shape == ()
    with pytest.raises(IndexError):
        data[len(data)]


def test_splits_share_no_subject(site: Path) -> None:
    """Train, validation and test together are all rows, and no subject is in two of them."""
    parts = {name: ConnectomeDataset(site, name, fold=2, validation_fraction=0.2) for name in get_args(SplitName)}
    rows = [parts[name].rows for name in ("train", "validation", "test")]
    assert sorted(np.concatenate(rows)) == parts["all"].rows.tolist() == list(range(120))
    subjects = [set(parts[name].subject_ids) for name in ("train", "validation", "test")]
    assert sum(map(len, subjects)) == len(set.union(*subjects)) == 20


def test_rows_belong_to_their_subject(site: Path) -> None:
    """Each sample's subject is the one whose rows the manifest says it is among."""
    data = ConnectomeDataset(site, "train")
    subjects = {subject.id: subject for subject in read_manifest(site).subjects}
    for row, name in zip(data.rows, data.subject_ids, strict=True):
        assert subjects[name].start <= row < subjects[name].stop


def test_no_validation_is_an_empty_dataset(site: Path) -> None:
    """validation_fraction=0 gives an empty validation split and loader, not an error."""
    data = ConnectomeDataset(site, "validation", validation_fraction=0.0)
    assert len(data) == 0
    loader = DataLoader(data, batch_sampler=ShuffledBatches(data, 8), collate_fn=whole_batch)
    assert list(loader) == []


def test_workers_read_the_same_rows(site: Path) -> None:
    """Spawned worker processes open the file themselves and give what the main process gives."""
    data = ConnectomeDataset(site, "test")
    assert len(data[0]["image"]) == data.n_features
    loaders = [
        DataLoader(
            data, batch_sampler=ShuffledBatches(data, 8, shuffle=False), collate_fn=whole_batch, num_workers=n,
            multiprocessing_context="spawn" if n else None,
        )
        for n in (0, 1)
    ]  # fmt: skip
    for own, theirs in zip(*loaders, strict=True):
        assert torch.equal(own["image"], theirs["image"])


def test_pickle_holds_no_vectors(site: Path) -> None:
    """What travels to a worker is the folder, not the data."""
    data = ConnectomeDataset(site, "all")
    size = len(pickle.dumps(data))
    data.__getitems__([0])
    assert len(pickle.dumps(data)) == size


def test_writing_to_a_batch_leaves_the_file_alone(site: Path) -> None:
    """A transform in place changes the batch only."""
    data, before = ConnectomeDataset(site, "all"), (site / "vectors.npy").read_bytes()
    data.__getitems__([0, 1])["image"].zero_()
    assert (site / "vectors.npy").read_bytes() == before
    assert data[0]["image"].abs().sum() > 0


def test_windows_on_the_fly_are_the_stored_ones(tmp_path: Path) -> None:
    """Data prepared with store="series" give the very rows that store="vectors" holds."""
    write_synthetic_abide(tmp_path / "raw", scanners=SITES[:1], subjects=2)
    stores: tuple[Store, Store] = ("vectors", "series")
    for store in stores:
        prepare(tmp_path / "raw", tmp_path / store, Options(store=store))
    stored, computed = (ConnectomeDataset(tmp_path / store / "NORTH", "all") for store in stores)
    index = [100, 3, 3, 60]
    assert torch.equal(stored.__getitems__(index)["image"], computed.__getitems__(index)["image"])
    assert torch.equal(stored.__getitems__(index)["label"], computed.__getitems__(index)["label"])


def test_missing_folder_is_named_absolutely(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37: the error shows the resolved path, whatever the working directory."""
    monkeypatch.chdir(site)
    with pytest.raises(DataError, match=rf"no prepared site at {site}/data/NYU"):
        ConnectomeDataset("data/NYU", "train")


def test_unknown_split_and_feature_count_are_refused(site: Path) -> None:
    """Wrong options are errors that name the value and what may stand there."""
    with pytest.raises(ConfigError, match="split is 'val'; it must be one of train, validation, test, all"):
        ConnectomeDataset(site, "val")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="EAST: .* has 66 features, the network takes 5995"):
        ConnectomeDataset(site, "train", expect_features=5995)
