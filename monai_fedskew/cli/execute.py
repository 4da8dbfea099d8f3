"""One run from a bundle, prepared data and a method to a finished RUN folder; what simulate and compare call."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from monai_fedskew.core.method import Method
from monai_fedskew.data.integrity import verify_data
from monai_fedskew.data.manifest import SiteManifest, read_manifest, site_folders
from monai_fedskew.data.partition import Partition
from monai_fedskew.engines.simulator import Outcome, check_run, simulate
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation import checkpoint
from monai_fedskew.federation.cost import Cost, measure_cost, message_bytes
from monai_fedskew.federation.final import finish_site, score_site
from monai_fedskew.federation.history import Entry
from monai_fedskew.federation.run_folder import is_finished, locked, open_run, require_same_run, write_json
from monai_fedskew.federation.settings import Settings
from monai_fedskew.federation.summary import about_run, summarise
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.fold import with_fold
from monai_fedskew.sites.partition import DealtSite, deal_sites
from monai_fedskew.sites.pool import PooledSites

__all__ = ["Plan", "RunSpec", "bundle_about", "execute", "find_sites", "plan", "verify_sites"]


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
        partition: how the sites' rows are dealt to clients; None lets every site hold its own.
    """

    bundle: Path
    data: Path
    method: str
    settings: Settings
    out: Path
    sites: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    max_alive: int | None = None
    partition: Partition | None = None


@dataclass(frozen=True)
class Plan:
    """A run that has been looked at.

    Args:
        spec: what was asked for.
        method: what is run.
        sites: name to source of the prepared sites.
        about: the content of run.json.
        clients: those that the sites' rows are dealt to; empty where every site holds its own.
    """

    spec: RunSpec
    method: Method
    sites: Mapping[str, BundleSite]
    about: Mapping[str, Any]
    clients: Mapping[str, DealtSite] = field(default_factory=dict)

    @property
    def scored(self) -> Mapping[str, BundleSite | DealtSite]:
        """What is scored: the clients of a partition, else the sites."""
        return self.clients or self.sites

    @property
    def training(self) -> Mapping[str, BundleSite | DealtSite | PooledSites]:
        """What trains: for the pooled baseline one that holds all training data, dealt out or not."""
        if self.method.scope == "pooled":
            return {"pooled": PooledSites(tuple(self.sites.values()))}
        return self.scored


def plan(spec: RunSpec) -> Plan:
    """Resolve a run without running or writing anything.

    Raises:
        ConfigError: an unknown method, site or id, settings that cannot be, a method that does not fit the network.
        DataError: a site's data cannot be used.
    """
    method, sites = parse_method(spec.method), _sources(spec)
    found = Plan(spec, method, sites, _about(spec, method, sites))
    if spec.partition is not None:
        found = _dealt(found, spec.partition)
    check_run(method, found.training, spec.settings)
    return found


def execute(
    spec: RunSpec,
    *,
    resume: bool = False,
    force: bool = False,
    on_round: Callable[[int, Sequence[Entry]], None] | None = None,
) -> dict[str, Any]:
    """Run, score on test data, export the sites; return the summary that summary.json holds.

    Args:
        spec: the run.
        resume: go on with what ``spec.out`` holds; a finished run is left as it is.
        force: replace what ``spec.out`` holds.
        on_round: called after each round, see ``simulate``.
    """
    started = time.monotonic()
    planned = plan(spec)
    if resume and (spec.out / "run.json").is_file():
        require_same_run(spec.out, planned.about)
        if is_finished(spec.out, spec.settings.rounds):
            summary: dict[str, Any] = json.loads((spec.out / "summary.json").read_text())
            return summary
    training = planned.training
    cost = measure_cost(planned.method, training[min(training)], spec.settings)  # finds what two steps can find, too
    open_run(spec.out, planned.about, resume=resume, force=force)
    with locked(spec.out):
        return _run(planned, cost, resume=resume, on_round=on_round, started=started)


def _run(
    planned: Plan, cost: Cost, *, resume: bool, on_round: Callable[[int, Sequence[Entry]], None] | None, started: float
) -> dict[str, Any]:
    spec = planned.spec
    before = (checkpoint.latest(spec.out) or 0) if resume else 0
    begun = time.monotonic()
    outcome = simulate(
        planned.method,
        planned.training,
        spec.settings,
        run=spec.out,
        resume=resume,
        max_alive=spec.max_alive,
        on_round=on_round,
    )
    trained = time.monotonic() - begun
    private = next(iter(outcome.private.values()), {})
    summary = summarise(
        spec.method,
        spec.settings,
        cast=outcome.cast,
        round=outcome.round,
        history=outcome.history,
        scores=_finish(planned, outcome),
        private_keys=sum(name.startswith("model/") for name in private),
    )
    per_round = trained / max(1, spec.settings.rounds - before)
    # what parts tell grows with the number of sites
    summary["cost"] = replace(cost, received_bytes=message_bytes(outcome.cast)).plain()
    summary["seconds"] = {"total": round(time.monotonic() - started, 2), "per_round": round(per_round, 4)}
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


