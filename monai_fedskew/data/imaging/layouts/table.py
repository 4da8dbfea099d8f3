"""A table that says where each image belongs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fedskew.data.imaging.found import stem
from monai_fedskew.data.imaging.layouts.folders import split_names
from monai_fedskew.data.imaging.source import ImageSource, SplitOfList
from monai_fedskew.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "find_named_table", "named_table_names", "read_csv", "read_table", "split_of", "table_names"]

# what a column is for: the names it may have
COLUMNS: Mapping[str, Sequence[str]] = {
    "image": ("image", "path", "file", "filename"),
    "mask": ("mask", "segmentation"),
    "label": ("class", "label"),
    "subject": ("subject", "patient", "group"),
    "split": ("split",),
    "site": ("site", "domain", "center"),
}
_NAMES = ("images.csv",)


def find_named_table(root: Path) -> list[ImageSource] | None:
    """Find a table ``images.csv`` in the folder itself."""
    table = next((root / name for name in _NAMES if (root / name).is_file()), None)
    return None if table is None else read_table(table, root)


def named_table_names(root: Path) -> tuple[str, ...]:
    """Return the names of classes that the table in the folder states, see `table_names`."""
    table = next((root / name for name in _NAMES if (root / name).is_file()), None)
    return () if table is None else table_names(table)


def read_table(table: Path, root: Path) -> list[ImageSource]:
    """Read a CSV with a line an image.

    Args:
        table: columns ``image`` (or path, file, filename; several files, its channels, with ``;`` between), and of
            ``label`` (or class), ``mask``, ``subject`` (or patient, group), ``split``, ``site`` (or domain, center)
            those that there are. Where ``mask`` is there, ``label`` is not used. Without ``site`` the first folder of
            the path is the site.
        root: folder that paths start from; if a file is not there, the table's own folder.

    Raises:
        DataError: a column is missing, a value is, or a file is not there. Names table and line.
    """
    frame = read_csv(table)
    columns = {use: next((name for name in names if name in frame.columns), None) for use, names in COLUMNS.items()}
    if columns["image"] is None or (columns["label"] is None and columns["mask"] is None):
        raise DataError(
            f"{table} has columns {', '.join(frame.columns)}; image is needed, and label or mask (see "
            "`fedskew images layouts`)"
        )
    found = []
    for line, row in enumerate(frame.to_dict("records"), start=2):
        where = f"{table}, line {line}"
        given = {use: str(row[name]).strip() if name else "" for use, name in columns.items()}
        files = tuple(_file(name.strip(), root, table, where) for name in given["image"].split(";"))
        if columns["mask"] is None and not given["label"]:
            raise DataError(f"{where}: {given['image']} has no label; fill it in, or take the line out")
        if columns["mask"] is not None and not given["mask"]:
            raise DataError(f"{where}: {given['image']} has no mask; fill it in, or take the line out")
        site = given["site"] or _first_folder(given["image"], where)
        found.append(
            ImageSource(
                site=site,
                id=_name(given["image"].split(";")[0].strip(), site),
                files=files,
                label=None if columns["mask"] else given["label"],
                mask=_file(given["mask"], root, table, where) if columns["mask"] else None,
                group=given["subject"],
                split=split_of(given["split"], where) if given["split"] else "",
            )
        )
    return found


def table_names(table: Path) -> tuple[str, ...]:
    """Return the names of classes in the order of their numbers, of a table with both ``class`` and ``label``."""
    frame = read_csv(table)
    if not {"class", "label"} <= set(frame.columns) or not frame["label"].str.fullmatch(r"\d+").all():
        return ()
    pairs = frame[["label", "class"]].drop_duplicates()
    if pairs["label"].duplicated().any() or pairs["class"].duplicated().any():
        raise DataError(f"{table}: columns label and class do not go together one to one; correct the table")
    return tuple(pairs.assign(number=pairs["label"].astype(int)).sort_values("number")["class"])


def read_csv(table: Path) -> "pd.DataFrame":
    """Read a table of texts, with the names of its columns in lower case.

    Raises:
        DataError: it cannot be read, or has no line.
    """
    import pandas as pd

    try:
        # the names are read as a line of their own: pandas would rename what is there twice, and take the first column
        # of longer lines for an index, which shifts all others
        lines = pd.read_csv(table, header=None, dtype=str, keep_default_na=False, encoding="utf-8-sig").fillna("")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{table} cannot be read as a table ({reason}); give a CSV with a line of names first"
        ) from error
    names = [str(name).strip().lower() for name in lines.iloc[0]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{table} has two columns {twice!r}; leave one")
    frame = lines.iloc[1:].set_axis(names, axis=1).reset_index(drop=True)
    if frame.empty:
        raise DataError(f"{table} has no line below its names of columns")
    return frame


def split_of(name: str, where: str) -> SplitOfList:
    """Return which split a word means.

    Raises:
        DataError: none.
    """
    split = split_names.get(name.strip().lower())
    if split is None:
        raise DataError(f"{where}: split is {name!r}; write train, validation or test")
    return split


def _file(name: str, root: Path, table: Path, where: str) -> Path:
    path = next((place / name for place in (root, table.parent) if name and (place / name).exists()), None)
    if path is None:
        raise DataError(f"{where}: {name or 'an empty name'} does not exist in {root}; correct the table")
    return path


def _first_folder(name: str, where: str) -> str:
    parts = Path(name).parts
    if len(parts) < 2:
        raise DataError(f"{where}: {name} lies in no site's folder, and the table has no column site; add one")
    return parts[0]


def _name(path: str, site: str) -> str:
    place = Path(os.path.normpath(path))  # a/../b.png is b.png, which may have a line of its own
    parts = (*place.parent.parts, stem(place))
    at = parts.index(site) + 1 if site in parts[:-1] else 0
    return "/".join(part for part in parts[at:] if part not in ("..", "/"))
