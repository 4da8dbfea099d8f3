"""Check once a run that a prepared site is whole: the array, or the files, are those its manifest was written for."""

import hashlib
from pathlib import Path

import numpy as np

from monai_fedskew.data.digest import Digest, row_blocks
from monai_fedskew.data.manifest import DATA_FILES, SiteManifest
from monai_fedskew.errors import DataError

__all__ = ["verify_data"]


def verify_data(folder: Path, manifest: SiteManifest) -> None:
    """Read a site's whole array, or all its files, once and compare them with its manifest.

    Args:
        folder: the site's folder.
        manifest: what `read_manifest` returned for it.

    Raises:
        DataError: a value is not finite, or an array or file is not the one the manifest was written for.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.manifest import read_manifest
        >>> from monai_fedskew.data.synthetic import write_synthetic_study
        >>> with tempfile.TemporaryDirectory() as out:
        ...     site = write_synthetic_study(out, sites=("NORTH",)) / "NORTH"
        ...     verify_data(site, read_manifest(site))
    """
    if manifest.store == "files":
        _verify_files(Path(folder), manifest)
        return
    path = Path(folder) / DATA_FILES[manifest.store]
    where = f"site {manifest.site}: {path}"
    if not manifest.data_digest:
        raise DataError(f"{where}: the manifest has no data_digest to check it by; prepare again")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{where} cannot be read as an array ({error}); prepare again") from error
    digest = Digest()
    for start, rows in row_blocks(array):
        digest.add(rows)
        # the sum of a row is finite only if its values are, save for an overflow: then look at each
        with np.errstate(invalid="ignore", over="ignore"):
            suspects = np.flatnonzero(~np.isfinite(rows.sum(axis=1)))
        for row in suspects.tolist():
            bad = np.flatnonzero(~np.isfinite(rows[row]))
            if len(bad):
                raise DataError(
                    f"{where}: row {start + row} has {len(bad)} values that are not finite (first in column {bad[0]}: "
                    f"{rows[row, bad[0]]}); prepare again"
                )
    if digest.text != manifest.data_digest:
        raise DataError(
            f"{where} was changed after it was prepared: its digest is {digest.text}, the manifest says "
            f"{manifest.data_digest}; prepare again"
        )


def _verify_files(folder: Path, manifest: SiteManifest) -> None:
    for name, stated in manifest.sources.items():
        path = (folder / name).absolute()
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"site {manifest.site}: {path} cannot be read ({error.strerror}); prepare again") from error
        if found != stated:
            raise DataError(
                f"site {manifest.site}: {path} was changed after it was prepared: its SHA-256 is {found[:12]}, the "
                f"manifest says {stated[:12]}; prepare again"
            )
