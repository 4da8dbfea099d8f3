"""Rows dealt to clients: laws of both kinds, and the rule of the full client by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from monai_fedskew.data.partition import Partition, dirichlet_partition, homogeneous_partition, parse_partition
from monai_fedskew.errors import ConfigError, DataError

LABELS = np.repeat([0, 1, 2], [300, 200, 100])
GROUPS = np.repeat(np.arange(120), 5)  # subjects of 5 windows; a class never ends inside one
DEALS: list[Callable[..., tuple[Any, ...]]] = [
    lambda labels, clients, seed, groups=None: dirichlet_partition(labels, clients, 0.5, seed=seed, groups=groups),
    lambda labels, clients, seed, groups=None: homogeneous_partition(labels, clients, seed=seed, groups=groups),
]


def _shares(parts: tuple[Any, ...]) -> np.ndarray:
    """Samples of each class (columns) at each client (rows)."""
    return np.array([np.bincount(LABELS[part], minlength=3) for part in parts])


@pytest.mark.parametrize("deal", DEALS, ids=["dirichlet", "homogeneous"])
@pytest.mark.parametrize("clients", [2, 8, 16])
@pytest.mark.parametrize("groups", [None, GROUPS], ids=["samples", "subjects"])
def test_each_row_is_at_exactly_one_client(deal: Any, clients: int, groups: Any) -> None:
    """Law: a partition, in ascending order, nobody empty; whole subjects where they are named."""
    parts = deal(LABELS, clients, 3, groups)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    assert all(len(part) and (np.diff(part) > 0).all() for part in parts)
    if groups is not None:
        owners = [set(groups[part]) for part in parts]
        assert sum(map(len, owners)) == len(set.union(*owners)) == 120


@pytest.mark.parametrize("deal", DEALS, ids=["dirichlet", "homogeneous"])
def test_a_seed_decides_and_another_deals_otherwise(deal: Any) -> None:
    """Law: the same seed, the same clients; nothing depends on numpy's global state."""
    np.random.seed(1)
    first = deal(LABELS, 8, 0)
    np.random.seed(2)
    assert all(np.array_equal(a, b) for a, b in zip(first, deal(LABELS, 8, 0), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, deal(LABELS, 8, 1), strict=True))


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["samples", "subjects"])
def test_a_large_alpha_approaches_homogeneous_and_a_small_one_is_skewed(groups: Any) -> None:
    """Law: class shares at 8 clients differ from even ones by little at 1e6, by more at 0.5, most at 0.1."""
    even = _shares(homogeneous_partition(LABELS, 8, seed=0, groups=groups))
    skew = []
    for alpha in (1e6, 0.5, 0.1):
        draws = [dirichlet_partition(LABELS, 8, alpha, seed=seed, groups=groups) for seed in range(5)]
        skew.append(np.mean([np.abs(_shares(parts) - even).sum() for parts in draws]))
    assert skew[0] <= (30 if groups is None else 120)  # rounding: a sample, or a subject of 5, a client and class
    assert skew[0] < skew[1] < skew[2]


def test_homogeneous_clients_differ_by_one_of_a_class_and_one_in_all() -> None:
    """300, 200 and 100 over 16 clients: 18 or 19, 12 or 13, 6 or 7 of the classes; 37 or 38 samples."""
    shares = _shares(homogeneous_partition(LABELS, 16, seed=0))
    assert shares.min(axis=0).tolist() == [18, 12, 6]
    assert shares.max(axis=0).tolist() == [19, 13, 7]
    assert {*shares.sum(axis=1)} == {37, 38}


def test_a_full_client_gets_nothing_more() -> None:
    """By hand: 2 clients, 60 of class 0 and 40 of class 1, so N / K = 50, and alpha = 1e6 means halves.

    Class 0: 30 and 30. Class 1: neither holds 50, so 20 and 20. With 90 and 10 it is 45 and 45, then 5 and 5. With
    class 0 of one subject of 60 a client holds 60 > 50 after it and gets nothing of class 1: 60 and 40.
    """
    halves = dirichlet_partition([0] * 60 + [1] * 40, 2, 1e6, seed=0)
    assert [np.bincount(np.array([0] * 60 + [1] * 40)[part]).tolist() for part in halves] == [[30, 20], [30, 20]]
    groups = [0] * 60 + list(range(1, 41))
    parts = dirichlet_partition([0] * 60 + [1] * 40, 2, 1e6, seed=0, groups=groups)
    assert sorted(len(part) for part in parts) == [40, 60]


def test_every_client_has_the_fewest_samples_asked_for() -> None:
    """Draws that leave a client too little are drawn again."""
    for seed in range(5):
        assert min(map(len, dirichlet_partition(LABELS, 8, 0.3, seed=seed, min_samples=30))) >= 30


