"""Memory and time of the caches of `SiteImages` on volumes, beside MONAI's own.

    python tests/benchmarks/volume_caches.py

Sixteen generated volumes with masks (192 x 192 x 48 as .nii.gz, 14 MB an item once read) go through a bundle's chain:
read, orientation, spacing, intensity, then random patches. Each cache has a process of its own that makes three passes.
Peak memory is that of the process beyond what it held when everything was imported and one item had been made; a limit
of 64 MB holds four of the sixteen. Seconds are of one thread; on a busy machine only the memory means something.
"""

import hashlib
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from ratios import conditions, in_child, options, peak_bytes

CACHES = ("none", "memory", "memory, 64 MB", "disk", "disk, 64 MB", "MONAI's CacheDataset", "MONAI's PersistentDataset")
PASSES = 3


def main() -> None:
    """Write the volumes and start one process a cache, or be one of them."""
    asked = options(__doc__)
    if asked.child:
        print(json.dumps(passes(**json.loads(asked.child))))
        return
    conditions("volume_caches.py")
    shape, count = ((48, 48, 16), 3) if asked.quick else ((192, 192, 48), 16)
    with tempfile.TemporaryDirectory() as scratch:
        write_site(Path(scratch), shape, count)
        print(f"{'cache':<28}{'peak MB':>9}{'first pass s':>14}{'later pass s':>14}{'on disk MB':>12}")
        for cache in CACHES:
            kept = Path(scratch) / cache.replace(" ", "_")
            found = in_child(__file__, folder=f"{scratch}/A", cache=cache, kept=str(kept))
            used = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file()) / 2**20
            print(f"{cache:<28}{found['peak']:>9.0f}{found['first']:>14.2f}{found['later']:>14.2f}{used:>12.0f}")


def write_site(folder: Path, shape: tuple[int, ...], count: int) -> None:
    """Write a prepared site of compressible volumes and masks."""
    from monai_fedskew.data.image_sites import write_file_site
    from monai_fedskew.data.manifest import Subject

    subjects, sources = [], {}
    for k in range(count):
        random = np.random.default_rng(k)
        values = random.normal(200, 30, shape).astype(np.int16)
        mask = np.zeros(shape, np.uint8)
        mask[tuple(slice(n // 3, 2 * n // 3) for n in shape)] = 1
        for name, array in ((f"{k}.nii.gz", values), (f"{k}_mask.nii.gz", mask)):
            nibabel.save(nibabel.Nifti1Image(array, np.diag([-0.5, -0.5, 3.0, 1.0])), folder / name)
            sources[f"../{name}"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        subjects.append(Subject(f"s{k:02}", 0, k, k + 1, files=(f"../{k}.nii.gz",), mask=f"../{k}_mask.nii.gz"))
    names = ["background", "gland"]
    write_file_site(folder / "A", subjects, label_names=names, shape=(1, *shape), sources=sources)


def chain() -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
    """Return the fixed and the random transforms."""
    from monai import transforms as t

    both = ["image", "label"]
    fixed = [
        t.LoadImaged(both, reader="NibabelReader", image_only=True, ensure_channel_first=True),
        t.Orientationd(both, axcodes="RAS", labels=None),
        t.Spacingd(both, pixdim=[0.5, 0.5, 3.0], mode=["bilinear", "nearest"]),
        t.ScaleIntensityRangePercentilesd("image", 0.5, 99.5, 0.0, 1.0, clip=True),
        t.EnsureTyped(both, track_meta=False, dtype=torch.float32),
    ]
    return fixed, [t.RandSpatialCropd(both, roi_size=[32, 32, 16], random_size=False)]


def passes(folder: str, cache: str, kept: str) -> dict[str, float]:
    """Make the passes in this process; return peak memory in MB, and seconds of the first and of a later pass."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from monai.data import CacheDataset, PersistentDataset

    from monai_fedskew.data.datalist import site_datalist
    from monai_fedskew.sites.image_dataset import SiteImages

    fixed, drawn = chain()
    _ = SiteImages(folder, "all", [*fixed, *drawn])[0]
    before, start = peak_bytes(), time.perf_counter()
    data: Any
    if cache == "MONAI's CacheDataset":
        data = CacheDataset(site_datalist(folder, "all"), [*fixed, *drawn], progress=False, num_workers=None)
    elif cache == "MONAI's PersistentDataset":
        data = PersistentDataset(site_datalist(folder, "all"), [*fixed, *drawn], cache_dir=kept)
    else:
        kind: Any = cache.partition(",")[0]
        most = 64.0 if "," in cache else 4096.0
        data = SiteImages(folder, "all", [*fixed, *drawn], cache=kind, cache_dir=kept, cache_limit_mb=most)
    seconds = []
    for _ in range(PASSES):
        for index in range(len(data)):
            data[index]
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
    return {"peak": (peak_bytes() - before) / 2**20, "first": seconds[0], "later": min(seconds[1:])}


if __name__ == "__main__":
    main()
