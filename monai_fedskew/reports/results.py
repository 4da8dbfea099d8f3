"""Read what a simulation or a comparison left on disk into frozen values."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.reports.fields import COMPARE_AGAIN, RUN_AGAIN, read_fields
from monai_fedskew.reports.metrics import Metric, describe
from monai_fedskew.reports.published import Published, read_published
from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.run import Level, Run, Score, SiteData, read_run

__all__ = [
    "Level",
    "Missing",
    "Results",
    "Run",
    "Score",
    "SiteData",
    "read_results",
    "read_run",
    "slug",
]


@dataclass(frozen=True)
class Missing:
    """A run that was planned and has no result, with the reason."""

    method: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Results:
    """All runs of a folder, in the order of the table.

    ``folder`` is what was read, ``study`` the study's name or None, ``sites`` every site that was or should have been
    scored, by name.
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
        """Names of all sites that were or should have been scored, in the order of the runs."""
        return tuple(dict.fromkeys(site for run in self.runs.values() for site in run.sites))

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels with scores: windows, and subjects where predictions name them, if images are not one a subject."""
        found: list[Level] = [
            level for level in get_args(Level) if any(run.scores[level] for run in self.runs.values())
        ]
        if self.is_image and "subject" in found and all(_is_alike(run) for run in self.runs.values()):
            found.remove("subject")
        return tuple(found)

    @property
    def is_image(self) -> bool:
        """Whether a row of the data is an image, so that a "window" is called so."""
        return any(run.is_image for run in self.runs.values())

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all scores, the first being the main one."""
        scores = [score for run in self.runs.values() for level in run.scores.values() for score in level.values()]
        return tuple(dict.fromkeys(name for score in scores for name in score.values)) or ("accuracy",)

    @property
    def main(self) -> Metric:
        """The score that methods are compared by."""
        return self.metric(self.metrics[0])

    def metric(self, key: str) -> Metric:
        """Describe a score; of distances also in which unit the sites measured them."""
        scores = [score for run in self.runs.values() for score in run.scores["window"].values() if score.of(key)]
        return describe(key, {"mm" if score.counts.get(f"{key}_in_mm") else "pixels" for score in scores})

    def word(self, level: Level) -> str:
        """What a sample of a level is called: of images, a window is an image."""
        return "image" if level == "window" and self.is_image else level

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing of the histories, one text for each finding: the runs it holds for, and what it is."""
        return _by_reason((run.method, run.seed, run.gap) for run in self.runs.values() if run.gap)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Which runs have no result, one text for each reason."""
        return _by_reason((one.method, one.seed, one.reason) for one in self.missing)

    @property
    def is_single(self) -> bool:
        """Whether this is one run, of one method and one seed."""
        return len(self.methods) * len(self.seeds) == 1

    @property
    def is_comparison(self) -> bool:
        """Whether there is more than one method to compare."""
        return len(self.methods) > 1

    @property
    def is_dealt(self) -> bool:
        """Whether the sites' rows were dealt to clients, which then stand where sites do."""
        return any(run.dealt is not None for run in self.runs.values())

    @property
    def differ_by_seed(self) -> bool:
        """Whether a client of one seed is not that of another: each seed deals rows anew."""
        return self.is_dealt and len(self.seeds) > 1

    def averaged(self, run: Run) -> tuple[str, ...]:
        """Return the sites of a run's mean: all, so that means can be compared; of a single run, those with scores."""
        return tuple(run.scores["window"]) if self.is_single else self.sites

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
    bundle = run.details["bundle"]
    return Results(
        folder=folder,
        title=_title(run, bundle.get("name", "a bundle")),
        study=run.study or None,
        reference=run.method,
        methods=(run.method,),
        seeds=(run.seed,),
        runs={(run.method, run.seed): run},
        settings=run.details["settings"],
        bundle=bundle,
    )


