"""Who was missing when: absences of sites from rounds, from a run's history."""

from collections import defaultdict
from dataclasses import dataclass

from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import Results

__all__ = ["Absence", "absences"]

_WORDS = {"failed": "failed", "excluded": "update left out", "not_sampled": "not drawn for the round"}


@dataclass(frozen=True)
class Absence:
    """A site that took no part: in which rounds of which run, what happened and why."""

    method: str
    seed: int
    site: str
    what: str
    rounds: str
    count: int
    reason: str


def absences(results: Results) -> tuple[Absence, ...]:
    """List every absence: failed, left out or not drawn, by method, seed and site."""
    found: list[Absence] = []
    for (method, seed), run in results.runs.items():
        missed: dict[tuple[str, str, str], set[int]] = defaultdict(set)
        for event in run.events:
            if event.event != "trained":
                missed[event.site, event.event, event.reason].add(event.round)
        found += [
            Absence(method, seed, site, _WORDS.get(what, what), as_ranges(rounds), len(rounds), reason)
            for (site, what, reason), rounds in sorted(missed.items())
        ]
    return tuple(found)
