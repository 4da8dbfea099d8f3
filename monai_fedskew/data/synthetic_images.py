"""Seeded sites of small images with scanner skew: no file of a real person is needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.errors import ConfigError

__all__ = ["write_synthetic_images"]


def write_synthetic_images(
    out: str | Path,
    *,
    sites: Sequence[str] = ("NORTH", "SOUTH", "EAST", "WEST"),
    images: int = 40,
    size: int = 8,
    channels: int = 1,
    dimensions: int = 2,
    seed: int = 0,
) -> Path:
    """Write prepared sites of images in which class 1 shows a bright square and class 0 none.

    Site k has an offset and a gain of its own in each channel, as scanners have.

    Args:
        out: folder that receives one folder a site.
        sites: names of the sites.
        images: images a site, half of each class; at least 2.
        size: pixels along each side, at least 4.
        channels: channels of an image.
        dimensions: 2, or 3 for volumes.
        seed: of all numbers.

    Returns:
        The folder.

    Raises:
        ConfigError: a size is too small.
        DataError: a site's folder exists, or a name cannot be a site's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(p.name for p in write_synthetic_images(folder, sites=("EAST", "WEST")).iterdir())
        ['EAST', 'WEST']
    """
    if images < 2 or size < 4 or channels < 1 or dimensions not in (2, 3):
        raise ConfigError(
            f"synthetic images: images={images}, size={size}, channels={channels}, dimensions={dimensions}; at least "
            "2, 4 and 1 are needed, and 2 or 3 dimensions"
        )
    for position, site in enumerate(sites):
        rng = np.random.default_rng([seed, position])
        labels = np.arange(images) % 2
        pixels: NDArray[np.float64] = rng.normal(0.0, 0.3, (images, channels, *[size] * dimensions))
        for image, label in zip(pixels, labels, strict=True):
            at = rng.integers(0, size // 2, dimensions)
            image[(slice(None), *(slice(a, a + size // 2) for a in at))] += label
        per_channel = (1, channels, *[1] * dimensions)
        offset = rng.normal(0.0, 0.5, per_channel) + 0.3 * position
        gain = 1.0 + 0.4 * position + rng.uniform(0.0, 0.2, per_channel)
        skewed = (offset + gain * pixels).astype(np.float32)
        write_image_site(
            Path(out) / site, skewed, labels, label_names=("empty", "square"), notes={"origin": "synthetic"}
        )
    return Path(out)
