"""A run on an engine in words: what the server knows of its sites, and what stayed there."""

from dataclasses import dataclass

from monai_fedskew.reports.participation import absences, arrivals
from monai_fedskew.reports.results import Results, Run

__all__ = ["DATA_STAY", "Kept", "ReportedSite", "engine_runs", "in_words", "kept_entries", "reported_sites", "unscored"]

DATA_STAY = "Data stay at the sites; their manifests and predictions were not sent."
_MAX_LINES = 20


@dataclass(frozen=True)
class ReportedSite:
    """What a site told the server of itself; ``notes`` say what is special about it, such as a late arrival."""

    site: str
    subjects: int
    windows: int
    kept: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Entries of the network that stay at the sites: their names, and where it is so."""

    method: str
    where: str
    names: tuple[str, ...]


def engine_runs(results: Results) -> tuple[Run, ...]:
    """Return the runs whose sites kept their data, models and predictions."""
    return tuple(run for run in results.runs.values() if run.engine)


def reported_sites(results: Results) -> tuple[ReportedSite, ...]:
    """List the sites whose data folder is not known, with what they reported, by name."""
    late = {(one.method, one.seed, one.site): f"joined in round {one.round}" for one in arrivals(results)}
    found = {}
    for run in engine_runs(results):
        for site, data in run.data.items():
            notes = [late.get((run.method, run.seed, site), "")]
            if site in run.unfinished:
                notes.append("no test scores")
            told = tuple(note for note in notes if note and results.is_single)
            kept = None if data.kept is None else len(data.kept)
            found[site] = ReportedSite(site, data.subjects, data.samples, kept, told)
    return tuple(found[site] for site in sorted(found))


def kept_entries(results: Results) -> tuple[Kept, ...]:
    """List which entries stay at which sites; sites with the same entries are told together."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    sites: dict[str, set[str]] = {}
    for run in engine_runs(results):
        for site, data in run.data.items():
            if data.kept is not None:
                found.setdefault((run.method, tuple(sorted(data.kept))), {})[site] = None
                sites.setdefault(run.method, set()).add(site)
    return tuple(
        Kept(method, "every site" if set(where) == sites[method] else ", ".join(sorted(where)), names)
        for (method, names), where in found.items()
    )


def unscored(results: Results) -> tuple[str, ...]:
    """Name the sites without test scores, each with the reason."""
    return tuple(
        f"{site}: {reason}" if results.is_single else f"{run.method}, seed {run.seed}, {site}: {reason}"
        for run in results.runs.values()
        for site, reason in sorted(run.unfinished.items())
    )


def in_words(results: Results) -> list[str]:
    """Say for a terminal where runs on engines ran, whose scores are lacking, and who came late or was absent."""
    runs = engine_runs(results)
    if not runs:
        return []
    lacking = unscored(results)
    lines = ["Sites without test scores:", *lacking, ""] if lacking else []
    lines += [*(_ran(run) for run in runs), DATA_STAY]
    ours = {(run.method, run.seed) for run in runs}
    told = [
        f"{_of(results, one.method, one.seed)}{one.site}: joined in round {one.round}"
        for one in arrivals(results)
        if (one.method, one.seed) in ours
    ]
    told += [
        f"{_of(results, one.method, one.seed)}{one.site}: {one.what} in round{'s' * (one.count > 1)} {one.rounds}"
        f"{f' ({one.reason})' if one.reason else ''}"
        for one in absences(results)
        if (one.method, one.seed) in ours
    ]
    more = [f"and {len(told) - _MAX_LINES} more, in history.jsonl"] if len(told) > _MAX_LINES else []
    lines += ["", "Late and absent sites:", *told[:_MAX_LINES], *more] if told else []
    return [*lines, ""]


def _ran(run: Run) -> str:
    rounds, chosen = run.details["settings"].get("rounds", "?"), run.summary.get("chosen_round")
    scored = "" if chosen is None else f"; scored: the model of round {chosen} ({run.summary.get('choose', 'chosen')})"
    return f"{run.method} on {run.engine}, study {run.study or 'not named'}: {rounds} rounds{scored}."


def _of(results: Results, method: str, seed: int) -> str:
    return "" if results.is_single else f"{method}, seed {seed}, "
