"""Seeded volumes that look a little like MRI of the prostate at six hospitals: no file of a real person is needed."""

import gzip
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from monai_fedskew.core.ranges import require_whole
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["PROSTATE_SITES", "Scanner", "write_prostate_volumes"]

Volume = NDArray[np.float64]


@dataclass(frozen=True)
class Scanner:
    """How one hospital's volumes differ from another's.

    Args:
        axes: where each array axis points, such as "LPS": to the left, posterior, superior.
        spacing_mm: voxel size in the plane and from slice to slice.
        field_mm: field of view in the plane and from the first slice to the last.
        gain: signal of the brightest tissue.
        coil: strength of the bias field of a coil behind the gland, as a factor at the back over one in front.
        noise: standard deviation of the noise, as a part of the gain.
        dtype: of the stored voxels.
    """

    axes: Literal["RAS", "LPS", "LAS", "RPI", "RSA"]
    spacing_mm: tuple[float, float]
    field_mm: tuple[float, float]
    gain: float
    coil: float
    noise: float
    dtype: Literal["int16", "float32"]


PROSTATE_SITES: Mapping[str, Scanner] = {
    "BIDMC": Scanner("LPS", (0.5, 3.0), (72.0, 60.0), 3000.0, 4.0, 0.04, "int16"),
    "HK": Scanner("RAS", (0.625, 3.6), (80.0, 61.2), 600.0, 3.0, 0.05, "int16"),
    "I2CVB": Scanner("LAS", (0.7, 2.0), (96.0, 64.0), 1200.0, 1.0, 0.06, "float32"),
    "ISBI": Scanner("RPI", (0.6, 3.6), (84.0, 64.8), 900.0, 1.2, 0.03, "int16"),
    "ISBI_1.5": Scanner("LPS", (0.5, 3.0), (76.0, 63.0), 250.0, 6.0, 0.08, "float32"),
    "UCL": Scanner("RSA", (0.65, 3.3), (88.0, 62.7), 150.0, 1.5, 0.1, "int16"),
}


