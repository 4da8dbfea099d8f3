"""Images that stay files: each cache gives what no cache gives, is never stale, and stays within its limit."""

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    EnsureTyped,
    LoadImaged,
    MapTransform,
    Orientationd,
    RandFlipd,
    ScaleIntensityd,
    Spacingd,
)

from monai_fedskew.data.image_sites import write_file_site
from monai_fedskew.data.manifest import Subject
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.image_dataset import Cache, SiteImages
from monai_fedskew.transforms.site_normalized import RandSiteNormalized, SiteNormalized
from monai_fedskew.transforms.statistics import SiteStatistics

BOTH = ["image", "label"]
COUNTED: list[str] = []


class Counted(MapTransform):
    """Note each image that passes."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Pass the data through."""
        COUNTED.append(data["subject"])
        return data


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Four volumes of 6 x 5 x 4 voxels, stored from the left to the right, with their masks."""
    subjects, sources = [], {}
    for k in range(4):
        values = np.random.default_rng(k).normal(100, 20, (6, 5, 4)).astype(np.float32)
        for name, array in ((f"{k}.nii", values), (f"{k}_mask.nii", (values > 100).astype(np.uint8))):
            nib.save(nib.Nifti1Image(array, np.diag([-2.0, 2.0, 3.0, 1.0])), tmp_path / name)
            sources[f"../{name}"] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        subjects.append(Subject(f"s{k}", 0, k, k + 1, files=(f"../{k}.nii",), mask=f"../{k}_mask.nii"))
    names = ["background", "bright"]
    return write_file_site(tmp_path / "HK", subjects, label_names=names, shape=(1, 6, 5, 4), sources=sources)


def _read() -> list[Callable[..., Any]]:
    return [
        LoadImaged(BOTH, reader="NibabelReader", image_only=True, ensure_channel_first=True),
        Counted(BOTH),
        Orientationd(BOTH, axcodes="RAS", labels=None),
        Spacingd(BOTH, pixdim=[2.0, 2.0, 1.5], mode=["bilinear", "nearest"]),
    ]


def _statistics(mean: float) -> SiteStatistics:
    return SiteStatistics("HK", (mean,), (1.0,), "image", 1, 20)


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_cache_gives_what_no_cache_gives(site: Path, cache: Cache, tmp_path: Path) -> None:
    """Tensors, meta data and the random transforms' draws are equal, and the fixed part runs once an image."""
    chain = [*_read(), RandFlipd(BOTH, prob=0.5, spatial_axis=0)]
    plain = SiteImages(site, "all", chain)
    kept = SiteImages(site, "all", chain, cache=cache, cache_dir=tmp_path / "cache")
    COUNTED.clear()
    for _ in range(3):
        for index in range(4):
            chain[-1].set_random_state(index)
            got = kept[index]
            chain[-1].set_random_state(index)
            expected = plain[index]
            assert {k: v for k, v in got.items() if k not in BOTH} == {
                k: v for k, v in expected.items() if k not in BOTH
            }
            for key in BOTH:
                assert torch.equal(got[key].as_tensor(), expected[key].as_tensor())
                assert torch.equal(got[key].affine, expected[key].affine)
            got["image"].fill_(-1)  # what is kept must not change with what was handed out
    assert len(COUNTED) == 4 * (3 + 1)


def test_what_comes_from_disk_can_be_inverted(site: Path, tmp_path: Path) -> None:
    """Orientation and spacing are undone from the file's record alone, by transforms of another process."""
    for _ in range(2):
        chain = _read()
        one = SiteImages(site, "all", chain, cache="disk", cache_dir=tmp_path / "cache")[0]
    assert isinstance(one["label"], MetaTensor)
    back = Compose(chain).inverse(one)["label"]
    stored = nib.load(site.parent / "0_mask.nii")
    assert np.array_equal(back[0].numpy(), stored.get_fdata())
    assert np.allclose(back.affine, stored.affine)


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_case_20_every_pass_draws_a_site_anew(site: Path, cache: Cache, tmp_path: Path) -> None:
    """FedRDN's draw is behind the cache: each image sees at least two of four sites in ten passes."""
    table = [SiteStatistics(f"s{k}", (100.0 * k,), (1.0,), "image", 1, 20) for k in range(4)]
    draw = RandSiteNormalized("image", table, own_site="s0").set_random_state(0)
    kept = SiteImages(site, "all", [*_read(), draw], cache=cache, cache_dir=tmp_path / "cache")
    COUNTED.clear()
    means = [[round(float(kept[index]["image"].mean()), -2) for _ in range(10)] for index in range(4)]
    assert sorted(COUNTED) == ["s0", "s1", "s2", "s3"]
    assert all(len(set(of_image)) >= 2 for of_image in means)


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_changed_statistics_and_transforms_are_never_stale(site: Path, cache: Cache, tmp_path: Path) -> None:
    """Another number in the statistics, another parameter, another order: another result from the same folder."""
    for chain in (
        [*_read(), SiteNormalized("image", _statistics(100.0))],
        [*_read(), SiteNormalized("image", _statistics(50.0))],
        [*_read(), ScaleIntensityd("image", 0.0, 1.0)],
        [*_read(), ScaleIntensityd("image", 0.0, 2.0)],
        [*_read(), ScaleIntensityd("image", 0.0, 2.0), SiteNormalized("image", _statistics(50.0))],
        [*_read(), SiteNormalized("image", _statistics(50.0)), ScaleIntensityd("image", 0.0, 2.0)],
    ):
        expected = SiteImages(site, "all", chain)[1]["image"]
        for _ in range(2):
            kept = SiteImages(site, "all", chain, cache=cache, cache_dir=tmp_path / "cache")
            assert torch.equal(kept[1]["image"], expected)


