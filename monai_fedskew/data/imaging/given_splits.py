"""A given list of splits, laid over the images that were found."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from monai_fedskew.data.imaging.layouts.table import COLUMNS, read_csv, split_of
from monai_fedskew.data.imaging.source import ImageSource, SplitOfList
from monai_fedskew.errors import DataError

__all__ = ["apply_splits"]


def apply_splits(sources: Sequence[ImageSource], table: Path, root: Path) -> list[ImageSource]:
    """Return the images with the splits of a list; those that are not in it get an empty split.

    Args:
        sources: images as found.
        table: CSV with columns ``path`` (or image, file, filename) and ``split``; others are ignored.
        root: folder that paths start from; if an image is not there, the table's own folder.

    Raises:
        DataError: a line without its image, an image with two splits, an unknown word.
    """
    frame = read_csv(table)
    column = next((name for name in COLUMNS["image"] if name in frame.columns), None)
    if column is None or "split" not in frame.columns:
        raise DataError(f"{table} has columns {', '.join(frame.columns)}; path and split are needed")
    known = {os.path.abspath(path) for source in sources for path in source.files}
    splits: dict[str, SplitOfList] = {}
    absent: list[str] = []
    lines = zip(frame[column], frame["split"], strict=True)
    for line, (name, word) in enumerate(lines, start=2):
        where = f"{table}, line {line}"
        split = split_of(word, where)
        path = next((p for p in (os.path.abspath(x / name) for x in (root, table.parent)) if p in known), None)
        if path is None:
            absent.append(f"{where}: {name}")
        elif splits.setdefault(path, split) != split:
            raise DataError(f"{where}: {name} is in {splits[path]} and in {split}; correct the list")
    if absent:
        raise DataError(
            f"{absent[0]} is no image of {root}, nor are {len(absent) - 1} other lines of the list; get the images, or "
            "take the lines out"
        )
    return [replace(source, split=splits.get(os.path.abspath(source.files[0]), "")) for source in sources]