def write_prostate_volumes(
    out: str | Path,
    *,
    sites: Sequence[str] = tuple(PROSTATE_SITES),
    cases: int = 6,
    coarseness: float = 4.0,
    seed: int = 0,
) -> Path:
    """Write ``SITE/CaseNN.nii.gz`` and ``SITE/CaseNN_segmentation.nii.gz``, the layout of the ProstateMRI data.

    A case is a body with a bright bladder above, a dark rectum behind and a gland of two zones; the mask is 1 in the
    gland. Size, place and contrast differ from case to case, all that `Scanner` names from site to site. A site's
    cases do not depend on which other sites or how many cases are written, and equal arguments give equal bytes.

    Args:
        out: folder that receives one folder a site.
        sites: names among `PROSTATE_SITES`.
        cases: volumes a site, at least 1.
        coarseness: factor on the voxel size in the plane, 1 .. 8; 4 gives about 36 x 36 x 20 voxels.
        seed: of all numbers.

    Returns:
        The folder.

    Raises:
        ConfigError: an unknown site, or a number out of range.
        DataError: a site's folder exists.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     site = write_prostate_volumes(folder, sites=("ISBI_1.5",), cases=1, coarseness=8) / "ISBI_1.5"
        ...     sorted(p.name for p in site.iterdir())
        ['Case00.nii.gz', 'Case00_segmentation.nii.gz']
    """
    require_whole("synthetic volumes", "cases", cases, 1)
    if not 1 <= coarseness <= 8:
        raise ConfigError(f"synthetic volumes: coarseness={coarseness}; must lie in 1 .. 8")
    if unknown := sorted(set(sites) - set(PROSTATE_SITES)):
        raise ConfigError(f"synthetic volumes: unknown site {unknown[0]!r}; there are {', '.join(PROSTATE_SITES)}")
    for site in sites:
        folder, scanner = Path(out) / site, PROSTATE_SITES[site]
        if folder.exists():
            raise DataError(f"{folder} exists already; choose another folder or delete it")
        partial = folder.with_name(f".{site}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for case in range(cases):
            rng = np.random.default_rng([seed, list(PROSTATE_SITES).index(site), case])
            image, mask, affine = _case(scanner, coarseness, rng)
            for name, array in ((f"Case{case:02}", image), (f"Case{case:02}_segmentation", mask)):
                (partial / f"{name}.nii.gz").write_bytes(_nifti(array, affine, scanner.axes))
        partial.rename(folder)
    return Path(out)


def _case(scanner: Scanner, coarseness: float, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], Volume]:
    """Return image, mask and affine of one case, the axes to the right, anterior and superior."""
    spacing = np.array([scanner.spacing_mm[0] * coarseness] * 2 + [scanner.spacing_mm[1]])
    shape = np.round(np.array([scanner.field_mm[0]] * 2 + [scanner.field_mm[1]]) / spacing).astype(int)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = rng.uniform(-20, 20, 3) - spacing * (shape - 1) / 2  # the patient does not lie at the origin
    axes = [step * (np.arange(n) - (n - 1) / 2) for step, n in zip(spacing, shape, strict=True)]
    where = np.stack(np.meshgrid(*axes, indexing="ij"))

    gland_at, radii = rng.uniform(-5, 5, 3), np.array([22.0, 16.0, 18.0]) * rng.uniform(0.8, 1.2, 3)
    gland = _ellipsoid(where, gland_at, radii)
    inner = _ellipsoid(where, gland_at + [0, 0.25 * radii[1], 0], 0.62 * radii)
    signal: Volume = np.full(tuple(shape), 0.30)
    for inside, tissue in (
        (gland, rng.uniform(0.60, 0.75)),
        (inner, rng.uniform(0.40, 0.52)),
        (_ellipsoid(where, gland_at + [0, 8, 1.4 * radii[2] + 6], np.array([26.0, 18.0, 14.0])), 1.0),  # bladder
        (_ellipsoid(where, gland_at - [0, radii[1] + 10, 0], np.array([11.0, 9.0, 60.0])), 0.08),  # rectum
    ):
        weight = np.clip(0.5 + 2.5 * (1 - inside), 0, 1)  # a soft edge, as a voxel holds several tissues
        signal += weight * (tissue - signal)
    body = np.hypot(where[0], where[1]) < 0.49 * scanner.field_mm[0]
    depth = (where[1] / scanner.field_mm[0] + 0.5) * rng.uniform(0.9, 1.1)
    signal *= np.where(body, scanner.coil ** (0.5 - depth), 0.0)
    noise = scanner.noise * rng.normal(size=(2, *shape))
    image = scanner.gain * np.hypot(signal + noise[0], noise[1])  # the magnitude of a complex signal is never negative
    return image.astype(scanner.dtype), (gland < 1).astype(np.uint8), affine


def _ellipsoid(where: Volume, centre: Volume, radii: Volume) -> Volume:
    """Return the distance from the centre, 1 on the surface."""
    distance: Volume = np.sqrt((((where - centre[:, None, None, None]) / radii[:, None, None, None]) ** 2).sum(0))
    return distance


def _nifti(array: NDArray[Any], affine: Volume, axes: str) -> bytes:
    """Return a NIfTI file with the axes pointing as asked; every voxel stays where it is in the room."""
    import nibabel as nib  # here: the names of the sites are asked for without it
    from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform

    turn = ornt_transform(axcodes2ornt("RAS"), axcodes2ornt(axes))
    image = nib.Nifti1Image(apply_orientation(array, turn), affine @ inv_ornt_aff(turn, array.shape))
    image.header.set_xyzt_units("mm")
    return gzip.compress(image.to_bytes(), compresslevel=4, mtime=0)  # no time stamp: equal calls give equal bytes
