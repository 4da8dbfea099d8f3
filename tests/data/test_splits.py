import numpy as np
import pytest

from monai_fedskew.data.manifest import SiteManifest, Subject
from monai_fedskew.data.splits import split, subject_folds
from monai_fedskew.errors import ConfigError, DataError


def site(subjects: int = 10, windows: int = 45, groups: int | None = None) -> SiteManifest:
    """A site of alternating labels."""
    people = tuple(
        Subject(f"{k:07d}", k % 2, windows * k, windows * (k + 1), "" if groups is None else f"g{k % groups}")
        for k in range(subjects)
    )
    return SiteManifest("A", ("control", "autism"), "features", (), ("x",), people)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_no_subject_is_in_two_parts_of_any_fold(seed: int) -> None:
    """Case 28: parts are disjoint, cover all, each subject is tested once, each fold has both classes."""
    manifest, tested = site(), []
    label = {subject.id: subject.label for subject in manifest.subjects}
    for fold in range(5):
        parts = split(manifest, fold=fold, seed=seed, validation_fraction=0.25)
        train, validation, test = (set(part) for part in (parts.train, parts.validation, parts.test))
        assert not train & validation
        assert not train & test
        assert not validation & test
        assert train | validation | test == set(label)
        assert {label[name] for name in test} == {label[name] for name in validation} == {0, 1}
        tested += parts.test
    assert sorted(tested) == sorted(label)


def test_a_split_by_window_is_refused() -> None:
    """Case 28: a list with one entry a window puts a subject on both sides, so it is a ValueError."""
    ids = np.repeat([f"{k:07d}" for k in range(10)], 45).tolist()
    with pytest.raises(ValueError, match="subject 0000000 appears more than once: a split by window"):
        subject_folds(ids, [0, 1] * 225)


def test_the_order_of_subjects_does_not_matter() -> None:
    """The same subjects in another order fall into the same folds; another seed moves them."""
    ids, labels = [f"{k:03d}" for k in range(20)], [k % 2 for k in range(20)]
    folds = subject_folds(ids, labels, seed=3)
    assert subject_folds(ids[::-1], labels[::-1], seed=3) == folds
    assert subject_folds(ids, labels, seed=4) != folds


def test_a_group_is_not_cut() -> None:
    """Subjects of one group, such as a family, go to the same part."""
    manifest = site(40, groups=20)
    parts = split(manifest, fold=1)
    group = {subject.id: subject.group for subject in manifest.subjects}
    train, validation, test = ({group[name] for name in part} for part in (parts.train, parts.validation, parts.test))
    assert not train & validation
    assert not (train | validation) & test


def test_no_validation_on_request() -> None:
    """A fraction of 0 leaves all other subjects to training."""
    parts = split(site(), fold=0, validation_fraction=0)
    assert parts.validation == ()
    assert len(parts.train) == 8


def test_wrong_calls_say_what_is_out_of_range() -> None:
    """Folds, fold and fraction are checked, and classes smaller than the folds."""
    with pytest.raises(ConfigError, match="fold=5: must lie in 0 to 4"):
        split(site(), fold=5)
    with pytest.raises(ConfigError, match="validation_fraction=1"):
        split(site(), fold=0, validation_fraction=1)
    with pytest.raises(ConfigError, match="folds=1: at least 2"):
        subject_folds(["a", "b"], [0, 1], folds=1)
    with pytest.raises(ConfigError, match="2 subject ids but 1 labels"):
        subject_folds(["a", "b"], [0])
    with pytest.raises(DataError, match="site A: the smallest class has 3 subjects, too few for 5 folds"):
        split(site(6), fold=0)
