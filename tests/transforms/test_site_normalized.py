import nibabel
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import CacheDataset, DataLoader, Dataset, MetaTensor, PersistentDataset, decollate_batch
from monai.data.utils import pickle_hashing
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandFlipd,
    ScaleIntensityd,
    Spacingd,
    Transform,
)
from monai.transforms.traits import RandomizableTrait
from monai.utils import set_determinism
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data._utils import worker as torch_worker

from monai_fedskew.transforms import (
    RandSiteNormalize,
    RandSiteNormalized,
    SiteNormalized,
    SiteStatistics,
    measure_files,
    read_table,
    write_statistics,
)

SITES = [SiteStatistics(f"s{k}", (100.0 * k,), (1.0,), "image", 1, 10) for k in range(8)]  # case 19: site = -value/100
ZEROS = [{"image": torch.zeros(1, 2, 2), "label": k} for k in range(8)]


def drawn(item) -> int:
    """Which site an image of zeros was normalised by."""
    return round(-float(item["image"].unique()) / 100)


class Counted(Transform):
    """A deterministic step that notes how often it ran."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data):
        """Count and pass on."""
        self.calls += 1
        return data


def test_keys_are_normalised_and_nothing_else() -> None:
    """One draw for all keys; the dictionary that was given stays."""
    normalise, data = (
        RandSiteNormalized(["t1", "t2"], SITES, own_site="s0"),
        {key: torch.zeros(1, 1) for key in ("t1", "t2")},
    )
    normalise.set_random_state(0)

    found = [normalise({**data, "label": 1}) for _ in range(10)]

    assert all(torch.equal(item["t1"], item["t2"]) and item["label"] == 1 for item in found)
    assert len({float(item["t1"]) for item in found}) > 1
    assert float(data["t1"]) == 0
    assert float(SiteNormalized("t1", SITES[2])(data)["t1"]) == -200.0


def test_absent_keys() -> None:
    """An error unless allowed."""
    for make in (
        lambda **allowed: SiteNormalized("image", SITES[0], **allowed),
        lambda **allowed: RandSiteNormalized("image", SITES, own_site="s0", **allowed),
    ):
        with pytest.raises(KeyError, match="image"):
            make()({"label": 1})
        assert make(allow_missing_keys=True)({"label": 1}) == {"label": 1}


def test_draws_are_those_of_the_array_form() -> None:
    """One seed, one sequence."""
    array, dictionary = RandSiteNormalize(SITES, own_site="s0"), RandSiteNormalized("image", SITES, own_site="s0")
    array.set_random_state(4)
    dictionary.set_random_state(4)

    for _ in range(10):
        assert torch.equal(array(torch.zeros(1, 1)), dictionary({"image": torch.zeros(1, 1)})["image"])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # the case has four, whatever the machine
@pytest.mark.parametrize("loader", [TorchLoader, DataLoader])
def test_workers_and_epochs_do_not_repeat_each_other(loader) -> None:
    """Case 19, forked: 4 workers, 2 epochs of 8 images; all of it repeats when the seed is set again."""
    normalise = RandSiteNormalized("image", SITES, own_site="s0")
    data = Dataset(ZEROS, Compose([normalise]))

    def epochs():
        torch.manual_seed(0)
        data.transform.set_random_state(0)
        batches = loader(data, batch_size=1, num_workers=4, multiprocessing_context="fork")
        return [[drawn(batch) for batch in batches] for _ in range(2)]

    first, second = epochs()

    assert len({*first, *second}) >= 4
    assert len(set(first[:4])) > 1 or len(set(second[:4])) > 1
    assert first != second
    assert [first, second] == epochs()


def test_a_spawned_worker_draws_a_stream_of_its_own(monkeypatch) -> None:
    """Case 19: what a copy draws where torch says that it is a worker of this seed; not what the main process draws.

    One worker, since each imports torch and MONAI anew; test_site_normalize has more of them without processes.
    """
    normalise = RandSiteNormalized("image", SITES, own_site="s0").set_random_state(0)
    torch.manual_seed(1)
    seed = int(torch.empty((), dtype=torch.int64).random_())  # as torch draws the first worker's
    torch.manual_seed(1)

    (found,) = TorchLoader(
        Dataset(ZEROS, normalise), batch_size=8, num_workers=1, multiprocessing_context="spawn", collate_fn=list
    )

    main = [drawn(normalise(item)) for item in ZEROS]
    monkeypatch.setattr(torch_worker, "_worker_info", torch_worker.WorkerInfo(0, 1, seed, None))
    worker = [drawn(normalise(item)) for item in ZEROS]
    assert [drawn(item) for item in found] == worker != main


def test_set_determinism_repeats_what_workers_draw() -> None:
    """MONAI's one call is enough, without a seed for the transform."""
    data = Dataset(ZEROS, RandSiteNormalized("image", SITES, own_site="s0"))

    def epoch():
        set_determinism(5)
        return [drawn(batch) for batch in TorchLoader(data, num_workers=2, multiprocessing_context="fork")]

    try:
        assert epoch() == epoch()
    finally:
        set_determinism(None)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_caches_hold_what_comes_before_the_draw(kind, tmp_path) -> None:
    """Case 20: over 10 epochs each of 3 items sees several of 4 sites; what comes before ran once an item."""
    counted, normalise = Counted(), RandSiteNormalized("image", SITES[:4], own_site="s0").set_random_state(0)
    assert isinstance(normalise, RandomizableTrait)
    steps = Compose([counted, ScaleIntensityd("image", minv=0.0, maxv=0.0), normalise])
    if kind == "memory":
        data = CacheDataset(ZEROS[:3], steps, num_workers=None, progress=False)
    else:
        data = PersistentDataset(ZEROS[:3], steps, cache_dir=tmp_path)

    epochs = [[drawn(item) for item in data] for _ in range(10)]

    assert all(len(set(of_one_item)) >= 2 for of_one_item in zip(*epochs, strict=True))
    assert counted.calls == 3


