"""The images of one split as a MONAI datalist."""

import os
from pathlib import Path
from typing import Any, get_args

from monai_fedskew.data.datasets import SplitName
from monai_fedskew.data.manifest import SiteManifest, Subject, read_manifest
from monai_fedskew.data.splits import split as split_subjects
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["site_datalist"]


def site_datalist(
    folder: str | Path,
    split: SplitName,
    *,
    fold: int = 0,
    folds: int = 5,
    validation_fraction: float = 0.1,
    split_seed: int = 0,
) -> list[dict[str, Any]]:
    """List the images of one split of a site whose images are files, as MONAI's dictionary transforms take them.

    Args:
        folder: a site's folder, written by ``fedskew images prepare`` or `write_file_site`.
        split: ``train``, ``validation``, ``test`` or ``all``.
        fold: which of the ``folds`` folds is the test split, 0 .. folds - 1; a given list of splits goes before it.
        folds: number of folds.
        validation_fraction: part of the remaining groups kept for validation, 0 .. 1; 0 leaves validation empty.
        split_seed: seed of the folds; the same for every split of a study.

    Returns:
        One entry an image: ``image`` (path, or list of paths, one a channel), ``label`` (path of the mask, or the class
        where there is none), ``subject`` (what no split cuts), ``row`` (number in the manifest), ``site``, and
        ``digest`` (SHA-256 of the files, in order). Paths are absolute.

    Raises:
        ConfigError: an unknown split.
        DataError: the folder holds no prepared site, or one whose images are no files.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.image_sites import write_file_site
        >>> with tempfile.TemporaryDirectory() as out:
        ...     _ = Path(out, "a.png").write_bytes(b"...")
        ...     one = Subject("a", 0, 0, 1, files=("../a.png",))
        ...     site = write_file_site(
        ...         f"{out}/A", [one], label_names=["cell"], shape=(1, 8, 8), sources={"../a.png": "00"}
        ...     )
        ...     [(Path(entry["image"]).name, entry["label"]) for entry in site_datalist(site, "all")]
        [('a.png', 0)]
    """
    if split not in get_args(SplitName):
        raise ConfigError(f"split is {split!r}; it must be one of {', '.join(get_args(SplitName))}")
    path = Path(folder).absolute()
    if not path.is_dir():
        raise DataError(f"no prepared site at {path}; prepare the data first, or give --dataset_dir")
    manifest = read_manifest(path)
    if manifest.store != "files":
        raise DataError(
            f"{path}: its rows lie in one array, not in files; read them with ConnectomeDataset or ImageDataset, or "
            "prepare the images without --size"
        )
    chosen = {subject.id for subject in manifest.subjects}
    if split != "all":
        parts = split_subjects(
            manifest, fold=fold, folds=folds, validation_fraction=validation_fraction, seed=split_seed
        )
        chosen = set(getattr(parts, split))
    return [_entry(path, manifest, subject) for subject in manifest.subjects if subject.id in chosen]


def _entry(folder: Path, manifest: SiteManifest, subject: Subject) -> dict[str, Any]:
    files = [os.path.normpath(folder / name) for name in subject.files]
    return {
        "image": files[0] if len(files) == 1 else files,
        "label": os.path.normpath(folder / subject.mask) if subject.mask else subject.label,
        "subject": subject.group,
        "row": subject.start,
        "site": manifest.site,
        "digest": " ".join(manifest.sources[name] for name in (*subject.files, *filter(None, [subject.mask]))),
    }
