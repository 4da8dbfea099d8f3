"""Seed s tests subject fold s, on every engine alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.bundle import BundleSite

__all__ = ["with_fold"]


def with_fold(bundle: Path, overrides: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the overrides with ``fold = seed % folds``, if the bundle has folds and none is given.

    Args:
        bundle: the bundle's folder.
        overrides: configuration id to value.
        seed: the seed of the run.

    Raises:
        ConfigError: the number of folds is no whole number above 0, or the bundle cannot be read.
    """
    decided, known = dict(overrides), BundleSite(bundle, "").ids()
    if "fold" in known and "fold" not in decided:
        folds = decided.get("folds", known.get("folds"))
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 1:
            raise ConfigError(f"bundle {bundle.name}: folds={folds!r} must be a whole number; or --set fold=N")
        decided["fold"] = seed % folds
    return decided
