"""One run from a bundle, prepared data and a method to a finished RUN folder; what simulate and compare call."""

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monai_fedskew.core.messages import History
from monai_fedskew.core.method import Method
from monai_fedskew.data.manifest import read_manifest, site_folders
from monai_fedskew.engines.simulator import Outcome, simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.final import finish_site, overall
from monai_fedskew.federation.run_folder import open_run, write_json
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.pool import PooledSites

__all__ = ["RunSpec", "bundle_about", "execute", "find_sites"]

_PACKAGES = ("monai-fedskew", "torch", "monai", "pytorch-ignite", "numpy", "nilearn", "scikit-learn", "safetensors")


@dataclass(frozen=True)
class RunSpec:
    """All that decides a run.

    Args:
        bundle: the bundle's folder.
        data: folder of prepared sites.
        method: as text, e.g. ``fedrdn+fedbn``.
        settings: how it is run.
        out: the RUN folder.
        sites: which sites; empty for all prepared ones.
        overrides: configuration id to value; ``fold`` follows the seed unless it is given.
        max_alive: sites held in memory at once, None for all.
    """

    bundle: Path
    data: Path
    method: str
    settings: Settings
    out: Path
    sites: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    max_alive: int | None = None


def execute(
    spec: RunSpec, *, resume: bool = False, force: bool = False, on_round: Callable[[int, History], None] | None = None
) -> dict[str, Any]:
    """Run, score on test data, export the sites; return the summary that summary.json holds."""
    started = time.monotonic()
    method = parse_method(spec.method)
    sources = _sources(spec)
    open_run(spec.out, _about(spec, method, sources), resume=resume, force=force)
    training: Mapping[str, Any] = sources
    if method.scope == "pooled":
        training = {"pooled": PooledSites(tuple(sources.values()))}
    outcome = simulate(
        method, training, spec.settings, run=spec.out, resume=resume, max_alive=spec.max_alive, on_round=on_round
    )
    trained = time.monotonic() - started
    scores = {}
    for name, source in sources.items():
        private = outcome.private.get(name, outcome.private.get("pooled", {}))
        folder = spec.out / "sites" / name
        scores[name] = finish_site(method, source, spec.settings, cast=outcome.cast, private=private, folder=folder)
    summary = _summary(spec, outcome, scores)
    rounds = spec.settings.rounds
    summary["seconds"] = {"total": round(time.monotonic() - started, 2), "per_round": round(trained / rounds, 4)}
    write_json(spec.out / "summary.json", summary)
    return summary


def find_sites(data: Path, wanted: tuple[str, ...]) -> dict[str, Path]:
    """Return the folders of the wanted sites, all prepared ones if none is named.

    Raises:
        ConfigError: a site that is not prepared, naming those that are.
    """
    found = site_folders(data)
    for site in wanted:
        if site not in found:
            raise ConfigError(f"--data {data}: no site {site!r}; prepared there: {', '.join(found)}")
    return {site: found[site] for site in sorted(wanted or found)}


def bundle_about(bundle: Path) -> dict[str, str]:
    """Return name, path and a hash over the bundle's configuration files."""
    digest = hashlib.sha256()
    for path in sorted((bundle / "configs").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return {"name": bundle.name, "path": str(bundle), "sha256": digest.hexdigest()}


def _sources(spec: RunSpec) -> dict[str, BundleSite]:
    overrides = dict(spec.overrides)
    probe = BundleSite(spec.bundle, "", None, {})
    known = probe.ids()
    if "fold" in known and "fold" not in overrides:
        overrides["fold"] = spec.settings.seed % int(overrides.get("folds", known.get("folds", 1)))
    folders = find_sites(spec.data, spec.sites)
    return {name: BundleSite(spec.bundle, name, folder.resolve(), overrides) for name, folder in folders.items()}


def _about(spec: RunSpec, method: Method, sources: Mapping[str, BundleSite]) -> dict[str, Any]:
    sites = {}
    for name, source in sources.items():
        assert source.data is not None
        manifest = read_manifest(source.data)
        digest = hashlib.sha256((source.data / "manifest.json").read_bytes()).hexdigest()
        sites[name] = {
            "data": str(source.data),
            "manifest_sha256": digest,
            "samples": manifest.n_rows,
            "subjects": len(manifest.subjects),
            "summary": dict(manifest.summary),
        }
    return {
        "schema": 1,
        "command": sys.argv,
        "versions": {name: version(name) for name in _PACKAGES},
        "method": spec.method,
        "parts": [part.name for part in method.parts],
        "seed": spec.settings.seed,
        "settings": spec.settings.plain(),
        "bundle": bundle_about(spec.bundle),
        "overrides": dict(next(iter(sources.values())).overrides),
        "sites": sites,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _summary(spec: RunSpec, outcome: Outcome, scores: Mapping[str, Any]) -> dict[str, Any]:
    shared = outcome.cast.tensors
    private = next(iter(outcome.private.values()), {})
    failures = [
        {"round": event.round, "site": event.site, "kind": event.kind, "reason": event.reason}
        for event in outcome.history.events
        if event.kind in ("failed", "excluded")
    ]
    return {
        "schema": 1,
        "method": spec.method,
        "seed": spec.settings.seed,
        "split": "test",
        "chosen_round": outcome.round,
        "choose": spec.settings.choose,
        "sites": dict(scores),
        **overall(scores),
        "shared_keys": len(shared),
        "private_keys": sum(name.startswith("model/") for name in private),
        "shared_bytes": sum(value.nbytes for value in shared.values()),
        "failures": failures,
    }
