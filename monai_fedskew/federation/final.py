"""The end of a run at a site: score the chosen model on test data once, and leave a folder that runs alone."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State, snapshot
from monai_fedskew.errors import DataError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.scores import score_predictions
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.export import export_bundle

__all__ = ["finish_site", "overall"]

Scores = dict[str, dict[str, Any]]


def finish_site(
    method: Method, source: BundleSite, settings: Settings, *, cast: Broadcast, private: State, folder: Path
) -> Scores:
    """Score the chosen model at one site and export it.

    Args:
        method: what was run.
        source: the site.
        settings: how it was run.
        cast: the chosen shared model.
        private: the site's private state of the same round.
        folder: RUN/sites/<SITE>; gets predictions.csv if the bundle writes one, and the exported bundle.

    Returns:
        Scores by level: "window" (one row of data) and, where predictions name subjects, "subject" (majority vote).

    Raises:
        DataError: the site has no test data.
    """
    client = Client(method, source, settings, split="test", output=folder)
    client.restore(private)
    evaluation = client.evaluate(cast)
    if evaluation is None:
        raise DataError(f"site {source.site}: no test examples; look at the split and the fold")
    model = snapshot(client.site.model, client.site.model.state_dict())
    deployments = client.deployments()
    client.close()
    export_bundle(source, folder, model=model, method=method, seed=settings.seed, deployments=deployments)
    predictions = folder / "predictions.csv"
    if predictions.is_file():
        return score_predictions(predictions)
    return {"window": {**evaluation.metrics, "samples": evaluation.samples}}


def overall(sites: Mapping[str, Scores]) -> dict[str, Any]:
    """Return the unweighted mean over sites and the worst site, per level; null scores are left out of the mean."""
    levels = sorted({level for scores in sites.values() for level in scores}, reverse=True)
    mean: dict[str, dict[str, Any]] = {}
    worst: dict[str, dict[str, Any]] = {}
    for level in levels:
        rows = {site: scores[level] for site, scores in sites.items() if level in scores}
        names = [name for name in next(iter(rows.values())) if name != "samples"]
        mean[level] = {}
        for name in names:
            values = [row[name] for row in rows.values() if _has_value(row.get(name))]
            mean[level][name] = sum(values) / len(values) if values else None
            mean[level][f"{name}_sites"] = len(values)
        key = names[0]
        scored = {site: row[key] for site, row in rows.items() if _has_value(row.get(key))}
        if scored:
            site = min(scored, key=lambda name: scored[name])
            worst[level] = {"site": site, key: scored[site]}
    return {"mean": mean, "worst": worst}


def _has_value(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
