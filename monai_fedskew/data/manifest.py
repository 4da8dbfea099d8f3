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
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.digest import array_digest
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
    "series_lengths",
    "site_folders",
    "write_manifest",
]

SCHEMA = 1
MANIFEST = "manifest.json"
_CHECKSUM = "manifest_sha256"
_AGAIN = "prepare the data again instead of editing the file"


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
    _check(path, manifest)
    array = _open_data(Path(folder), manifest)
    if not manifest.data_digest:
        manifest = replace(manifest, data_digest=array_digest(array))
    content = {"schema": SCHEMA, **asdict(manifest)}
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
        raise DataError(f"{path}: key 'schema' is {content.get('schema')!r}, this version reads {SCHEMA}; {_AGAIN}")
    found, stated = _checksum(content), content.get(_CHECKSUM)
    if found != stated:
        raise DataError(
            f"{path}: key '{_CHECKSUM}' is {str(stated)[:12]!r} but the content gives {found[:12]!r}: "
            f"the file was changed after it was written; {_AGAIN}"
        )
    manifest = _build(path, content)
    _check(path, manifest)
    _open_data(Path(folder), manifest)
    return manifest


def site_folders(root: Path) -> dict[str, Path]:
    """Find the sites of a prepared folder, sorted by name.

    Args:
        root: what `fedskew abide prepare --out` wrote.

    Raises:
        DataError: there is no such folder or no site in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     (Path(tmp) / "NYU").mkdir()
        ...     _ = (Path(tmp) / "NYU" / "manifest.json").write_text("{}")
        ...     list(site_folders(Path(tmp)))
        ['NYU']
    """
    root = Path(root)
    found = sorted(path.parent for path in root.glob(f"*/{MANIFEST}") if not path.parent.name.startswith("."))
    if not found:
        state = "holds no site (no */manifest.json)" if root.is_dir() else "does not exist"
        raise DataError(f"prepared data folder {root} {state}; give what `fedskew abide prepare --out` wrote")
    return {folder.name: folder for folder in found}


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a site's folder written by `fedskew abide prepare`") from None
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON ({error}); {_AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__} where an object is expected; {_AGAIN}")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _build(path: Path, content: Mapping[str, Any]) -> SiteManifest:
    values = {key: value for key, value in content.items() if key not in ("schema", _CHECKSUM)}
    try:
        values["regions"] = tuple(
            Region(str(r["label"]), str(r["name"]), tuple(r["xyz"]) if r["xyz"] else None) for r in values["regions"]
        )
        values["subjects"] = tuple(Subject(**subject) for subject in values["subjects"])
        values["excluded"] = tuple(Excluded(**excluded) for excluded in values["excluded"])
        values["label_names"], values["features"] = tuple(values["label_names"]), tuple(values["features"])
        return SiteManifest(**values)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: missing or unknown key ({error}); {_AGAIN}") from error


def _check(path: Path, manifest: SiteManifest) -> None:
    if manifest.kind not in get_args(Kind) or manifest.store not in get_args(Store):
        raise DataError(f"{path}: kind {manifest.kind!r} or store {manifest.store!r} is unknown; {_AGAIN}")
    at = 0
    for subject in manifest.subjects:
        if subject.start != at or subject.stop <= subject.start:
            raise DataError(
                f"{path}: key 'subjects': {subject.id} has rows {subject.start} to {subject.stop}, "
                f"but rows must follow each other without gaps and the next is {at}; {_AGAIN}"
            )
        if not 0 <= subject.label < len(manifest.label_names):
            names = len(manifest.label_names)
            raise DataError(f"{path}: 'subjects': {subject.id} has label {subject.label} of {names} labels; {_AGAIN}")
        at = subject.stop
    if len({subject.id for subject in manifest.subjects}) != len(manifest.subjects):
        raise DataError(f"{path}: key 'subjects': a subject appears twice; {_AGAIN}")


def _open_data(folder: Path, manifest: SiteManifest) -> npt.NDArray[Any]:
    path = folder / DATA_FILES[manifest.store]
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist although the manifest beside it names it; {_AGAIN}") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} cannot be read as an array ({error}); {_AGAIN}") from error
    expected, kind = (manifest.n_rows, manifest.n_features), "float32"
    if manifest.store == "series":
        expected, kind = (sum(series_lengths(manifest)), len(manifest.regions)), "float64"
    if array.shape != expected:
        raise DataError(f"{path} has shape {array.shape}, but the manifest describes {expected}; {_AGAIN}")
    if array.dtype != kind or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else " in Fortran order"
        raise DataError(f"{path} holds {array.dtype}{order}, expected {kind} in C order; {_AGAIN}")
    return array
