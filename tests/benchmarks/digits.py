"""Prepare four real sources of handwritten digits as sites: MNIST's test set, USPS, Semeion and optdigits.

python tests/benchmarks/digits.py --out PREPARED [--images 930] [--seed 0]
"""

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from monai_fedskew.data.image_sites import write_image_site

SIDE = 28
Source = tuple[NDArray[np.float32], NDArray[np.int64]]  # (N, h, w) in 0 .. 1, and the digits


def mnist(folder: Path) -> Source:
    """The 10,000 images of the standard test set."""
    pixels = np.frombuffer(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16)
    labels = np.frombuffer(gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    return pixels.reshape(-1, 28, 28).astype(np.float32) / 255, labels.astype(np.int64)


def usps(folder: Path) -> Source:
    """The 7,291 training images, 16 x 16."""
    import h5py

    with h5py.File(folder / "usps.h5") as file:
        part = file["train"]
        return part["data"][:].reshape(-1, 16, 16).astype(np.float32), part["target"][:].astype(np.int64)


def semeion(folder: Path) -> Source:
    """The 1,593 binary images, 16 x 16."""
    with np.load(folder / "semeion.npz") as file:
        return file["images"].astype(np.float32) / 255, file["labels"].astype(np.int64)


def optdigits(folder: Path) -> Source:
    """The 1,797 images, 8 x 8."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images / 16).astype(np.float32), found.target.astype(np.int64)


SOURCES = {
    "MNIST": ("mnist_t10k", mnist),
    "USPS": ("usps", usps),
    "SEMEION": ("semeion", semeion),
    "OPTDIGITS": ("optdigits", optdigits),
}


def prepare(data: Path, out: Path, images: int, seed: int) -> None:
    """Write one site a source: ``images`` of it drawn at random, bilinear to 28 x 28, scaled to -1 .. 1."""
    for site, (folder, read) in SOURCES.items():
        pixels, labels = read(data / folder)
        chosen = np.random.default_rng(seed).permutation(len(labels))[:images]
        large = torch.nn.functional.interpolate(
            torch.from_numpy(pixels[chosen])[:, None], (SIDE, SIDE), mode="bilinear"
        )
        written = write_image_site(
            out / site,
            (large.numpy() - 0.5) / 0.5,
            labels[chosen],
            label_names=[str(digit) for digit in range(10)],
            notes={"origin": folder, "resized": f"{pixels.shape[1]} to {SIDE}, bilinear"},
        )
        counts = np.bincount(labels[chosen], minlength=10)
        print(f"{site}: {len(chosen)} of {len(labels)} images, {counts.min()} to {counts.max()} a digit: {written}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the prepared sites")
    parser.add_argument("--images", type=int, default=930, help="images a site (default 930: 744 to train on)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    given = parser.parse_args()
    root = Path(os.environ.get("FEDSKEW_TESTDATA", Path(__file__).parents[3] / "shared" / "testdata"))
    if not (root / "digits").is_dir():
        raise SystemExit(f"no real digits at {root / 'digits'}; set FEDSKEW_TESTDATA")
    prepare(root / "digits", given.out, given.images, given.seed)
