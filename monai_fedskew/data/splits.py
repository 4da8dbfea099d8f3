"""Splits by subject: no subject, and so no window of one, is ever in two of train, validation and test."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from monai_fedskew.data.manifest import SiteManifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Split", "split", "subject_folds"]


@dataclass(frozen=True)
class Split:
    """Subject ids of the three parts, each sorted."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]


def subject_folds(
    subject_ids: Sequence[str], labels: Sequence[int], *, folds: int = 5, seed: int = 0
) -> tuple[tuple[str, ...], ...]:
    """Deal subjects into folds that keep the share of each label.

    Args:
        subject_ids: one id a subject, each once; a list with repeats is a list of windows and is refused.
        labels: label of each subject.
        folds: number of folds, at least 2 and at most the size of the smallest class.
        seed: which shuffle.

    Returns:
        The subject ids of each fold, sorted; the order of the input does not matter.

    Raises:
        ConfigError: a subject appears twice (a split by window), or lengths or `folds` do not fit.
        DataError: a class has fewer subjects than there are folds.

    Example:
        >>> folds = subject_folds(["s1", "s2", "s3", "s4"], [0, 0, 1, 1], folds=2)
        >>> sorted(folds[0] + folds[1])
        ['s1', 's2', 's3', 's4']
    """
    _require_subjects(subject_ids, labels)
    smallest = min((list(labels).count(label) for label in set(labels)), default=0)
    if folds < 2:
        raise ConfigError(f"folds={folds}: at least 2 are needed to keep test subjects apart")
    if smallest < folds:
        raise DataError(f"the smallest class has {smallest} subjects, too few for {folds} folds; use fewer folds")
    return _dealt(tuple(map(str, subject_ids)), tuple(map(int, labels)), folds, seed)


def split(
    manifest: SiteManifest, *, fold: int, folds: int = 5, validation_fraction: float = 0.1, seed: int = 0
) -> Split:
    """Split a site's subjects: fold number `fold` is the test, a stratified part of the rest the validation.

    Where the manifest carries a given list of splits, as benchmarks publish them, that list is the split whatever the
    fold; only where it names no validation is a part of its training subjects kept for it.

    Args:
        manifest: the site.
        fold: 0 to folds - 1.
        folds: number of folds.
        validation_fraction: share of the subjects outside the test, 0 <= fraction < 1; 0 gives none.
        seed: which shuffle; equal for all folds of one cross-validation.

    Raises:
        ConfigError: `fold` or `validation_fraction` is out of range.
        DataError: too few subjects of a class.

    Example:
        >>> from monai_fedskew.data.manifest import Subject
        >>> subjects = tuple(Subject(f"s{i:02}", i % 2, 45 * i, 45 * i + 45) for i in range(20))
        >>> site = SiteManifest("A", ("no", "yes"), "features", (), ("x",), subjects)
        >>> parts = split(site, fold=0, validation_fraction=0.25)
        >>> len(parts.train), len(parts.validation), len(parts.test)
        (12, 4, 4)
    """
    if not 0 <= fold < folds:
        raise ConfigError(f"fold={fold}: must lie in 0 to {folds - 1} (folds={folds})")
    if not 0 <= validation_fraction < 1:
        raise ConfigError(f"validation_fraction={validation_fraction}: must lie in [0, 1)")
    groups = _group_labels(manifest)
    if manifest.subjects and manifest.subjects[0].split:
        return _given(manifest, groups, validation_fraction, seed)
    try:
        test = set(subject_folds(list(groups), list(groups.values()), folds=folds, seed=seed)[fold])
    except DataError as error:
        raise DataError(f"site {manifest.site}: {error}") from error
    rest = [group for group in groups if group not in test]
    validation = _validation(manifest.site, rest, [groups[g] for g in rest], validation_fraction, seed)
    return Split(*(_members(manifest, part) for part in (set(rest) - validation, validation, test)))


@lru_cache(maxsize=64)
def _dealt(names: tuple[str, ...], labels: tuple[int, ...], folds: int, seed: int) -> tuple[tuple[str, ...], ...]:
    """The folds; cached, as a site that is rebuilt in every round asks for the same ones again and again."""
    from sklearn.model_selection import StratifiedKFold

    order = np.argsort(np.asarray(names))
    sorted_names, classes = np.asarray(names)[order], np.asarray(labels)[order]
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(sorted_names, classes)
    return tuple(tuple(sorted_names[test].tolist()) for _, test in parts)


@lru_cache(maxsize=64)
def _drawn(names: tuple[str, ...], labels: tuple[int, ...], size: int, seed: int) -> frozenset[str]:
    """A stratified part of so many; cached as the folds are."""
    from sklearn.model_selection import train_test_split

    _, chosen = train_test_split(names, test_size=size, random_state=seed, stratify=labels)
    return frozenset(chosen)


def _given(manifest: SiteManifest, groups: dict[str, int], validation_fraction: float, seed: int) -> Split:
    listed = {name: {s.group for s in manifest.subjects if s.split == name} for name in ("train", "validation", "test")}
    if not listed["validation"]:
        rest = [group for group in groups if group in listed["train"]]
        chosen = _validation(manifest.site, rest, [groups[g] for g in rest], validation_fraction, seed)
        listed |= {"train": listed["train"] - chosen, "validation": chosen}
    return Split(*(_members(manifest, part) for part in listed.values()))


def _require_subjects(subject_ids: Sequence[str], labels: Sequence[int]) -> None:
    if len(subject_ids) != len(labels):
        raise ConfigError(f"{len(subject_ids)} subject ids but {len(labels)} labels: one label a subject is needed")
    if len(set(subject_ids)) != len(subject_ids):
        twice = next(name for name in subject_ids if list(subject_ids).count(name) > 1)
        raise ConfigError(
            f"subject {twice} appears more than once: a split by window would put a subject on both sides; "
            "give each subject once"
        )


def _group_labels(manifest: SiteManifest) -> dict[str, int]:
    """Label of each group, in sorted order; a group of several subjects counts by its commonest label."""
    found: dict[str, list[int]] = {}
    for subject in manifest.subjects:
        found.setdefault(subject.group, []).append(subject.label)
    return {group: max(sorted(set(labels)), key=labels.count) for group, labels in sorted(found.items())}


def _validation(site: str, groups: list[str], labels: list[int], fraction: float, seed: int) -> set[str]:
    if fraction == 0:
        return set()
    size = max(round(fraction * len(groups)), len(set(labels)))
    try:
        return set(_drawn(tuple(groups), tuple(labels), size, seed))
    except ValueError as error:
        raise DataError(
            f"site {site}: {len(groups)} subjects outside the test fold do not give {size} for validation ({error}); "
            "lower validation_fraction or set it to 0"
        ) from error


def _members(manifest: SiteManifest, groups: set[str]) -> tuple[str, ...]:
    return tuple(sorted(subject.id for subject in manifest.subjects if subject.group in groups))
