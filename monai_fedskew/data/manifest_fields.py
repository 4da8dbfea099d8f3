"""Check what stands in a manifest and turn it into a `SiteManifest`: keys, types, ranges, rows in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from monai_fedskew.data.records import Excluded, GivenSplit, Kind, Region, SiteManifest, Store, Subject
from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import DataError

__all__ = ["AGAIN", "build_manifest", "check_keys", "check_manifest"]

AGAIN = "prepare the data again instead of editing the file"
_Check = Callable[[Any], bool]


def check_keys(path: Path, keys: Sequence[str], *, beside: Sequence[str]) -> None:
    """Refuse a manifest that has other keys than this version writes.

    Args:
        path: the manifest, for the error.
        keys: its keys.
        beside: the keys that are no field of `SiteManifest`.

    Raises:
        DataError: a key is missing or unknown.
    """
    known = {*beside, *(item.name for item in fields(SiteManifest))}
    faults = [f"{key} is missing" for key in sorted(known - set(keys))]
    faults += [f"{key!r} is unknown" for key in sorted(set(keys) - known)]
    if faults:
        shown = ", ".join(faults[:5]) + (", ..." if len(faults) > 5 else "")
        raise DataError(f"{path}: written by another version of monai_fedskew (key {shown}); prepare the data again")


def build_manifest(path: Path, content: Mapping[str, Any]) -> SiteManifest:
    """Build a manifest from what its file holds.

    Args:
        path: the file, for errors.
        content: the fields of `SiteManifest` as JSON has them.

    Raises:
        DataError: a value is of the wrong type or out of range. Names the key and the value.
    """
    for key, (check, expected) in _TYPES.items():
        if not check(content[key]):
            shown = repr(content[key])
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise DataError(f"{path}: key {key!r} is {shown}, expected {expected}; {AGAIN}")
    values = dict(content)
    values["regions"] = tuple(
        Region(r["label"], r["name"], (r["xyz"][0], r["xyz"][1], r["xyz"][2]) if r["xyz"] else None)
        for r in content["regions"]
    )
    values["subjects"] = tuple(
        Subject(**{**subject, "files": tuple(subject.get("files", ()))}) for subject in content["subjects"]
    )
    values["excluded"] = tuple(Excluded(**excluded) for excluded in content["excluded"])
    for key in ("label_names", "features", "shape"):
        values[key] = tuple(content[key])
    return SiteManifest(**values)


def check_manifest(path: Path, manifest: SiteManifest) -> None:
    """Refuse a manifest that contradicts itself.

    Args:
        path: the file, for errors.
        manifest: what it says, of the right types.

    Raises:
        DataError: the site's name is none, kind or store is unknown, rows overlap or leave gaps, a label has no name,
            a subject appears twice, or series come without a window.
    """
    require_site_name(manifest.site, f"{path}: key 'site'")
    if manifest.kind not in get_args(Kind) or manifest.store not in get_args(Store):
        raise DataError(f"{path}: kind {manifest.kind!r} or store {manifest.store!r} is unknown; {AGAIN}")
    if manifest.store == "series" and (manifest.window < 3 or manifest.kind != "edges"):
        raise DataError(
            f"{path}: store 'series' with window {manifest.window} and kind {manifest.kind!r}: rows can only be "
            f"computed as edges, from at least 3 volumes; {AGAIN}"
        )
    if manifest.store == "files" and manifest.kind != "image":
        raise DataError(f"{path}: store 'files' with kind {manifest.kind!r}: only images stay files; {AGAIN}")
    if (manifest.kind == "image") != bool(manifest.shape) or any(size < 1 for size in manifest.shape):
        raise DataError(
            f"{path}: kind {manifest.kind!r} with shape {list(manifest.shape)}: images, and only they, have a shape "
            f"(channels, *spatial) of sizes of at least 1; {AGAIN}"
        )
    at = 0
    for subject in manifest.subjects:
        if subject.start != at or subject.stop <= subject.start:
            raise DataError(
                f"{path}: key 'subjects': {subject.id} has rows {subject.start} to {subject.stop}, "
                f"but rows must follow each other without gaps and the next is {at}; {AGAIN}"
            )
        if not 0 <= subject.label < len(manifest.label_names):
            names = len(manifest.label_names)
            raise DataError(f"{path}: 'subjects': {subject.id} has label {subject.label} of {names} labels; {AGAIN}")
        at = subject.stop
    if len({subject.id for subject in manifest.subjects}) != len(manifest.subjects):
        raise DataError(f"{path}: key 'subjects': a subject appears twice; {AGAIN}")
    _check_files(path, manifest)
    _check_given_splits(path, manifest)


def _check_files(path: Path, manifest: SiteManifest) -> None:
    """Refuse images that have files where there is an array, and those that have none where there is no array."""
    for subject in manifest.subjects:
        named = [*subject.files, *filter(None, [subject.mask])]
        if manifest.store != "files":
            if named:
                raise DataError(f"{path}: 'subjects': {subject.id} has files, but store is {manifest.store!r}; {AGAIN}")
            continue
        if not subject.files or subject.stop != subject.start + 1:
            raise DataError(
                f"{path}: 'subjects': {subject.id} has {len(subject.files)} files and {subject.stop - subject.start} "
                f"rows; with store 'files' it is one image, so one row, of at least one file; {AGAIN}"
            )
        for name in named:
            if name not in manifest.sources:
                raise DataError(f"{path}: 'sources' lacks {name!r} of {subject.id}; {AGAIN}")


def _check_given_splits(path: Path, manifest: SiteManifest) -> None:
    """Refuse a list of splits that leaves subjects out, or that cuts a group apart."""
    given: dict[str, str] = {}
    for subject in manifest.subjects:
        if subject.split not in get_args(GivenSplit):
            raise DataError(f"{path}: 'subjects': {subject.id} has split {subject.split!r}, no such split; {AGAIN}")
        if bool(subject.split) != bool(manifest.subjects[0].split):
            raise DataError(f"{path}: 'subjects': {subject.id} and {manifest.subjects[0].id}: one has a split; {AGAIN}")
        if given.setdefault(subject.group, subject.split) != subject.split:
            raise DataError(
                f"{path}: 'subjects': group {subject.group!r} is in the {given[subject.group]} and the {subject.split} "
                "split; a subject must not be on both sides: correct the list of splits and prepare again"
            )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _is_place(value: Any) -> bool:
    return value is None or (_list_of(_is_number)(value) and len(value) == 3)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _table_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(check(item) for item in value.values())


def _record(optional: Mapping[str, _Check] | None = None, /, **checks: _Check) -> _Check:
    known = {**checks, **(optional or {})}
    return lambda value: (
        isinstance(value, dict)
        and checks.keys() <= value.keys() <= known.keys()
        and all(known[key](value[key]) for key in value)
    )


_REGION = _record(label=_is_name, name=_is_text, xyz=_is_place)
_OF_IMAGES: Mapping[str, _Check] = {"split": _is_text, "files": _list_of(_is_name), "mask": _is_text}
_SUBJECT = _record(_OF_IMAGES, id=_is_name, label=_is_whole, start=_is_whole, stop=_is_whole, group=_is_text)
_TYPES: Mapping[str, tuple[_Check, str]] = {
    "site": (_is_text, "text"),
    "label_names": (_list_of(_is_text), "a list of names"),
    "kind": (_is_text, "text"),
    "regions": (_list_of(_REGION), "a list of regions with label, name and xyz (three numbers or null)"),
    "features": (_list_of(_is_text), "a list of names"),
    "subjects": (
        _list_of(_SUBJECT),
        "a list of subjects with id, label, start, stop, group (split, files, mask)",
    ),
    "excluded": (_list_of(_record(id=_is_text, reason=_is_text)), "a list of subjects with id and reason"),
    "estimator": (_is_text, "text"),
    "window": (lambda value: _is_whole(value) and value >= 0, "a whole number of volumes, 0 or more"),
    "stride": (lambda value: _is_whole(value) and value >= 1, "a whole number of volumes, at least 1"),
    "store": (_is_text, "text"),
    "sources": (_table_of(_is_text), "a table of texts"),
    "data_digest": (_is_text, "text"),
    "summary": (_table_of(_is_number), "a table of numbers"),
    "notes": (_table_of(_is_text), "a table of texts"),
    "shape": (_list_of(_is_whole), "a list of whole numbers"),
}
