"""Folders of cached images: shared while they are written, and bounded."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

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


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be; nothing is left behind."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(DataError, match=r"cache_dir .*cache: cannot keep an image .*; use another or cache: none"):
        DiskCache(tmp_path / "cache", 1).put("chain", "item", torch.zeros(1))
