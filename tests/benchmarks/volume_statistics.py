"""Statistics of a data set of volumes beside just reading its files.

    python tests/benchmarks/volume_statistics.py

Generated brain-like volumes (256 x 256 x 150: an ellipsoid of noise over a background of 0) as .nii.gz and as .nii,
of float32 and of int16, read and measured in turns in one run and one thread. Speed of measuring is time of reading /
time of `measure_files`, which reads and measures: by nibabel alone into memory, which is what `measure_files` does by
default, and by MONAI's LoadImage for both. Files lie in the system's page cache, which asks most of the arithmetic; of
the uncompressed ones reading is then one copy in memory, and measuring cannot keep up. About 250 MB are written to the
temporary folder.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from monai.transforms import LoadImage
from ratios import conditions, options, show, take_turns

from monai_fedskew.transforms import StatisticsCalculator, measure_files

NIBABEL, MONAI = "nibabel", "LoadImage"
KINDS = (("float32", ".nii.gz"), ("int16", ".nii.gz"), ("float32", ".nii"), ("int16", ".nii"))


def main() -> None:
    """Write volumes and measure each kind."""
    asked = options(__doc__)
    torch.set_num_threads(1)
    conditions("volume_statistics.py")
    shape, n_files = ((64, 64, 32), 2) if asked.quick else ((256, 256, 150), 2)
    most = 2 if asked.quick else 15
    with tempfile.TemporaryDirectory() as scratch:
        for dtype, suffix in KINDS:
            files = _written(Path(scratch), shape, n_files, dtype, suffix)
            compare(f"{suffix} of {dtype}", files, most=most, is_compressed=suffix == ".nii.gz")
        arithmetic(shape, most=most)


def compare(what: str, files: list[Path], *, most: int, is_compressed: bool) -> None:
    """Read, and read and measure, one kind of files."""
    loader = LoadImage(image_only=True, ensure_channel_first=True)
    candidates: dict[str, Callable[[], Any]] = {
        NIBABEL: lambda: _none([np.array(nibabel.load(file).dataobj) for file in files]),
        MONAI: lambda: _none([loader(file) for file in files]),
        f"{NIBABEL} all": lambda: _none(measure_files(files, site="A")),
        f"{NIBABEL} nonzero": lambda: _none(measure_files(files, site="A", region="nonzero")),
        f"{MONAI} all": lambda: _none(measure_files(files, site="A", load=loader)),
    }
    pairs = [(name.split()[0], name) for name in candidates if " " in name]
    times = take_turns(candidates, pairs=pairs, least=5, most=most, limit_seconds=90)
    print(f"{what}, {sum(file.stat().st_size for file in files) / len(files) / 1e6:.1f} MB a file")
    for name in (NIBABEL, MONAI):
        show(f"  reading a volume, {name}", times.of(name, scale=1e3 / len(files)), unit="ms")
    for reader, name in pairs:
        region = name.split()[1]
        least = 0.8 if is_compressed else None
        show(f"  speed of measuring / of reading by {reader}, region {region}", times.ratio(reader, name), least=least)


def arithmetic(shape: tuple[int, ...], *, most: int) -> None:
    """Measure a volume that is in memory already, beside summing it up and beside float64 as a whole."""
    image = torch.randn(1, *shape) * 20 + 100
    sums = take_turns(
        {
            "sum": lambda: _none(image.sum(dtype=torch.float64)),
            "whole": lambda: _none(torch.std_mean(image.double())),
            "calculator": lambda: _none(StatisticsCalculator("A").update(image)),
        },
        pairs=[("calculator", "whole")],
        most=most,
        limit_seconds=60,
    )
    print(f"float32 in memory, {image.numel() * 4 / 1e6:.0f} MB")
    show("  one float64 sum", sums.of("sum", scale=1e3), unit="ms")
    show("  the calculator", sums.of("calculator", scale=1e3), unit="ms")
    show("  torch.std_mean of the volume as float64 / the calculator", sums.ratio("whole", "calculator"))


def _written(folder: Path, shape: tuple[int, ...], n_files: int, dtype: str, suffix: str) -> list[Path]:
    rng = np.random.default_rng(0)
    axes = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij", sparse=True)
    inside = sum(axis**2 for axis in axes) < 0.8
    files = []
    for k in range(n_files):
        values = np.where(inside, rng.normal(400 + 10 * k, 80, shape), 0).astype(dtype)
        image = nibabel.Nifti1Image(values, np.diag([1.0, 1.0, 1.2, 1.0]))
        files.append(folder / f"{dtype}_{k}{suffix}")
        nibabel.save(image, files[-1])
    return files


def _none(_: object) -> None:
    """Let go of the result; a candidate's number would be taken for units of work."""


if __name__ == "__main__":
    main()
