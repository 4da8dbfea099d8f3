"""Names of labels, the same at every site."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monai_fedskew.errors import DataError

if TYPE_CHECKING:
    from monai_fedskew.data.imaging.write import Written

__all__ = ["class_names", "value_names"]

_MOST_LABELS = 20  # more values in masks, without names, are rather objects that were numbered


def class_names(written: Sequence["Written"], stated: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes: those stated, else those found, sorted, numbers by value.

    Raises:
        DataError: a class that the stated names lack.
    """
    found = {label: one.site for one in written for label in one.labels.values()}
    if not stated:
        are_numbers = all(name.isdecimal() for name in found)
        return tuple(sorted(found, key=lambda name: (int(name) if are_numbers else 0, name)))
    unknown = sorted(found.keys() - set(stated))
    if unknown:
        raise DataError(
            f"site {found[unknown[0]]}: class {unknown[0]!r} is none of the label names {', '.join(stated)}; correct "
            "--label-names, or leave it out with --classes"
        )
    return tuple(stated)


def value_names(written: Sequence["Written"], stated: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the values of masks, from 0: those stated, else background and foreground or numbers.

    Raises:
        DataError: a value without a name.
    """
    highest, site, image = max((value, one.site, name) for one in written for name, value in one.highest.items())
    if stated and highest >= len(stated):
        raise DataError(
            f"site {site}: the mask of {image} has value {highest}, the label names end at {len(stated) - 1} "
            f"({stated[-1]}); add names, or make every value above 0 one label with --binary-masks"
        )
    if stated:
        return tuple(stated)
    if highest > _MOST_LABELS:
        raise DataError(
            f"site {site}: the mask of {image} has values up to {highest}; if they number objects, or 255 is white, "
            "give --binary-masks; if each is a label, name them all with --label-names"
        )
    if highest <= 1:
        return ("background", "foreground")
    return ("background", *(f"label {value}" for value in range(1, highest + 1)))
