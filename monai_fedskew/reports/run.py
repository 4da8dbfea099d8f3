"""Read one finished run: its scores, its data and its history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from monai_fedskew.reports.fields import RUN_AGAIN, Fields, read_fields
from monai_fedskew.reports.history import Event, Mark, gap, read_history

__all__ = ["Level", "Run", "Score", "SiteData", "read_run"]

Level = Literal["window", "subject"]


@dataclass(frozen=True)
class Score:
    """Scores of one site at one level; fractions from 0 to 1, None where undefined (one class only)."""

    accuracy: float | None
    balanced_accuracy: float | None
    auc: float | None
    samples: int


@dataclass(frozen=True)
class SiteData:
    """Where a site's prepared data lay when it trained, how much there was, and the SHA-256 of its manifest file."""

    folder: Path
    samples: int
    subjects: int
    summary: Mapping[str, float]
    manifest_sha256: str = ""


@dataclass(frozen=True)
class Run:
    """One finished run: one method, one seed.

    ``scores[level][site]`` holds the test scores; ``gap`` says what is missing of the history, empty if nothing is;
    ``details`` and ``summary`` hold run.json and summary.json, with empty values for what they do not say.
    """

    folder: Path
    method: str
    seed: int
    scores: Mapping[Level, Mapping[str, Score]]
    data: Mapping[str, SiteData]
    history: tuple[Mark, ...]
    events: tuple[Event, ...]
    gap: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


def read_run(folder: Path) -> Run:
    """Read one RUN folder: run.json, summary.json and history.jsonl.

    Raises:
        DataError: a file is absent, is no JSON, lacks a key or has a value of another type.
    """
    record, outcome = (read_fields(folder / name, RUN_AGAIN) for name in ("run.json", "summary.json"))
    details, summary = _details(record), _summary(outcome)
    sites, trained = outcome.inside("sites", is_required=True), record.inside("sites", is_required=True)
    by_site = {site: sites.inside(site) for site in sites.values}
    scores: dict[Level, dict[str, Score]] = {
        level: {site: _score(one.inside(level)) for site, one in by_site.items() if one.values.get(level) is not None}
        for level in get_args(Level)
    }
    if not scores["window"]:
        raise outcome.wrong("sites", "an object with a site that has window scores", sites.values)
    history, events = read_history(folder / "history.jsonl")
    return Run(
        folder,
        record.text("method"),
        record.whole("seed"),
        scores,
        {site: _site_data(trained.inside(site)) for site in trained.values},
        history,
        events,
        gap(folder / "history.jsonl", _rounds(record), history, events),
        details,
        summary,
    )


def _rounds(record: Fields) -> int:
    settings = record.inside("settings")
    return settings.whole("rounds") if settings.values.get("rounds") is not None else 0


def _details(record: Fields) -> dict[str, Any]:
    """Check what a report reads of run.json beside the sites."""
    keys = ("settings", "bundle", "versions", "overrides")
    command = record.items("command", str)
    found = {**record.values, **{key: record.inside(key).values for key in keys}, "command": command}
    if record.values.get("stages") is not None:
        stages = record.inside("stages")
        found["stages"] = {part: stages.items(part, str) for part in stages.values}
    return found


def _summary(outcome: Fields) -> dict[str, Any]:
    """Check what a report reads of summary.json beside the scores."""
    if outcome.values.get("chosen_round") is not None:
        outcome.whole("chosen_round")
    seconds = outcome.inside("seconds").number("total")
    return {**outcome.values, "shared_bytes": outcome.number("shared_bytes"), "seconds": seconds}


def _site_data(site: Fields) -> SiteData:
    summary = site.inside("summary")
    known = {key: value for key in ("mean", "std") if (value := summary.number(key)) is not None}
    return SiteData(
        folder=Path(site.text("data")),
        samples=site.whole("samples"),
        subjects=site.whole("subjects"),
        summary=known if len(known) == 2 else {},
        manifest_sha256=site.text("manifest_sha256") if site.values.get("manifest_sha256") else "",
    )


def _score(level: Fields) -> Score:
    accuracy, balanced_accuracy, auc = (level.share(key) for key in ("accuracy", "balanced_accuracy", "auc"))
    return Score(accuracy, balanced_accuracy, auc, level.whole("samples"))
