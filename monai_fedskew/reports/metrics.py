"""How a score is named, in which unit it is shown, and what it means that it has no value."""

from collections.abc import Collection
from dataclasses import dataclass

from monai_fedskew.core.metrics import is_better_low, is_share

__all__ = ["Metric", "describe"]

_NAMES = {"auc": "area under the ROC curve", "dice": "Dice", "hausdorff95": "Hausdorff distance, 95th percentile"}
_SHORT = {"auc": "AUC", "hausdorff95": "Hausdorff distance"}
_LACKS_CLASS = "it has no value where the test subjects lack a class"
_LACKS = {
    "dice": "it has no value where a class is neither there nor found",
    "hausdorff95": "it has no value where a class is not there or not found",
}
_MEANINGS = {
    "balanced_accuracy": "Balanced accuracy is the mean recall of the classes",
    "auc": "The area under the ROC curve is 50 % for guessing",
    "dice": "Dice is twice the shared area (or volume) of truth and prediction over the sum of both, the mean over the "
    "foreground classes of an image and then over images",
    "hausdorff95": "The Hausdorff distance is the 95th percentile of the distances between the two outlines, in both "
    "directions: lower is better. Images where a class is not there or not found have none and are counted, so that a "
    "method that finds nothing in hard images looks better than it is",
}


@dataclass(frozen=True)
class Metric:
    """A score as a report shows it.

    ``name`` is for sentences and headings, ``short`` for axes; ``unit`` is ``percent``, ``mm``, ``pixels`` or empty;
    ``lacks`` says why there may be no value, ``meaning`` explains the score in a sentence, if need be.
    """

    key: str
    name: str
    short: str
    unit: str
    is_better_low: bool = False
    lacks: str = ""
    meaning: str = ""

    @property
    def scale(self) -> float:
        """Factor from a stored score to a shown one."""
        return 100.0 if self.unit == "percent" else 1.0

    @property
    def sign(self) -> str:
        """Unit as it stands behind a figure."""
        return "%" if self.unit == "percent" else self.unit

    @property
    def points(self) -> str:
        """Unit of a difference."""
        return "percentage points" if self.unit == "percent" else self.unit or "the score's own unit"

    @property
    def best(self) -> str:
        """Which end is the good one, in a word."""
        return "lowest" if self.is_better_low else "highest"

    @property
    def worst(self) -> str:
        """Which end is the bad one, in a word."""
        return "highest" if self.is_better_low else "lowest"

    @property
    def title(self) -> str:
        """Name and unit, to begin a heading with."""
        return f"{self.name[:1].upper()}{self.name[1:]}" + (f" ({self.sign})" if self.sign else "")


def describe(key: str, units: Collection[str] = ()) -> Metric:
    """Describe a score by its name in summary.json or history.jsonl.

    Args:
        key: the name; of names that are not known, those with ``dice`` in them are taken for a Dice.
        units: of distances, ``mm`` and ``pixels``; both of sites that differ.

    Example:
        >>> describe("balanced_accuracy").title, describe("hausdorff95", ["mm"]).title
        ('Balanced accuracy (%)', 'Hausdorff distance, 95th percentile (mm)')
    """
    known = "dice" if "dice" in key.lower() else key
    unit = "percent" if is_share(known) else ""
    if is_better_low(known):
        unit = " or ".join(sorted(units))
    name = _NAMES.get(known, key.replace("_", " "))
    lacks = _LACKS.get(known, _LACKS_CLASS)
    return Metric(
        key, name, _SHORT.get(known, name), unit, is_better_low(known), lacks=lacks, meaning=_MEANINGS.get(key, "")
    )
