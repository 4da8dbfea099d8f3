"""Seeds as a function of seed, site, round and part."""

import itertools

import pytest

from monai_fedskew.core.seeding import derive


def test_the_value_is_fixed() -> None:
    """The same on every machine and Python: a changed number would change every published run."""
    assert derive(0, "NYU", 1) == 1337071973630925342


@pytest.mark.parametrize("change", [{"seed": 1}, {"site": "USM"}, {"round": 2}, {"part": "fedrdn"}])
def test_every_argument_counts(change: dict[str, object]) -> None:
    """Another seed, site, round or part draws another stream."""
    given = {"seed": 0, "site": "NYU", "round": 1, "part": ""}
    assert derive(**given) != derive(**(given | change))  # type: ignore[arg-type]


def test_streams_do_not_meet() -> None:
    """4,000 combinations, 4,000 seeds, all fit into 62 bits."""
    names = [f"site{k}" for k in range(10)]
    found = {
        derive(seed, site, round, part)
        for seed, site, round, part in itertools.product(range(10), names, range(10), ("", "a", "b", "c"))
    }
    assert len(found) == 4000
    assert all(0 <= value < 2**62 for value in found)


def test_a_site_may_be_called_anything() -> None:
    """A number in a site's name is not a round, an umlaut is no trouble."""
    assert derive(0, "A1", 2) != derive(0, "A", 12)
    assert derive(0, "Köln", 1) != derive(0, "Koln", 1)