def test_a_parameter_set_anew_counts_from_the_next_pass(site: Path) -> None:
    """A transform of a dataset that is open is changed in place; the pass after sees it."""
    scale = ScaleIntensityd("image", 0.0, 1.0)
    kept = SiteImages(site, "all", [*_read(), scale], cache="memory")
    assert [float(kept[k]["image"].max()) for k in range(4)] == [1.0] * 4
    scale.scaler.maxv = 3.0
    assert [float(kept[k]["image"].max()) for k in range(4)] == [3.0] * 4


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_a_file_written_anew_is_read_anew(site: Path, cache: Cache, tmp_path: Path) -> None:
    """Size and time of change tell, even where nobody prepared the images again."""
    kept = SiteImages(site, "all", _read(), cache=cache, cache_dir=tmp_path / "cache")
    before = kept[2]["image"].clone()
    path = site.parent / "2.nii"
    nib.save(nib.Nifti1Image(np.zeros((6, 5, 4), np.float32), np.diag([-2.0, 2.0, 3.0, 1.0])), path)
    os.utime(path, ns=(0, 0))
    assert not torch.equal(kept[2]["image"], before)
    assert not kept[2]["image"].any()


def test_memory_stays_within_its_limit(site: Path) -> None:
    """6 x 5 x 7 voxels of 4 bytes, image and label: 1680 bytes an item, of which 5000 bytes hold two."""
    kept = SiteImages(site, "all", _read(), cache="memory", cache_limit_mb=5000 / 2**20)
    COUNTED.clear()
    for _ in range(3):
        assert [kept[k]["subject"] for k in range(4)] == ["s0", "s1", "s2", "s3"]
    assert [COUNTED.count(f"s{k}") for k in range(4)] == [1, 1, 3, 3]


def test_old_entries_on_disk_make_room(site: Path, tmp_path: Path) -> None:
    """Chains of an earlier run go when room is needed, those in use stay, and the limit holds."""
    folder, limit = tmp_path / "cache", 0.08  # room for five images of about 14 KB
    for mean in range(5):
        chain = [*_read(), SiteNormalized("image", _statistics(float(mean)))]
        kept = SiteImages(site, "all", chain, cache="disk", cache_dir=folder, cache_limit_mb=limit)
        assert [len(kept[k]["image"]) for k in range(4)] == [1] * 4
        assert sum(path.stat().st_size for path in folder.glob("*/*")) <= limit * 2**20
    assert len(list(folder.iterdir())) < 5
    COUNTED.clear()
    assert [len(kept[k]["image"]) for k in range(4)] == [1] * 4
    assert COUNTED == []


def test_a_damaged_entry_is_made_again(site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half a file, as a full disk leaves it, is told of and replaced."""
    options: dict[str, Any] = {"cache": "disk", "cache_dir": tmp_path / "cache"}
    expected = SiteImages(site, "all", _read(), **options)[0]["image"]
    entry = next((tmp_path / "cache").glob("*/*.safetensors"))
    entry.write_bytes(entry.read_bytes()[:200])
    assert torch.equal(SiteImages(site, "all", _read(), **options)[0]["image"], expected)
    assert "is damaged" in caplog.text
    assert torch.equal(SiteImages(site, "all", _read(), **options)[0]["image"], expected)


def test_nothing_that_is_read_is_a_pickle(site: Path, tmp_path: Path) -> None:
    """A file that would run code when it is unpickled is no entry."""
    folder = tmp_path / "cache"
    first = SiteImages(site, "all", _read(), cache="disk", cache_dir=folder)[0]["image"]
    entry = next(folder.glob("*/*.safetensors"))
    torch.save({"image": _Bomb()}, entry)
    assert torch.equal(SiteImages(site, "all", _read(), cache="disk", cache_dir=folder)[0]["image"], first)
    with pytest.raises(SystemExit):
        pickle.loads(pickle.dumps(_Bomb()))


class _Bomb:
    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def test_what_cannot_be_used_is_refused(site: Path, tmp_path: Path) -> None:
    """A cache that is none, disk without a folder, a file that is gone, something a file cannot hold."""
    with pytest.raises(ConfigError, match="site HK: cache='ram' must be one of none, memory, disk"):
        SiteImages(site, "all", _read(), cache="ram")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="site HK: cache: disk needs cache_dir"):
        SiteImages(site, "all", _read(), cache="disk")
    with pytest.raises(ConfigError, match="cache_limit_mb=0 must be a finite number above 0"):
        SiteImages(site, "all", _read(), cache="memory", cache_limit_mb=0)
    kept = SiteImages(
        site, "all", [*_read(), EnsureTyped("image"), Odd("image")], cache="disk", cache_dir=tmp_path / "c"
    )
    with pytest.raises(ConfigError, match=r"\['image'\]: cache: disk cannot keep a PosixPath"):
        kept[0]
    (site.parent / "1.nii").unlink()
    with pytest.raises(DataError, match=r"site HK: .*1\.nii is gone; prepare the images again"):
        kept[1]


class Odd(MapTransform):
    """Put something there that no file holds."""

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        """Replace the image by a path."""
        return {**data, "image": Path("x")}
