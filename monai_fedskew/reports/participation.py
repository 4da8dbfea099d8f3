"""Who was missing when, and who came late: from a run's history."""

from collections import defaultdict
from dataclasses import dataclass

from monai_fedskew.reports.history import Event
from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import Results, Run

__all__ = ["Absence", "Arrival", "absences", "arrivals", "undrawn"]

_WORDS = {
    "failed": "failed",
    "excluded": "update left out",
    "not_sampled": "not drawn for the round",
    "missing": "out of reach",
}


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


@dataclass(frozen=True)
class Arrival:
    """A site that joined a run late: from ``round`` on it took part."""

    method: str
    seed: int
    site: str
    round: int


def absences(results: Results, *, with_undrawn: bool = True) -> tuple[Absence, ...]:
    """List every absence: failed, left out, not drawn or out of reach, by method, seed and site.

    ``with_undrawn=False`` leaves out who was not drawn; see ``undrawn``.
    """
    found: list[Absence] = []
    for (method, seed), run in results.runs.items():
        missed: dict[tuple[str, str, str], set[int]] = defaultdict(set)
        for event in run.events:
            if event.event not in ("trained", "joined") and (with_undrawn or event.event != "not_sampled"):
                missed[event.site, _what(run, event), event.reason].add(event.round)
        found += [
            Absence(method, seed, site, what, as_ranges(rounds), len(rounds), reason)
            for (site, what, reason), rounds in sorted(missed.items())
        ]
    return tuple(found)


def undrawn(results: Results) -> str:
    """Say how often sites were not drawn for a round; empty where all were, always."""
    rounds: dict[tuple[str, int, str], int] = defaultdict(int)
    for (method, seed), run in results.runs.items():
        for event in run.events:
            rounds[method, seed, event.site] += event.event == "not_sampled"
    if not any(rounds.values()):
        return ""
    name = "client" if results.is_dealt else "site"
    return f"A {name} was not drawn for {min(rounds.values())} to {max(rounds.values())} rounds of a run."


def arrivals(results: Results) -> tuple[Arrival, ...]:
    """List the sites that joined after the first round, by method, seed and site."""
    return tuple(
        Arrival(method, seed, event.site, event.round)
        for (method, seed), run in results.runs.items()
        for event in sorted(run.events, key=lambda event: event.site)
        if event.event == "joined" and event.round > 1
    )


def _what(run: Run, event: Event) -> str:
    if event.event == "excluded" and run.members and event.site not in run.members:
        return "not let in"  # it came late and does not fit the others
    return _WORDS.get(event.event, event.event)
