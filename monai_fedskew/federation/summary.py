"""summary.json: what came out of a run, on any engine."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from monai_fedskew.core.messages import Broadcast, History
from monai_fedskew.core.method import Method
from monai_fedskew.core.metrics import is_better_low, is_count
from monai_fedskew.core.versions import versions
from monai_fedskew.federation.settings import Settings

__all__ = ["about_run", "overall", "summarise"]

_PACKAGES = ("monai-fedskew", "torch", "monai", "pytorch-ignite", "numpy", "nilearn", "scikit-learn", "safetensors")


def about_run(method: Method, settings: Settings) -> dict[str, Any]:
    """Return what run.json says on every engine: versions, the method and its parts, settings.

    Args:
        method: what is run.
        settings: how it is run.
    """
    return {
        "schema": 1,
        "versions": versions(_PACKAGES),
        "method": method.name,
        "parts": [part.name for part in method.parts],
        "stages": {part.name: list(part.stages) for part in method.parts},
        "seed": settings.seed,
        "settings": settings.plain(),
    }


def summarise(
    method: str,
    settings: Settings,
    *,
    cast: Broadcast,
    round: int,
    history: History,
    scores: Mapping[str, Mapping[str, Any]],
    private_keys: int,
) -> dict[str, Any]:
    """Return the content of summary.json.

    Args:
        method: as text.
        settings: how it was run.
        cast: the chosen model, as it would be broadcast.
        round: the chosen round.
        history: all scores and events.
        scores: by site and level, on test data.
        private_keys: entries of the network that stay at a site.
    """
    told = [value for state in cast.aux.values() for value in state.values()]
    failures = [
        {"round": event.round, "site": event.site, "kind": event.kind, "reason": event.reason}
        for event in history.events
        if event.kind in ("failed", "excluded", "missing")
    ]
    return {
        "schema": 1,
        "method": method,
        "seed": settings.seed,
        "split": "test",
        "chosen_round": round,
        "choose": settings.choose,
        "sites": {site: dict(levels) for site, levels in scores.items()},
        **overall(scores),
        "shared_keys": len(cast.tensors),
        "private_keys": private_keys,
        "shared_bytes": sum(value.nbytes for value in (*cast.tensors.values(), *told)),
        "failures": failures,
    }


def overall(sites: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return means over sites, worst sites and how unequal sites fare, per level; null scores are left out.

    Args:
        sites: by site and level, the scores and their counts.

    Returns:
        ``mean``: the unweighted mean over sites, and over how many; ``worst``: the site with the lowest first score,
        and of scores that are better when low (a distance) the site with the highest; ``std_over_sites``: the standard
        deviation over the sites with a value (ddof=0: they are all there are), None with fewer than two.

    Example:
        >>> found = overall({"A": {"window": {"dice": 0.5}}, "B": {"window": {"dice": 0.9}}})
        >>> found["worst"]["window"], round(found["std_over_sites"]["window"]["dice"], 3)
        ({'site': 'A', 'dice': 0.5}, 0.2)
    """
    levels = sorted({level for scores in sites.values() for level in scores}, reverse=True)
    mean: dict[str, dict[str, Any]] = {}
    worst: dict[str, dict[str, Any]] = {}
    spread: dict[str, dict[str, Any]] = {}
    for level in levels:
        rows = {site: scores[level] for site, scores in sites.items() if level in scores}
        names = [name for name in next(iter(rows.values())) if not is_count(name)]
        mean[level], spread[level] = {}, {}
        for name in names:
            known = {site: row[name] for site, row in rows.items() if _has_value(row.get(name))}
            values = list(known.values())
            mean[level][name] = sum(values) / len(values) if values else None
            mean[level][f"{name}_sites"] = len(values)
            spread[level][name] = statistics.pstdev(values) if len(values) > 1 else None
            if values and name == names[0]:
                site = min(known, key=known.__getitem__)
                worst[level] = {"site": site, name: known[site]}
            elif values and is_better_low(name):
                site = max(known, key=known.__getitem__)
                worst.setdefault(level, {}).update({f"{name}_site": site, name: known[site]})
    return {"mean": mean, "worst": worst, "std_over_sites": spread}


def _has_value(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
