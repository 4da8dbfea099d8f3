"""What was run: study, methods, settings and versions as rows of text, and the commands."""

import shlex
from pathlib import Path

from monai_fedskew.reports.ranges import as_ranges
from monai_fedskew.reports.results import Results, Run

__all__ = ["commands", "facts_of_run"]

_WEIGHTS = {
    "samples": "training samples ({word}s) of each site",
    "groups": "subjects of each site",
    "equal": "equal weights for all sites",
}


def facts_of_run(results: Results) -> dict[str, str]:
    """Say what was run and how, one row for each thing.

    Args:
        results: of at least one finished run.
    """
    run = next(iter(results.runs.values()))
    settings = {**run.details.get("settings", {}), **results.settings}
    weights = str(settings.get("weights", "not recorded"))
    versions = run.details.get("versions", {})
    engines = list(dict.fromkeys(one.engine or "simulator" for one in results.runs.values()))
    rows = [
        ("study", results.study or ("a comparison by hand" if results.is_comparison else "a single run")),
        ("engine", ", ".join(engines)),
        ("bundle", _bundle(results)),
        ("methods", ", ".join(results.methods)),
        *_who(results, run),
        ("seeds", f"{len(results.seeds)}: {', '.join(map(str, results.seeds))}"),
        ("rounds", f"{settings.get('rounds', '?')}, local epochs in each: {settings.get('local_epochs', '?')}"),
        ("updates weighed by", _WEIGHTS.get(weights, weights).format(word=results.word("window"))),
        ("model scored", _chosen(results)),
        ("overrides", _overrides(results)),
        *([] if run.engine else [("started", str(run.details.get("started") or "not recorded"))]),
        ("time", _time(results)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items()) or "not recorded"),
    ]
    shown = {"rounds", "local_epochs", "weights", "choose", "seed"}
    rest = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items() if key not in shown)
    return dict([*rows, ("other settings", rest)] if rest else rows)


def commands(results: Results) -> list[str]:
    """Give the commands as they were called, each once; runs on an engine were started in its own way."""
    calls = [run.details.get("command") for run in results.runs.values() if not run.engine]
    calls = [results.command] if results.command else calls
    texts = [shlex.join([Path(str(call[0])).name, *map(str, call[1:])]) for call in calls if call]
    return list(dict.fromkeys(texts))


def _who(results: Results, run: Run) -> list[tuple[str, str]]:
    if run.dealt is None:
        return [("sites", ", ".join(results.sites))]
    evenly = "validation and test rows evenly by class"
    return [
        ("clients", f"{len(results.sites)}: {results.sites[0]} to {results.sites[-1]}"),
        ("partition", f"{run.dealt.how} of the training rows of {', '.join(run.data)}; {evenly}"),
    ]


def _bundle(results: Results) -> str:
    run = next(iter(results.runs.values()))
    bundle = results.bundle or run.details.get("bundle", {})
    name = str(bundle.get("name", "not recorded"))
    sha256 = str(bundle.get("sha256", "not recorded"))
    return f"{name} (sha256 {sha256[:12]})" if sha256 else name


def _overrides(results: Results) -> str:
    """Write the overrides that all runs share; others (the fold) differ from seed to seed."""
    if all(run.engine for run in results.runs.values()):
        return "each site's own"
    first, *rest = [dict(run.details.get("overrides") or {}) for run in results.runs.values()]
    shared = [f"{key}={value}" for key, value in first.items() if all(other.get(key) == value for other in rest)]
    return ", ".join(shared) or "none"


def _chosen(results: Results) -> str:
    rules = {str(run.summary.get("choose", "not recorded")) for run in results.runs.values()}
    found = {run.summary.get("chosen_round") for run in results.runs.values()}
    rounds = [number for number in found if number is not None]
    chosen = f"round {as_ranges(rounds)}" if rounds else "round not recorded"
    return f"{', '.join(sorted(rules))} ({chosen})"


def _time(results: Results) -> str:
    seconds = [run.summary["seconds"] for run in results.runs.values() if run.summary.get("seconds") is not None]
    if not seconds:
        return "not recorded"
    what = "with all waiting" if any(run.engine for run in results.runs.values()) else "of training"
    return f"{sum(seconds) / 60:.1f} minutes {what} over {len(seconds)} run{'s' * (len(seconds) > 1)}"