def test_too_few_draws_and_too_few_rows_are_told() -> None:
    """What cannot be dealt ends with what to do, not in an endless loop."""
    with pytest.raises(ConfigError, match=r"none of 2000 draws with alpha=0\.001 gave each of 16 clients 10 of 600"):
        dirichlet_partition(LABELS, 16, 0.001, seed=0)
    with pytest.raises(DataError, match="30 samples do not give 4 clients 10 each"):
        dirichlet_partition([0, 1] * 15, 4, 0.5, seed=0)
    with pytest.raises(DataError, match="3 subjects cannot be dealt to 4 clients"):
        homogeneous_partition([0, 0, 1, 1, 1], 4, seed=0, groups=[1, 1, 2, 2, 3])


def test_a_subject_of_two_classes_is_named() -> None:
    """It has no one label to be dealt by."""
    for deal in DEALS:
        with pytest.raises(DataError, match="subject b: has samples of two classes"):
            deal([0, 0, 1, 0], 2, 0, ["a", "a", "b", "b"])


def test_a_kind_takes_its_own_numbers_only() -> None:
    """From Python as from text."""
    with pytest.raises(ConfigError, match=r"partition by-site: takes no alpha, got 1\.0"):
        Partition("by-site", 2, alpha=1.0, parts=2)
    with pytest.raises(ConfigError, match="partition homogeneous: takes no parts, got 2"):
        Partition("homogeneous", 2, parts=2)
    with pytest.raises(ConfigError, match="partition by-site: parts=0 must be a whole number, 2 or more"):
        Partition("by-site", 2)


def test_clients_may_be_empty_where_that_is_allowed() -> None:
    """Validation rows: 3 for 5 clients, and none for any."""
    assert sorted(map(len, homogeneous_partition([0, 1, 1], 5, seed=0, min_samples=0))) == [0, 0, 1, 1, 1]
    assert [len(part) for part in homogeneous_partition([], 3, seed=0, min_samples=0)] == [0, 0, 0]


def test_a_partition_is_read_from_text() -> None:
    """Both kinds; names sort by number."""
    assert parse_partition("homogeneous", 64) == Partition("homogeneous", 64)
    dealt = parse_partition("dirichlet:alpha=2.5", 100)
    assert (dealt.alpha, dealt.text, dealt.names[0], dealt.names[-1]) == (
        2.5, "dirichlet:alpha=2.5", "client001", "client100",
    )  # fmt: skip
    assert list(dealt.names) == sorted(dealt.names)


def test_a_partition_by_site_is_read_from_text() -> None:
    """All parts or some; clients bear their site's name and sort by number."""
    some, all_parts = parse_partition("by-site:parts=10,clients=2", None), parse_partition("by-site:parts=10", None)
    assert some == Partition("by-site", 2, parts=10)
    assert (some.text, some.leaves_rows_out) == ("by-site:parts=10,clients=2", True)
    assert (all_parts.clients, all_parts.text, all_parts.leaves_rows_out) == (10, "by-site:parts=10", False)
    assert some.names_at("NYU") == ("NYU-01", "NYU-02")
    assert list(all_parts.names_at("NYU")) == sorted(all_parts.names_at("NYU"))


def test_some_of_the_parts_are_those_of_all() -> None:
    """Law: a client holds the same samples however many others take part; 600 in ten parts are 60 each."""
    all_parts = Partition("by-site", 10, parts=10).deal(LABELS, seed=3, groups=GROUPS)
    two = Partition("by-site", 2, parts=10).deal(LABELS, seed=3, groups=GROUPS)
    assert [part.tolist() for part in two] == [part.tolist() for part in all_parts[:2]]
    assert {len(part) for part in all_parts} == {60}


@pytest.mark.parametrize(
    ("text", "clients", "says"),
    [
        ("by-site", None, "--partition 'by-site' must be by-site:parts=5, or by-site:parts=10,clients=2"),
        ("by-site:clients=2", None, "must be by-site:parts=5"),
        ("by-site:parts=two", None, "must be by-site:parts=5"),
        ("by-site:parts=5,parts=6", None, "must be by-site:parts=5"),
        ("by-site:parts=5,alpha=1", None, "must be by-site:parts=5"),
        ("by-site:parts=5", 5, "by-site:parts=5 takes no --clients; say by-site:parts=10,clients=2"),
        ("by-site:parts=5,clients=6", None, "partition by-site: parts=5 must be a whole number, 6 or more"),
        ("by-site:parts=0", None, "clients=0 must be a whole number, at least 1"),
        ("homogeneous", None, "--partition homogeneous needs the number of clients"),
        ("dirichlet", 4, "dirichlet:alpha=0.5"),
        ("dirichlet:beta=1", 4, "dirichlet:alpha=0.5"),
        ("dirichlet:alpha=much", 4, "alpha='much' must be a number above 0"),
        ("dirichlet:alpha=0", 4, "alpha=0.0 must be a finite number above 0"),
        ("dirichlet:alpha=inf", 4, "alpha=inf must be a finite number above 0"),
        ("homogeneous:alpha=1", 4, "must be homogeneous, or dirichlet"),
        ("quantity", 4, "must be homogeneous, or dirichlet"),
        ("homogeneous", 1, "clients=1 must be a whole number, at least 2"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(text: str, clients: int | None, says: str) -> None:
    """With the value seen."""
    with pytest.raises(ConfigError, match=says):
        parse_partition(text, clients)