def _comparison(folder: Path) -> Results:
    plan = read_fields(folder / "compare.json", COMPARE_AGAIN)
    methods = plan.items("methods", str, is_required=True)
    seeds = plan.items("seeds", int, is_required=True)
    failures: Mapping[str, Any] = {}
    if (folder / "failures.json").exists():
        failures = read_fields(folder / "failures.json", f"remove it, or {COMPARE_AGAIN}").values
    runs: dict[tuple[str, int], Run] = {}
    missing: list[Missing] = []
    for method in methods:
        for seed in seeds:
            place = folder / "runs" / slug(method) / f"seed{seed}"
            reason = _why_unfinished(place)
            if reason:
                missing.append(Missing(method, seed, _one_line(failures.get(f"{method}|{seed}")) or reason))
            else:
                runs[method, seed] = _of_plan(read_run(place), method, seed)
    _require_one_metric(runs)
    titles = [plan.text(key) for key in ("title", "study") if plan.values.get(key)]
    try:
        published = read_published(plan.values.get("published"))
        published += read_published(plan.values.get("plain"), source="plain script")
    except DataError as error:
        raise DataError(f"{plan.file}: {error}; {COMPARE_AGAIN}") from error
    return Results(
        folder=folder,
        title=titles[0] if titles else "comparison of methods",
        study=plan.text("study") if plan.values.get("study") else None,
        reference=plan.text("reference") if plan.values.get("reference") else methods[0],
        methods=methods,
        seeds=seeds,
        runs=runs,
        missing=tuple(missing),
        published=published,
        settings=plan.inside("settings").values,
        bundle=plan.inside("bundle").values,
        command=plan.items("command", str),
    )


def _require_one_metric(runs: Mapping[tuple[str, int], Run]) -> None:
    """Refuse runs that were scored by different things: no table could hold them."""
    scored = [run for run in runs.values() if run.main]
    for run in scored:
        first = scored[0]
        if run.main != first.main:
            raise DataError(
                f"{run.folder / 'summary.json'}: {run.method}, seed {run.seed} is scored by {run.main}, but "
                f"{first.method}, seed {first.seed} by {first.main}; runs are compared by one score, of one bundle; "
                f"{RUN_AGAIN}"
            )


def _is_alike(run: Run) -> bool:
    """Whether each subject has one row, so that both levels say the same."""
    windows, subjects = run.scores["window"], run.scores["subject"]
    return all(site in windows and score.samples == windows[site].samples for site, score in subjects.items())


def _title(run: Run, bundle: Any) -> str:
    if run.engine:
        return f"{run.study or 'A study'}: {run.method} on {run.engine}"
    return f"{run.method} on {bundle}"


def _of_plan(run: Run, method: str, seed: int) -> Run:
    if (run.method, run.seed) != (method, seed):
        raise DataError(
            f"{run.folder / 'run.json'}: is of {run.method}, seed {run.seed}, where the comparison has {method}, seed "
            f"{seed}: a run that was copied or moved; {RUN_AGAIN}"
        )
    return run


def _by_reason(runs: Iterable[tuple[str, int, str]]) -> tuple[str, ...]:
    """Gather (method, seed, reason): each reason once, with the runs that it holds for."""
    found: dict[str, dict[str, list[int]]] = {}
    for method, seed, reason in runs:
        found.setdefault(reason, {}).setdefault(method, []).append(seed)
    texts = []
    for reason, methods in found.items():
        named = [f"{method} seed{'s' * (len(seeds) > 1)} {as_ranges(seeds)}" for method, seeds in methods.items()]
        texts.append(f"{', '.join(named)}: {reason}")
    return tuple(texts)


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())


def _why_unfinished(place: Path) -> str:
    if not place.is_dir():
        return "not started"
    if (place / "summary.json").is_file():
        return ""
    rounds = [int(p.name) for p in (place / "rounds").glob("*") if p.name.isdigit()]
    return f"did not finish (last checkpoint: round {max(rounds)})" if rounds else "did not finish"
