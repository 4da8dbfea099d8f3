"""What happened over the rounds of a run: the scores and events of history.jsonl, and what is missing of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.reports.fields import RUN_AGAIN, Fields, parse_object, read_text
from monai_fedskew.reports.ranges import as_ranges

__all__ = ["Event", "Mark", "gap", "read_history"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One value of the history: a metric of a split at a site after so many rounds."""

    round: int
    site: str
    split: str
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a site in a round: trained, failed, excluded, not_sampled, missing (out of reach) or joined."""

    round: int
    site: str
    event: str
    reason: str


def read_history(file: Path) -> tuple[tuple[Mark, ...], tuple[Event, ...]]:
    """Read the scores and events of a history.jsonl; nothing where there is none.

    A score without value (null, such as an AUC where there is one class) or that is not finite is left out.

    Raises:
        DataError: the file is there and cannot be read; the message names the line.
    """
    if not file.exists():
        return (), ()
    marks: list[Mark] = []
    events: list[Event] = []
    for number, line in enumerate(read_text(file, RUN_AGAIN).splitlines(), 1):
        row = parse_object(line, file, RUN_AGAIN, line=number)
        if "event" in row.values:
            events.append(_event(row))
            continue
        place = (row.whole("round"), row.text("site"), row.text("split"), row.text("metric"))
        value = row.number("value")
        if value is not None:
            marks.append(Mark(*place, value))
    return tuple(marks), tuple(events)


def gap(file: Path, rounds: int, marks: Sequence[Mark], events: Sequence[Event], members: Collection[str] = ()) -> str:
    """Say what is missing of a run's history; empty where every site has an event in every round since it joined.

    Args:
        file: the history.jsonl.
        rounds: how many rounds the run had; 0 if that is not known.
        marks: what was read from it.
        events: what was read from it.
        members: sites that were let in, as others never have a round of their own; empty if that is not known.

    Example:
        >>> gap(Path(__file__), 3, (), [Event(1, "NYU", "trained", ""), Event(2, "NYU", "trained", "")])
        'rounds 3 are missing or incomplete'
    """
    if not file.exists():
        return "history.jsonl is missing"
    if not marks and not events:
        return "history.jsonl is empty"
    sites = {event.site for event in events if not members or event.site in members}
    first = {event.site: event.round for event in reversed(events) if event.event == "joined"}
    held = {(event.round, event.site) for event in events}
    rounds = rounds or max([mark.round for mark in marks] + [event.round for event in events])
    cut = [
        number
        for number in range(1, rounds + 1)
        if not sites or any(number >= first.get(site, 1) and (number, site) not in held for site in sites)
    ]
    return f"rounds {as_ranges(cut)} are missing or incomplete" if cut else ""


def _event(row: Fields) -> Event:
    reason = row.values.get("reason")
    return Event(row.whole("round"), row.text("site"), row.text("event"), " ".join(str(reason or "").split()))
