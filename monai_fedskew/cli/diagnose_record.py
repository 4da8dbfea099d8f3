"""What a diagnosis needs of run.json, checked as it is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monai_fedskew.core.method import Method
from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.reports.fields import RUN_AGAIN, Fields, read_fields

__all__ = ["Record", "SiteRecord", "read_record"]


@dataclass(frozen=True)
class SiteRecord:
    """Where a site's prepared data lay, and the hash of their manifest."""

    data: Path
    manifest_sha256: str


@dataclass(frozen=True)
class Record:
    """How a run was made.

    Args:
        method: what was run.
        settings: how.
        bundle: the bundle's folder.
        bundle_name: its name, by which a shipped one is found where the folder is not there.
        bundle_sha256: hash over its configuration.
        overrides: configuration id to value.
        sites: the prepared sites by name.
    """

    method: Method
    settings: Settings
    bundle: Path
    bundle_name: str
    bundle_sha256: str
    overrides: Mapping[str, Any]
    sites: Mapping[str, SiteRecord]


def read_record(run: Path) -> Record:
    """Read RUN/run.json.

    Raises:
        ConfigError: no RUN folder, a run of an engine, or one of clients that the sites' rows were dealt to.
        DataError: a damaged file; the key and its value are named.
    """
    path = run / "run.json"
    if not path.is_file():
        raise ConfigError(f"{run}: no RUN folder (no run.json); give what `fedskew simulate --out` wrote")
    held = read_fields(path, RUN_AGAIN)
    if held.values.get("engine"):
        raise ConfigError(
            f"{run}: was run on {held.text('engine')}; the data are at the sites, not here. Diagnose a run of "
            "`fedskew simulate`"
        )
    bundle, method = held.inside("bundle", is_required=True), _method(held)
    _refuse_partition(held, run, method)
    return Record(
        method,
        _settings(held),
        Path(bundle.text("path")),
        bundle.text("name"),
        bundle.text("sha256"),
        held.inside("overrides", is_required=True).values,
        _sites(held),
    )


def _method(held: Fields) -> Method:
    text = held.text("method")
    try:
        return parse_method(text)
    except ConfigError as error:
        raise DataError(f"{held.file}: method is {text[:60]!r} ({error}); {held.again}") from error


def _settings(held: Fields) -> Settings:
    values = held.inside("settings", is_required=True).values
    try:
        return Settings(**values)
    except (ConfigError, TypeError) as error:  # a value out of range, or a key that is unknown or lacking
        raise DataError(f"{held.file}: settings are no settings of a run ({error}); {held.again}") from error


def _refuse_partition(held: Fields, run: Path, method: Method) -> None:
    """Refuse clients of a partition, unless one pool of all sites was trained, which dealing leaves as it is."""
    if held.values.get("partition") is None or method.scope == "pooled":
        return
    dealt = held.inside("partition")
    raise ConfigError(
        f"{run}: its {len(dealt.inside('clients').values)} clients hold rows dealt by --partition {dealt.text('how')}, "
        "and only models of prepared sites can be diagnosed; give a run without --partition"
    )


def _sites(held: Fields) -> dict[str, SiteRecord]:
    sites, found = held.inside("sites", is_required=True), {}
    for name in sites.values:
        site = sites.inside(require_site_name(name, f"{held.file}: a key of sites"))
        found[name] = SiteRecord(Path(site.text("data")), site.text("manifest_sha256"))
    if not found:
        raise held.wrong("sites", "an object with a site", dict(sites.values))
    return found
