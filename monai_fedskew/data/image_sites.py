"""Prepared sites of images: as rows of one array where all are of one size, else as the files they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fedskew.data.manifest import (
    MANIFEST,
    Excluded,
    SiteManifest,
    Subject,
    require_site_name,
    write_manifest,
)
from monai_fedskew.data.manifest_fields import check_manifest
from monai_fedskew.data.records import GivenSplit
from monai_fedskew.errors import DataError

__all__ = ["write_file_site", "write_image_site"]


def write_image_site(
    folder: str | Path,
    images: NDArray[np.float32],
    labels: ArrayLike,
    *,
    label_names: Sequence[str],
    ids: Sequence[str] | None = None,
    groups: Sequence[str] | None = None,
    splits: Sequence[GivenSplit] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Path:
    """Write a prepared site of images, one a subject.

    Args:
        folder: receives ``manifest.json`` and ``vectors.npy``; its name is the site's.
        images: (N, C, *spatial) finite numbers, stored as float32.
        labels: (N,) class of each image, 0 .. classes - 1.
        label_names: name of each class.
        ids: name of each image; by default its number.
        groups: what no split may cut apart, such as the patient of each image; by default each image alone.
        splits: where a published list puts each image; by default folds are dealt.
        notes: where the images come from, in words.

    Returns:
        The folder.

    Raises:
        DataError: the folder exists, sizes do not fit, a value is not finite, or the name cannot be a site's.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.manifest import read_manifest
        >>> with tempfile.TemporaryDirectory() as out:
        ...     site = write_image_site(f"{out}/A", np.zeros((4, 1, 2, 2), np.float32), [0, 1, 0, 1], label_names="ab")
        ...     read_manifest(site).shape
        (1, 2, 2)
    """
    folder, classes = Path(folder), np.asarray(labels)
    require_site_name(folder.name, f"{folder}: the name of a folder")
    names = [f"{number:06d}" for number in range(len(images))] if ids is None else list(ids)
    if folder.exists():
        raise DataError(f"{folder.absolute()} exists; give a new folder")
    if images.ndim < 3 or not images.size or classes.shape != (len(images),) or len(names) != len(images):
        raise DataError(
            f"site {folder.name}: images of shape {images.shape}, {classes.size} labels and {len(names)} ids; "
            "(N, C, *spatial) images and one label and id each are needed"
        )
    if not np.issubdtype(classes.dtype, np.integer) or classes.min() < 0 or classes.max() >= len(label_names):
        raise DataError(
            f"site {folder.name}: labels are {classes.dtype} {classes.min()!s} to {classes.max()!s}; they must be "
            f"whole numbers in 0 to {len(label_names) - 1}, one for each of the {len(label_names)} label names"
        )
    texts = [*names, *label_names, *(notes or {}).values()]
    if not all(isinstance(text, str) and text for text in texts) or len(set(names)) < len(names):
        raise DataError(f"site {folder.name}: ids, label names and notes must be texts, and each id another one")
    if np.iscomplexobj(images):
        raise DataError(f"site {folder.name}: images are {images.dtype}; store their parts as channels")
    with np.errstate(over="ignore"):
        pixels = images.astype(np.float32)
    if not np.isfinite(pixels).all():
        raise DataError(f"site {folder.name}: {int((~np.isfinite(pixels)).sum())} pixels are not finite in float32")
    people = _subjects(folder.name, names, classes.tolist(), groups or names, splits or [""] * len(names))
    manifest = SiteManifest(
        site=folder.name,
        label_names=tuple(label_names),
        kind="image",
        regions=(),
        features=(),
        subjects=people,
        summary={"mean": float(pixels.mean()), "std": float(pixels.std()), "images": float(len(pixels))},
        notes=dict(notes or {}),
        shape=tuple(images.shape[1:]),
    )
    check_manifest(folder / MANIFEST, manifest)
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", pixels.reshape(len(pixels), -1))
    write_manifest(folder, manifest)
    return folder


def write_file_site(
    folder: str | Path,
    subjects: Sequence[Subject],
    *,
    label_names: Sequence[str],
    shape: Sequence[int],
    sources: Mapping[str, str],
    summary: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
    excluded: Sequence[Excluded] = (),
) -> Path:
    """Write a prepared site whose images stay the files they are, of any sizes; `site_datalist` reads it.

    Args:
        folder: receives ``manifest.json``; its name is the site's. It may exist and hold the files.
        subjects: one an image, with ``files`` and, for segmentation, ``mask``; rows 0, 1, ... in order.
        label_names: names of the classes, or of the values of the masks.
        shape: (channels, *spatial), the median over images.
        sources: SHA-256 of every file that the subjects name, by the path they give.
        summary: ``mean`` and ``std`` over all values.
        notes: where the images come from, in words.
        excluded: images that were left out, and why.

    Returns:
        The folder.

    Raises:
        DataError: a manifest is there already, a file is not, or the entries contradict each other.

    Example:
        >>> import hashlib, tempfile
        >>> with tempfile.TemporaryDirectory() as out:
        ...     image = Path(out, "a.png"); _ = image.write_bytes(b"...")
        ...     sha = hashlib.sha256(b"...").hexdigest()
        ...     one = Subject("a", 0, 0, 1, files=("../a.png",))
        ...     site = write_file_site(
        ...         f"{out}/A", [one], label_names=["cell"], shape=(1, 8, 8), sources={"../a.png": sha}
        ...     )
        ...     sorted(path.name for path in site.iterdir())
        ['manifest.json']
    """
    folder = Path(folder)
    require_site_name(folder.name, f"{folder}: the name of a folder")
    if (folder / MANIFEST).exists():
        raise DataError(f"{(folder / MANIFEST).absolute()} exists; give a new folder")
    manifest = SiteManifest(
        site=folder.name,
        label_names=tuple(label_names),
        kind="image",
        regions=(),
        features=(),
        subjects=tuple(subjects),
        excluded=tuple(excluded),
        store="files",
        sources=dict(sources),
        summary=dict(summary or {}),
        notes=dict(notes or {}),
        shape=tuple(shape),
    )
    check_manifest(folder / MANIFEST, manifest)
    folder.mkdir(parents=True, exist_ok=True)
    write_manifest(folder, manifest)
    return folder


def _subjects(
    site: str, names: Sequence[str], labels: Sequence[int], groups: Sequence[str], splits: Sequence[GivenSplit]
) -> tuple[Subject, ...]:
    if not len(names) == len(groups) == len(splits):
        raise DataError(
            f"site {site}: {len(names)} images, {len(groups)} groups and {len(splits)} splits; one of each an image"
        )
    rows = zip(names, labels, groups, splits, strict=True)
    return tuple(Subject(name, label, k, k + 1, group, split) for k, (name, label, group, split) in enumerate(rows))
