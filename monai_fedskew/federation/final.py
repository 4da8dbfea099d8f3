"""The end of a run at a site: score the chosen model on test data once, and leave a folder that runs alone."""

from pathlib import Path
from typing import Any

from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import State, snapshot
from monai_fedskew.errors import DataError
from monai_fedskew.federation.client import Client, SiteSource
from monai_fedskew.federation.scores import score_folder
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.export import export_bundle

__all__ = ["finish_site", "score_site"]

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
        folder: RUN/sites/<SITE>; gets predictions.csv or segmentation.csv if the bundle writes one, and the exported
            bundle.

    Returns:
        Scores by level: "window" (one row of data) and, where predictions name subjects, "subject" (majority vote).

    Raises:
        DataError: the site has no test data.
    """
    client = Client(method, source, settings, split="test", output=folder)
    scores = _scored(client, cast, private, folder)
    model = snapshot(client.site.model, client.site.model.state_dict())
    deployments = client.deployments()
    client.close()
    export_bundle(source, folder, model=model, method=method, seed=settings.seed, deployments=deployments)
    return scores


def score_site(
    method: Method, source: SiteSource, settings: Settings, *, cast: Broadcast, private: State, folder: Path
) -> Scores:
    """Score the chosen model at a site that takes nothing home; arguments, result and errors as for ``finish_site``."""
    client = Client(method, source, settings, split="test", output=folder)
    scores = _scored(client, cast, private, folder)
    client.close()
    return scores


def _scored(client: Client, cast: Broadcast, private: State, folder: Path) -> Scores:
    client.restore(private)
    evaluation = client.evaluate(cast)
    if evaluation is None:
        raise DataError(f"site {client.site.name}: no test examples; look at the split and the fold")
    if (scores := score_folder(folder)) is not None:
        return scores
    return {"window": {**evaluation.metrics, "samples": evaluation.samples}}