def test_a_cache_on_disk_is_keyed_by_the_statistics(tmp_path) -> None:
    """With MONAI's pickle_hashing: other statistics are another entry; the same ones, read anew or used, are not."""
    file = tmp_path / "s1.json"
    write_statistics(file, SITES[1])
    used = SiteNormalized("image", file)
    used(ZEROS[0])

    assert pickle_hashing([used]) == pickle_hashing([SiteNormalized("image", file)])
    assert pickle_hashing([used]) != pickle_hashing([SiteNormalized("image", SITES[2])])
    for statistics, expected in ((SITES[1], -100.0), (SITES[2], -200.0)):
        data = PersistentDataset(
            ZEROS[:1], SiteNormalized("image", statistics), cache_dir=tmp_path, hash_transform=pickle_hashing
        )
        assert float(data[0]["image"].unique()) == float(data[0]["image"].unique()) == expected


def test_a_pipeline_is_inverted_by_what_was_drawn() -> None:
    """Compose, a batch and its images again: flips and normalisation are undone together."""
    steps = Compose(
        [
            RandFlipd("image", prob=0.5),
            RandSiteNormalized("image", SITES, own_site="s0"),
            SiteNormalized("image", SITES[3]),
        ]
    )
    steps.set_random_state(0)
    images = [torch.arange(4.0).view(1, 2, 2) + 10 * k for k in range(4)]
    (batch,) = TorchLoader(
        [steps({"image": image}) for image in images], batch_size=4, collate_fn=DataLoader([]).collate_fn
    )

    back = [steps.inverse(item)["image"] for item in decollate_batch(batch)]

    assert torch.allclose(torch.stack(back).as_tensor(), torch.stack(images), atol=1e-4)


def test_lazy_pipelines_resample_before_they_normalise() -> None:
    """Of a constant image nothing else may come out than of a pipeline that is not lazy."""
    steps = [Spacingd("image", pixdim=(2.0, 2.0), mode="nearest"), SiteNormalized("image", SITES[1])]
    image = {"image": MetaTensor(torch.arange(16.0).view(1, 4, 4), affine=torch.eye(4))}

    lazy, plain = (Compose(steps, lazy=is_lazy)(image)["image"] for is_lazy in (True, False))

    assert torch.equal(lazy, plain)
    assert lazy.pending_operations == []


def test_a_bundle_names_it(tmp_path) -> None:
    """By text alone, as a site's configuration does."""
    files = [tmp_path / f"{site.site}.json" for site in SITES[:2]]
    for file, site in zip(files, SITES, strict=False):
        write_statistics(file, site)
    config = {
        "_target_": "monai_fedskew.transforms.RandSiteNormalized",
        "keys": "image",
        "statistics": [str(file) for file in files],
        "own_site": "s1",
    }

    normalise = ConfigParser({"t": config}).get_parsed_content("t")

    assert drawn(normalise(ZEROS[0])) in (0, 1)


@pytest.mark.filterwarnings("ignore:NvImgCodec")  # MONAI 1.6.1 warns so where pydicom is installed, whatever is read
def test_plain_monai_pipeline_of_the_readme(tmp_path) -> None:
    """Two sites' folders of NIfTI, measured, written and drawn from: no federation in sight."""
    for k, name in enumerate(("charite", "ukm")):
        (tmp_path / name).mkdir()
        for n in range(2):
            values = np.random.default_rng(n).normal(100 + 400 * k, 10 + 20 * k, (8, 8, 6 + n))
            nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), np.eye(4)), tmp_path / name / f"{n}.nii.gz")
    for folder in (tmp_path / "charite", tmp_path / "ukm"):
        found = measure_files(sorted(folder.glob("*.nii.gz")), site=folder.name, region="nonzero")
        write_statistics(tmp_path / f"{folder.name}.json", found)
    table = read_table(tmp_path.glob("*.json"), own="ukm")
    load = [LoadImaged("image"), EnsureChannelFirstd("image")]
    train = Compose([*load, RandSiteNormalized("image", table, own_site="ukm")]).set_random_state(0)
    data = [{"image": file} for file in sorted((tmp_path / "ukm").glob("*.nii.gz"))]

    cached = CacheDataset(data, train, num_workers=None, progress=False)
    means = [float(item["image"].mean()) for _ in range(5) for item in cached]
    own = [
        float(item["image"].mean()) for item in Dataset(data, Compose([*load, SiteNormalized("image", table["ukm"])]))
    ]

    # by the own pair about 0; by the other site's (500 - 100) / 10 = 40
    assert {round(mean / 40) for mean in means} == {0, 1}
    assert own == pytest.approx([0, 0], abs=0.3)
