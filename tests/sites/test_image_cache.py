"""Folders of cached images: shared while they are written, and bounded."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from monai_fedskew.errors import DataError
from monai_fedskew.sites.image_cache import DiskCache, MemoryCache


def test_writers_at_once_leave_whole_files(tmp_path: Path) -> None:
    """Four writers and readers of the same three items see nothing or all of an item, and leave three files."""

    def work(seed: int) -> list[bool]:
        cache, seen = DiskCache(tmp_path, 10), []
        for step in range(60):
            item = (seed + step) % 3
            cache.put("chain", str(item), {"image": torch.full((5000,), float(item))})
            got = cache.get("chain", str(item))
            seen.append(got is not None and torch.equal(got["image"], torch.full((5000,), float(item))))
        return seen

    with ThreadPoolExecutor(4) as pool:
        assert all(all(seen) for seen in pool.map(work, range(4)))
    assert sorted(path.name for path in tmp_path.glob("chain/*")) == [f"{k}.safetensors" for k in range(3)]


def test_the_file_does_not_change_with_what_was_read(tmp_path: Path) -> None:
    """A tensor that came from disk is the reader's own."""
    cache = DiskCache(tmp_path, 1)
    cache.put("chain", "item", {"image": torch.zeros(1000)})
    cache.get("chain", "item")["image"].fill_(1)
    assert not cache.get("chain", "item")["image"].any()


def test_a_part_of_a_killed_process_goes_with_the_old(tmp_path: Path) -> None:
    """What was half written counts towards the limit and makes room like any old file; an emptied folder goes."""
    old = tmp_path / "old" / ".0.part"
    old.parent.mkdir()
    old.write_bytes(b"x" * 900_000)
    time.sleep(0.02)  # the file system's clock is coarser than ours
    DiskCache(tmp_path, 0.9).put("new", "item", {"image": torch.zeros(50_000)})
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_nothing_larger_than_the_limit_is_kept(tmp_path: Path) -> None:
    """Neither on disk, where nothing else is thrown out for it, nor in memory."""
    disk, memory = DiskCache(tmp_path, 0.1), MemoryCache(0.1)
    disk.put("old", "item", {"image": torch.zeros(10)})
    for cache in (DiskCache(tmp_path, 0.1), memory):
        cache.put("new", "item", {"image": torch.zeros(50_000)})
        assert cache.get("new", "item") is None
    assert DiskCache(tmp_path, 0.1).get("old", "item") is not None


def test_memory_keeps_one_chain(tmp_path: Path) -> None:
    """Results of other transforms are dropped, not kept beside."""
    cache = MemoryCache(1)
    cache.put("a", "item", torch.zeros(1000))
    cache.put("b", "item", torch.ones(500))
    assert cache.bytes == 2000
    assert cache.get("a", "item") is None
    assert cache.get("b", "item").sum() == 500


@pytest.mark.parametrize(
    "item",
    ["[" * 100_000, '{"tensor": "0", "device": "nowhere"}', '{"tensor": "0", "device": "cuda:99"}', '{"tensor": "9"}'],
)
def test_what_another_wrote_is_made_again(item: str, tmp_path: Path) -> None:
    """Text without end, devices that are not here, a tensor that is missing: a warning, never an error."""
    path = tmp_path / "chain" / "item.safetensors"
    path.parent.mkdir()
    save_file({"0": torch.zeros(1)}, path, metadata={"item": item, "of": "chain/item"})
    assert DiskCache(tmp_path, 1).get("chain", "item") is None
    assert not path.exists()


def test_a_file_under_another_name_is_another_image(tmp_path: Path) -> None:
    """Copied or renamed by hand: it is not taken for the image whose name it has."""
    cache = DiskCache(tmp_path, 1)
    cache.put("chain", "one", {"image": torch.ones(1)})
    (tmp_path / "chain" / "one.safetensors").rename(tmp_path / "chain" / "two.safetensors")
    assert cache.get("chain", "two") is None


def test_what_may_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of somebody else's: the time of last use is not noted, and what is damaged stays."""

    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(1, "not yours")

    cache = DiskCache(tmp_path, 1)
    for name in ("whole", "broken"):
        cache.put("chain", name, {"image": torch.ones(1)})
    (tmp_path / "chain" / "broken.safetensors").write_bytes(b"x")
    monkeypatch.setattr("os.utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert cache.get("chain", "whole")["image"].item() == 1
    assert cache.get("chain", "broken") is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be; nothing is left behind."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"cache_dir .*cache: cannot keep an image .*; use another or cache: none"):
        DiskCache(tmp_path / "cache", 1).put("chain", "item", torch.zeros(1))
