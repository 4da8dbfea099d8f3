"""The manifest of one site's prepared data: the only hand-over from data to a bundle.

A prepared folder holds one folder per site::

    OUT/NYU/manifest.json     this file: what each row is, where it came from, what was left out and why
    OUT/NYU/vectors.npy       (rows, features) float32; or series.npy, from which rows are computed on the fly
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.digest import array_digest, files_digest
from monai_fedskew.data.manifest_fields import AGAIN, build_manifest, check_keys, check_manifest
from monai_fedskew.data.records import (
    DATA_FILES,
    Excluded,
    Kind,
    Region,
    SiteManifest,
    Store,
    Subject,
    series_lengths,
)
from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import DataError

__all__ = [
    "DATA_FILES",
    "MANIFEST",
    "SCHEMA",
    "Excluded",
    "Kind",
    "Region",
    "SiteManifest",
    "Store",
    "Subject",
    "read_manifest",
    "require_site_name",
    "series_lengths",
    "site_folders",
    "write_manifest",
]

SCHEMA = 1
MANIFEST = "manifest.json"
_CHECKSUM = "manifest_sha256"
_BESIDE = ("schema", _CHECKSUM)
_SINCE: Mapping[str, Any] = {"shape": []}  # keys that data prepared before they came lack


def write_manifest(folder: Path, manifest: SiteManifest) -> None:
    """Write `manifest.json` into a folder, whole or not at all.

    Args:
        folder: the site's folder, which holds the array.
        manifest: what to write; an empty `data_digest` is filled in by reading the array.

    Raises:
        DataError: rows of the subjects overlap or leave gaps, a label has no name, or the array is absent or another.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     site = SiteManifest("A", ("no", "yes"), "features", (), ("age",), (Subject("s1", 1, 0, 1),))
        ...     np.save(Path(tmp) / "vectors.npy", np.zeros((1, 1), np.float32))
        ...     write_manifest(Path(tmp), site)
        ...     read_manifest(Path(tmp)).data_digest
        'crc32:2144df1c'
    """
    path = Path(folder) / MANIFEST
    check_manifest(path, manifest)
    array = _open_data(Path(folder), manifest)
    if not manifest.data_digest:
        digest = files_digest(manifest.sources) if array is None else array_digest(array)
        manifest = replace(manifest, data_digest=digest)
    content = {"schema": SCHEMA, **asdict(manifest), "subjects": [subject.plain() for subject in manifest.subjects]}
    content[_CHECKSUM] = _checksum(content)
    temporary = path.with_name(f".{MANIFEST}.{os.getpid()}")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_manifest(folder: Path) -> SiteManifest:
    """Read and check the manifest of one site; see `write_manifest` for an example.

    Of the array it looks at shape and type only, which costs no time; `monai_fedskew.data.integrity.verify_data` reads
    the values.

    Args:
        folder: the site's folder, holding `manifest.json` and the data file it describes.

    Raises:
        DataError: the file is absent, damaged, edited by hand, of another schema, or contradicts the data file.
    """
    path = Path(folder) / MANIFEST
    content = _load(path)
    if content.get("schema") != SCHEMA:
        raise DataError(
            f"{path}: key 'schema' is {content.get('schema')!r}, this version of monai_fedskew reads {SCHEMA}; "
            "prepare the data again"
        )
    check_keys(path, [*content, *_SINCE.keys() - content.keys()], beside=_BESIDE)
    found, stated = _checksum(content), content.get(_CHECKSUM)
    if found != stated:
        raise DataError(
            f"{path}: key '{_CHECKSUM}' is {str(stated)[:12]!r} but the content gives {found[:12]!r}: "
            f"the file was changed after it was written; {AGAIN}"
        )
    manifest = build_manifest(path, {**_SINCE, **{key: value for key, value in content.items() if key not in _BESIDE}})
    check_manifest(path, manifest)
    _open_data(Path(folder), manifest)
    return manifest


def site_folders(root: Path) -> dict[str, Path]:
    """Find the sites of a prepared folder, sorted by name.

    Args:
        root: what `fedskew abide|images prepare` wrote; hidden folders in it, and others without data, are no sites.

    Raises:
        DataError: there is no such folder or no site in it, a folder has data but no manifest, a folder's name cannot
            be a site's, or the manifest in it is of another site.

    Example:
        >>> import tempfile
        >>> from monai_fedskew.data.synthetic import write_synthetic_study
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     list(site_folders(write_synthetic_study(tmp, sites=("NYU", "USM"))))
        ['NYU', 'USM']
    """
    root = Path(root)
    inside = sorted(root.iterdir()) if root.is_dir() else []
    found = [path for path in inside if not path.name.startswith(".") and path.is_dir() and _is_site(path)]
    if not found:
        state = "holds no site (no */manifest.json)" if root.is_dir() else "does not exist or is no folder"
        raise DataError(
            f"prepared data folder {root} {state}; give what `fedskew abide prepare` or `images prepare` wrote"
        )
    for folder in found:
        require_site_name(folder.name, f"{root}: the name of a folder")
        content = _load(folder / MANIFEST)
        site = content["site"] if "site" in content else read_manifest(folder).site  # which says what is wrong with it
        if site != folder.name:
            raise DataError(
                f"{folder / MANIFEST}: key 'site' is {str(site)[:60]!r}, but the folder is named {folder.name!r}: a "
                "copied or renamed folder would pass for another site; rename it back or prepare the data again"
            )
    return {folder.name: folder for folder in found}


def _is_site(folder: Path) -> bool:
    if (folder / MANIFEST).is_file():
        return True
    data = [name for name in DATA_FILES.values() if (folder / name).exists()]
    if data or (folder / MANIFEST).is_symlink():
        raise DataError(
            f"{folder}: {data[0] if data else 'a link'} but no {MANIFEST}, so this site would be missed; "
            "prepare again, or remove the folder"
        )
    return False


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; give a site's folder written by `fedskew abide prepare` or `images prepare`"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON ({error}); {AGAIN}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} where an object is expected; {AGAIN}")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _open_data(folder: Path, manifest: SiteManifest) -> npt.NDArray[Any] | None:
    """Look at the array, or, where a site's images are files, for the files."""
    if manifest.store == "files":
        _require_files(folder, manifest)
        return None
    path = folder / DATA_FILES[manifest.store]
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist although the manifest beside it names it; {AGAIN}") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as an array ({error}); {AGAIN}") from error
    expected, kind = (manifest.n_rows, manifest.n_features), "float32"
    if manifest.store == "series":
        expected, kind = (sum(series_lengths(manifest)), len(manifest.regions)), "float64"
    if array.shape != expected:
        raise DataError(f"{path} has shape {array.shape}, but the manifest describes {expected}; {AGAIN}")
    if array.dtype != kind or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else " in Fortran order"
        raise DataError(f"{path} holds {array.dtype}{order}, expected {kind} in C order; {AGAIN}")
    return array


def _require_files(folder: Path, manifest: SiteManifest) -> None:
    for subject in manifest.subjects:
        for name in (*subject.files, *filter(None, [subject.mask])):
            if not (folder / name).exists():
                raise DataError(
                    f"site {manifest.site}: {os.path.abspath(folder / name)} of image {subject.id!r} does not exist; "
                    "put it back, or prepare the data again (with --copy the folder holds its files and can be moved)"
                )
