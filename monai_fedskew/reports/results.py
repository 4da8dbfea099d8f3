"""Read what a simulation or a comparison left on disk into frozen values."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.reports.published import Published, read_published

__all__ = [
    "Event",
    "Level",
    "Mark",
    "Missing",
    "Results",
    "Run",
    "Score",
    "SiteData",
    "read_results",
    "read_run",
    "slug",
]

Level = Literal["window", "subject"]


@dataclass(frozen=True)
class Score:
    """Scores of one site at one level; fractions from 0 to 1, None where undefined (one class only)."""

    accuracy: float | None
    balanced_accuracy: float | None
    auc: float | None
    samples: int


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
    """What a site did in a round: trained, failed, excluded or not_sampled."""

    round: int
    site: str
    event: str
    reason: str


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

    ``scores[level][site]`` holds the test scores; ``details`` the whole of run.json.
    """

    folder: Path
    method: str
    seed: int
    scores: Mapping[Level, Mapping[str, Score]]
    data: Mapping[str, SiteData]
    history: tuple[Mark, ...]
    events: tuple[Event, ...]
    details: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """A run that was planned and has no result, with the reason."""

    method: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Results:
    """All runs of a folder, in the order of the table.

    ``folder`` is what was read, ``study`` the study's name or None, ``sites`` every scored site by name.
    """

    folder: Path
    title: str
    study: str | None
    reference: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], Run]
    missing: tuple[Missing, ...] = ()
    published: tuple[Published, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    bundle: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of all scored sites, in the order of the runs."""
        return tuple(dict.fromkeys(site for run in self.runs.values() for site in run.scores["window"]))

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels with scores: windows, and subjects where predictions name them."""
        return tuple(level for level in get_args(Level) if any(run.scores[level] for run in self.runs.values()))

    @property
    def is_comparison(self) -> bool:
        """Whether there is more than one method to compare."""
        return len(self.methods) > 1

    def of(self, method: str) -> tuple[Run, ...]:
        """Finished runs of a method, by seed."""
        return tuple(self.runs[method, seed] for seed in self.seeds if (method, seed) in self.runs)


def slug(method: str) -> str:
    """Turn a method's text into the name of its folder below ``runs/``.

    Example:
        >>> slug("fedrdn+fedprox:mu=0.2")
        'fedrdn_fedprox_mu=0.2'
    """
    return re.sub(r"[^A-Za-z0-9.=-]", "_", method)


def read_results(folder: Path) -> Results:
    """Read a RUN or a COMPARE folder; a comparison may have no finished run.

    Args:
        folder: a folder with ``compare.json`` (many runs) or with ``run.json`` and ``summary.json`` (one run).

    Raises:
        ConfigError: the folder is neither.
        DataError: a file in it cannot be read.

    Example:
        >>> read_results(Path("no/such/folder"))
        Traceback (most recent call last):
        monai_fedskew.errors.ConfigError: no/such/folder: no such folder; name the --out folder of simulate or compare
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name the --out folder of simulate or compare")
    if (folder / "compare.json").is_file():
        return _comparison(folder)
    absent = [name for name in ("run.json", "summary.json") if not (folder / name).is_file()]
    if absent:
        raise ConfigError(
            f"{folder}: found neither compare.json (a comparison) nor {' and '.join(absent)} (a finished run); "
            "name the --out folder of simulate or compare"
        )
    run = read_run(folder)
    bundle = run.details.get("bundle", {})
    return Results(
        folder=folder,
        title=f"{run.method} on {bundle.get('name', 'a bundle')}",
        study=None,
        reference=run.method,
        methods=(run.method,),
        seeds=(run.seed,),
        runs={(run.method, run.seed): run},
        settings=run.details.get("settings", {}),
        bundle=bundle,
    )


def read_run(folder: Path) -> Run:
    """Read one RUN folder: run.json, summary.json and history.jsonl.

    Raises:
        DataError: a file is absent, is no JSON or lacks a key.
    """
    details, summary = _json(folder / "run.json"), _json(folder / "summary.json")
    history, events = _history(folder / "history.jsonl")
    try:
        scores: dict[Level, dict[str, Score]] = {
            level: {site: _score(by_level[level]) for site, by_level in summary["sites"].items() if level in by_level}
            for level in get_args(Level)
        }
        data = {site: _site_data(content) for site, content in details["sites"].items()}
        return Run(folder, details["method"], int(details["seed"]), scores, data, history, events, details, summary)
    except KeyError as error:
        raise DataError(f"{folder}: run.json or summary.json lacks the key {error}; run it again") from error


def _comparison(folder: Path) -> Results:
    plan = _json(folder / "compare.json")
    try:
        methods, seeds = tuple(plan["methods"]), tuple(int(seed) for seed in plan["seeds"])
    except KeyError as error:
        raise DataError(f"{folder / 'compare.json'}: lacks the key {error}; run compare again") from error
    failures = _json(folder / "failures.json") if (folder / "failures.json").is_file() else {}
    runs: dict[tuple[str, int], Run] = {}
    missing: list[Missing] = []
    for method in methods:
        for seed in seeds:
            place = folder / "runs" / slug(method) / f"seed{seed}"
            reason = _why_unfinished(place)
            if reason:
                missing.append(Missing(method, seed, _one_line(failures.get(f"{method}|{seed}")) or reason))
            else:
                runs[method, seed] = read_run(place)
    return Results(
        folder=folder,
        title=plan.get("title") or plan.get("study") or "comparison of methods",
        study=plan.get("study"),
        reference=plan.get("reference") or methods[0],
        methods=methods,
        seeds=seeds,
        runs=runs,
        missing=tuple(missing),
        published=read_published(plan.get("published")) + read_published(plan.get("plain"), source="plain script"),
        settings=plan.get("settings") or {},
        bundle=plan.get("bundle") or {},
        command=tuple(map(str, plan.get("command") or ())),
    )


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())


def _why_unfinished(place: Path) -> str:
    if not place.is_dir():
        return "not started"
    if (place / "summary.json").is_file():
        return ""
    rounds = [int(p.name) for p in (place / "rounds").glob("*") if p.name.isdigit()]
    return f"did not finish (last checkpoint: round {max(rounds)})" if rounds else "did not finish"


def _site_data(content: Mapping[str, Any]) -> SiteData:
    return SiteData(
        folder=Path(content["data"]),
        samples=int(content["samples"]),
        subjects=int(content["subjects"]),
        summary=content.get("summary") or {},
        manifest_sha256=content.get("manifest_sha256") or "",
    )


def _score(values: Mapping[str, Any]) -> Score:
    return Score(values.get("accuracy"), values.get("balanced_accuracy"), values.get("auc"), int(values["samples"]))


def _history(file: Path) -> tuple[tuple[Mark, ...], tuple[Event, ...]]:
    if not file.is_file():
        return (), ()
    marks: list[Mark] = []
    events: list[Event] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            if "event" in row:
                events.append(Event(row["round"], row["site"], row["event"], row.get("reason", "")))
            elif row["value"] is not None:
                marks.append(Mark(row["round"], row["site"], row["split"], row["metric"], float(row["value"])))
        except (json.JSONDecodeError, KeyError) as error:
            raise DataError(f"{file}, line {number}: cannot be read ({error}); seen {line[:80]!r}") from error
    return tuple(marks), tuple(events)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: absent; run it again") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read ({error}); run it again") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: must hold a JSON object, found {type(content).__name__}; run it again")
    return content
