"""Read one finished run, of the simulator or of an engine: its scores, its data and its history."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from monai_fedskew.core.metrics import is_count, is_share
from monai_fedskew.errors import DataError
from monai_fedskew.reports.fields import RUN_AGAIN, Fields, read_fields
from monai_fedskew.reports.history import Event, Mark, gap, read_history

__all__ = ["Client", "Dealt", "Level", "Run", "Score", "SiteData", "read_run"]

Level = Literal["window", "subject"]
_ENGINES = {"nvflare": "NVIDIA FLARE", "flower": "Flower"}


@dataclass(frozen=True)
class Score:
    """Scores of one site at one level, by name, in the order of summary.json.

    Shares are from 0 to 1; None where a score is undefined (one class only), and no entry where the site's bundle does
    not measure it. ``counts`` says of how many samples something holds, such as ``dice_undefined``.
    """

    values: Mapping[str, float | None]
    samples: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def of(self, metric: str) -> float | None:
        """Return a score; None where it is undefined or not measured."""
        return self.values.get(metric)


@dataclass(frozen=True)
class SiteData:
    """Where a site's prepared data lay when it trained, how much there was, and the SHA-256 of its manifest file.

    ``folder`` is None where an engine ran: the server knows how much there is, not where. ``kept`` names the entries of
    the network that stay at the site; None where that is not recorded. ``is_image`` tells whether its rows are images.
    """

    folder: Path | None
    samples: int
    subjects: int
    summary: Mapping[str, float]
    manifest_sha256: str = ""
    kept: tuple[str, ...] | None = None
    is_image: bool = False


@dataclass(frozen=True)
class Client:
    """What a client of a partition trains on: samples, subjects (None where unknown), and samples of each class."""

    samples: int
    subjects: int | None
    labels: tuple[int, ...]


@dataclass(frozen=True)
class Dealt:
    """How the sites' rows were dealt out, and to which clients."""

    how: str
    clients: Mapping[str, Client]


@dataclass(frozen=True)
class Run:
    """One finished run: one method, one seed.

    ``scores[level][site]`` holds the test scores; ``gap`` says what is missing of the history, empty if nothing is;
    ``details`` and ``summary`` hold run.json and summary.json, with empty values for what they do not say. ``engine``
    and ``study`` are empty for the simulator; ``unfinished`` says of sites without test scores why there are none.
    ``cost`` holds what the method cost at ``cost_site``, by name, empty where that was not measured; ``dealt`` tells of
    the clients that the sites' rows were dealt to, if they were.
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
    engine: str = ""
    study: str = ""
    unfinished: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    cost_site: str = ""
    dealt: Dealt | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the scored sites and of those without scores."""
        scored = tuple(self.scores["window"])
        return tuple(sorted({*scored, *self.unfinished})) if self.unfinished else scored

    @property
    def main(self) -> str:
        """Name of the first score; empty if no site has any."""
        return next((name for score in self.scores["window"].values() for name in score.values), "")

    @property
    def is_image(self) -> bool:
        """Whether a row is an image: the sites' data say so, or images were segmented."""
        return "dice" in self.main or any(site.is_image for site in self.data.values())

    @property
    def members(self) -> tuple[str, ...]:
        """Names of what takes part in the rounds: the sites with data, or the clients that their rows were dealt to."""
        return tuple(self.data if self.dealt is None else self.dealt.clients)


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
    engine = record.text("engine") if record.values.get("engine") is not None else ""
    unfinished = _unfinished(outcome, scores["window"], is_engine=bool(engine))
    if not scores["window"]:
        raise _unscored(outcome, unfinished)
    data = {site: _site_data(trained.inside(site), is_here=not engine) for site in trained.values}
    dealt = _dealt(record)
    history, events = read_history(folder / "history.jsonl")
    return Run(
        folder=folder,
        method=record.text("method"),
        seed=record.whole("seed"),
        scores=scores,
        data=data,
        history=history,
        events=events,
        gap=gap(folder / "history.jsonl", _rounds(record), history, events, data if dealt is None else dealt.clients),
        details=details,
        summary=summary,
        engine=_ENGINES.get(engine, engine),
        study=record.text("study") if record.values.get("study") is not None else "",
        unfinished=unfinished,
        cost=_cost(outcome),
        cost_site=str(outcome.inside("cost").values.get("site", "")),
        dealt=dealt,
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


def _dealt(record: Fields) -> Dealt | None:
    if record.values.get("partition") is None:
        return None
    partition = record.inside("partition")
    clients = partition.inside("clients", is_required=True)
    held = {}
    for name in clients.values:
        one = clients.inside(name)
        subjects = one.whole("subjects") if one.values.get("subjects") is not None else None
        held[name] = Client(one.whole("samples"), subjects, one.items("labels", int, is_required=True))
    return Dealt(partition.text("how"), held)


def _cost(outcome: Fields) -> dict[str, float]:
    """What was measured of the method, and the seconds of a round; nothing of a run from before it was."""
    measured = outcome.inside("cost")
    if not measured.values:
        return {}
    names = ("flops_per_sample", "stored_values", "received_bytes", "sent_bytes", "survey_bytes")
    found = {name: measured.number(name) for name in names}
    found["seconds_per_round"] = outcome.inside("seconds").number("per_round")
    return {name: value for name, value in found.items() if value is not None}


def _summary(outcome: Fields) -> dict[str, Any]:
    """Check what a report reads of summary.json beside the scores."""
    if outcome.values.get("chosen_round") is not None:
        outcome.whole("chosen_round")
    seconds = outcome.inside("seconds").number("total")
    return {**outcome.values, "shared_bytes": outcome.number("shared_bytes"), "seconds": seconds}


def _unfinished(outcome: Fields, scored: Mapping[str, Score], *, is_engine: bool) -> dict[str, str]:
    """Say of each site without test scores why there are none."""
    told = outcome.inside("unfinished")
    reasons = {site: " ".join(str(why or "no reason was given").split()) for site, why in told.values.items()}
    if is_engine:
        silent = [site for site in outcome.inside("sites").values if site not in scored]
        reasons |= dict.fromkeys(silent, "sent no scores at window level")
    return reasons


def _unscored(outcome: Fields, unfinished: Mapping[str, str]) -> DataError:
    if not unfinished:
        return outcome.wrong("sites", "an object with a site that has window scores", outcome.values["sites"])
    told = "; ".join(f"{site}: {reason}" for site, reason in list(unfinished.items())[:5])
    more = f"; and {len(unfinished) - 5} more" if len(unfinished) > 5 else ""
    return DataError(
        f"{outcome.file}: the rounds are done, but no site has test scores ({told}{more}); bring the sites back and "
        "resume the study, which then scores them"
    )


def _site_data(site: Fields, *, is_here: bool) -> SiteData:
    summary = site.inside("summary")
    known = {key: value for key in ("mean", "std") if (value := summary.number(key)) is not None}
    return SiteData(
        folder=Path(site.text("data")) if is_here else None,
        samples=site.whole("samples"),
        subjects=site.whole("subjects"),
        summary=known if len(known) == 2 else {},
        manifest_sha256=site.text("manifest_sha256") if site.values.get("manifest_sha256") else "",
        kept=site.items("private_keys", str) if "private_keys" in site.values else None,
        is_image="images" in summary.values,
    )


def _score(level: Fields) -> Score:
    names = [name for name in level.values if not is_count(name)]
    values = {name: level.share(name) if is_share(name) else level.number(name) for name in names}
    counts = {name: level.whole(name) for name in level.values if is_count(name) and name != "samples"}
    return Score(values, level.whole("samples"), counts)
