"""Lists of images in the Medical Segmentation Decathlon's form, which MONAI reads too: a dataset.json a site."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from monai_fedskew.data.imaging.found import folders_in, stem
from monai_fedskew.data.imaging.source import ImageSource, SplitOfList
from monai_fedskew.errors import DataError

__all__ = ["decathlon_names", "find_decathlon"]

_LIST = "dataset.json"
_SPLITS: Mapping[str, SplitOfList] = {
    "training": "train",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def find_decathlon(root: Path) -> list[ImageSource] | None:
    """Find ``SITE/dataset.json``, or one ``dataset.json`` in the folder itself, which then is a site by its name.

    Entries of ``training`` (also ``validation``, ``test``) have ``image``, one path or a list of channels, and
    ``label``: the path of a mask, or the number of a class. Test images without label, as the decathlon's, are left
    alone. The lists are the split only if there are test images with labels; else folds are dealt.

    Raises:
        DataError: a list that is damaged, or names a file that is not there.
    """
    folders = [folder for folder in (root, *folders_in(root)) if (folder / _LIST).is_file()]
    found = [source for folder in folders for source in _site(folder)]
    if folders and not found:
        raise DataError(f"{folders[0] / _LIST} lists no image with a label under 'training'; correct the list")
    return found or None


def decathlon_names(root: Path) -> tuple[str, ...]:
    """Return the names of labels that the lists state, which must be the same at every site.

    Raises:
        DataError: sites state other names.
    """
    stated: dict[tuple[str, ...], Path] = {}
    for folder in (root, *folders_in(root)):
        if (folder / _LIST).is_file():
            stated.setdefault(_names(folder / _LIST, _load(folder / _LIST)), folder / _LIST)
    if len(stated) > 1:
        (one, here), (other, there) = list(stated.items())[:2]
        raise DataError(f"{there} names the labels {', '.join(other)}, {here} {', '.join(one)}; sites must agree")
    return next(iter(stated), ())


def _site(folder: Path) -> list[ImageSource]:
    path = folder / _LIST
    content = _load(path)
    entries = {key: content[key] for key in _SPLITS if isinstance(content.get(key), list)}
    count = content.get("numTraining")
    if isinstance(count, int) and count != len(entries.get("training", ())):
        raise DataError(f"{path}: numTraining is {count}, training has {len(entries.get('training', ()))} entries")
    labelled = {key: [entry for entry in entries[key] if isinstance(entry, dict)] for key in entries}
    labelled = {key: [entry for entry in rows if entry.get("label") is not None] for key, rows in labelled.items()}
    is_given = any(labelled.get(key) for key in ("test", "testing"))
    return [
        _source(path, entry, f"{key}[{number}]", _SPLITS[key] if is_given else "")
        for key, rows in labelled.items()
        for number, entry in enumerate(rows)
    ]


def _source(path: Path, entry: Mapping[str, Any], where: str, split: SplitOfList) -> ImageSource:
    images, label = entry.get("image"), entry["label"]
    names = images if isinstance(images, list) and images else [images]
    files = tuple(_file(path, name, where) for name in names)
    is_class = isinstance(label, int) and not isinstance(label, bool)
    return ImageSource(
        site=path.absolute().parent.name,
        id=stem(files[0]),
        files=files,
        label=str(label) if is_class else None,
        mask=None if is_class else _file(path, label, where),
        split=split,
    )


def _file(path: Path, name: object, where: str) -> Path:
    if not isinstance(name, str) or not name or not (path.parent / name).exists():
        raise DataError(
            f"{path}: {where} names {name!r}, which does not exist in {path.parent}; get it, or correct the list"
        )
    return path.parent / name


def _names(path: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return names by number, of ``{"0": "background"}`` and of nnU-Net's ``{"background": 0}`` alike."""
    labels = content.get("labels")
    if not isinstance(labels, dict) or not labels:
        return ()
    pairs = [(value, key) if isinstance(value, int) else (key, value) for key, value in labels.items()]
    try:
        names = {int(number): str(name) for number, name in pairs}
    except (TypeError, ValueError):
        names = {}
    if sorted(names) != list(range(len(labels))):
        raise DataError(f"{path}: labels are {labels!r}; names of the numbers 0, 1, ... without gaps are read")
    return tuple(names[number] for number in range(len(names)))


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no valid JSON ({error}); get it again") from error
    if not isinstance(content, dict) or not isinstance(content.get("training", []), Sequence):
        raise DataError(f"{path} is no list of images: a table with 'training' is expected")
    return content