def verify_sites(data: Path, wanted: tuple[str, ...]) -> None:
    """Read every site's array once and compare it with its manifest: about a second a gigabyte.

    Raises:
        DataError: an array that was changed after it was prepared, or holds values that are not finite.
    """
    for folder in find_sites(data, wanted).values():
        verify_data(folder, read_manifest(folder))


def bundle_about(bundle: Path) -> dict[str, str]:
    """Return name, path and a hash over the bundle's configuration files."""
    digest = hashlib.sha256()
    for path in sorted((bundle / "configs").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return {"name": bundle.name, "path": str(bundle), "sha256": digest.hexdigest()}


def _finish(planned: Plan, outcome: Outcome) -> dict[str, Any]:
    """Score and export every site; a pooled model is known to its parts as that of the pool.

    A client of a partition is scored only: a bundle that runs alone reads a site's folder, not rows of several.
    """
    spec, scores = planned.spec, {}
    is_pooled = planned.method.scope == "pooled"
    for name, held in planned.scored.items():
        site = replace(held, known_as="pooled") if is_pooled else held
        private = outcome.private["pooled" if is_pooled else name]
        folder = spec.out / "sites" / name
        if isinstance(site, DealtSite):
            scored = score_site(planned.method, site, spec.settings, cast=outcome.cast, private=private, folder=folder)
        else:
            scored = finish_site(planned.method, site, spec.settings, cast=outcome.cast, private=private, folder=folder)
        scores[name] = scored
    return scores


def _dealt(planned: Plan, partition: Partition) -> Plan:
    """The same run over clients that the sites' rows are dealt to."""
    settings = planned.spec.settings
    if planned.method.scope == "pooled" and partition.leaves_rows_out:
        raise ConfigError(
            f"partition {partition.text}: {planned.method.name} trains on all rows, of which the clients hold a part; "
            "leave one of the two out"
        )
    clients = deal_sites(partition, tuple(planned.sites.values()), seed=settings.seed)
    unscored = sum(not client.has_validation for client in clients.values())
    if unscored and settings.choose == "best" and planned.method.scope != "pooled":
        raise ConfigError(
            f"partition {partition.text}: {unscored} of {len(clients)} clients have no validation rows to choose the "
            "best round by; choose the last (--choose last), take fewer clients or raise validation_fraction"
        )
    known = {name: client.about for name, client in clients.items()}
    dealt = {"how": partition.text, "clients": known}
    return replace(planned, clients=clients, about={**planned.about, "partition": dealt})


def _sources(spec: RunSpec) -> dict[str, BundleSite]:
    overrides = with_fold(spec.bundle, spec.overrides, spec.settings.seed)
    folders = find_sites(spec.data, spec.sites)
    return {name: BundleSite(spec.bundle, name, folder.resolve(), overrides) for name, folder in folders.items()}


def _require_one_kind(manifests: Mapping[str, SiteManifest]) -> None:
    """Refuse sites whose rows or labels are not of one kind: one network could not serve them."""
    (first, known), *others = manifests.items()
    for name, manifest in others:
        for what, here, there in (
            ("label names", manifest.label_names, known.label_names),
            ("channels and dimensions of images", _channels(manifest), _channels(known)),
        ):
            if here != there:
                raise DataError(
                    f"site {name}: {what} {list(here)}, but at site {first} {list(there)}; prepare all sites alike"
                )


def _channels(manifest: SiteManifest) -> tuple[int, ...]:
    if not manifest.shape:
        return ()
    axes = (len(manifest.shape) - 1,)
    # files get their channels from the bundle's transforms, which may take grey and colours
    return axes if manifest.store == "files" else (manifest.shape[0], *axes)


def _about(spec: RunSpec, method: Method, sources: Mapping[str, BundleSite]) -> dict[str, Any]:
    sites: dict[str, Any] = {}
    manifests = {name: read_manifest(source.data) for name, source in sources.items() if source.data is not None}
    _require_one_kind(manifests)
    for name, source in sources.items():
        assert source.data is not None
        manifest = manifests[name]
        digest = hashlib.sha256((source.data / "manifest.json").read_bytes()).hexdigest()
        sites[name] = {
            "data": str(source.data),
            "manifest_sha256": digest,
            "samples": manifest.n_rows,
            "subjects": manifest.n_groups,
            "summary": dict(manifest.summary),
        }
    return {
        **about_run(method, spec.settings),
        "method": spec.method,
        "command": sys.argv,
        "bundle": bundle_about(spec.bundle),
        "overrides": dict(next(iter(sources.values())).overrides),
        "sites": sites,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
