"""The hospital's own file: where its bundle, data and private state lie. The server never says, nor learns, any of it.

fedskew.json; relative paths are relative to the file::

    {"site": "NYU", "bundle": "abide_connectome", "data": "prepared/NYU", "state": "state", "output": "results",
     "overrides": {"batch_size": 32}}

``"prepared_as": "UM_1"`` says that data of another name are this site's own.
"""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monai_fedskew.core.json_object import read_object
from monai_fedskew.core.whole_file import write_whole
from monai_fedskew.data.manifest import MANIFEST, read_manifest
from monai_fedskew.data.site_names import require_site_name
from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.bundle import BundleSite
from monai_fedskew.sites.fold import with_fold
from monai_fedskew.sites.locate import find_bundle, list_bundles

__all__ = ["SiteFile", "parse_site_file", "read_site_file", "write_site_file"]

_NEEDED, _PATHS = ("bundle", "data"), ("bundle", "data", "state", "output")
_KEYS = ("site", *_PATHS, "prepared_as", "overrides")
_DEFAULTS = {"state": "state", "output": "results"}
_HINT = "`fedskew site init` writes one"


@dataclass(frozen=True)
class SiteFile:
    """What a hospital decides, the same for every engine.

    Args:
        site: name of the site, as the engine knows it.
        bundle: folder of its bundle.
        data: folder of its prepared data.
        state: folder of its private state; may not exist yet.
        output: folder of its results; may not exist yet.
        overrides: configuration id to plain value; ``fold`` follows the seed unless it is given.
        prepared_as: the name its data were prepared under, where that is another; empty for the same.
    """

    site: str
    bundle: Path
    data: Path
    state: Path
    output: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)
    prepared_as: str = ""

    def source(self, seed: int) -> BundleSite:
        """Return what opens the site, with the fold that belongs to the seed.

        Raises:
            ConfigError: the bundle cannot be read, or its folds make no sense.
        """
        return BundleSite(self.bundle, self.site, self.data, with_fold(self.bundle, self.overrides, seed))


def read_site_file(path: Path, site: str | None = None) -> SiteFile:
    """Read a hospital's file.

    Args:
        path: the file.
        site: who the engine says this is; a ``site`` in the file must be the same. None where there is no engine: then
            the file must say it.

    Raises:
        ConfigError: an unknown or missing key, a value of the wrong kind, another site, or no such bundle.
        DataError: the file, or the folder of data it names, is not there or cannot be read, or the data were prepared
            for another site.
    """
    return parse_site_file(path, read_object(path, _HINT), site)


def parse_site_file(path: Path, content: Mapping[str, Any], site: str | None = None) -> SiteFile:
    """Make of a file's content what ``read_site_file`` returns, with the same errors; nothing has to be written yet."""
    _check(path, content)
    if site is None:
        if "site" not in content:
            raise ConfigError(f"{path}: does not say which site this is; give it the key `site`, or --site NAME")
        site = require_site_name(content["site"], f"{path}: site")
    require_site_name(site, f"{path}: the engine's name of this site")
    if content.get("site", site) != site:
        raise ConfigError(
            f"{path}: site is {content['site']!r}, but the engine knows this site as {site!r}; correct the file, or "
            "use the start-up kit or node configuration of this site"
        )
    folder = path.absolute().parent
    bundle = content["bundle"]
    found = {key: Path(os.path.normpath(folder / content.get(key, _DEFAULTS.get(key, "")))) for key in _PATHS[1:]}
    _require_folders(path, found)
    _require_own(path, found["data"], site, prepared_as := content.get("prepared_as", ""))
    return SiteFile(
        site=site,
        bundle=find_bundle(bundle if bundle in list_bundles() else os.path.normpath(folder / bundle)),
        data=found["data"],
        state=found["state"],
        output=found["output"],
        overrides=content.get("overrides", {}),
        prepared_as=prepared_as,
    )


def write_site_file(path: Path, site_file: SiteFile) -> None:
    """Write a hospital's file, whole or not at all; what lies beside it or below is named relative to it.

    Raises:
        ConfigError: the file is a folder, state or output is a file, or the overrides hold what JSON cannot.
        DataError: the folder of data is not there, or was prepared for another site.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it, for example {path / 'fedskew.json'}")
    _require_folders(path, {key: getattr(site_file, key) for key in _PATHS[1:]})
    _require_own(path, site_file.data, site_file.site, site_file.prepared_as)
    folder = path.absolute().parent
    shipped = {bundle: name for name, bundle in list_bundles().items()}
    content: dict[str, Any] = {"site": site_file.site}
    for key in _PATHS:
        held: Path = getattr(site_file, key)
        target = held.absolute()
        content[key] = target.relative_to(folder).as_posix() if target.is_relative_to(folder) else str(target)
    if site_file.bundle in shipped:
        content["bundle"] = shipped[site_file.bundle]
    elif content["bundle"] in list_bundles():  # the hospital's own; the name alone means the shipped one
        content["bundle"] = f"./{content['bundle']}"
    content |= {"prepared_as": site_file.prepared_as} if site_file.prepared_as else {}
    content["overrides"] = dict(site_file.overrides)
    try:
        text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: overrides must be plain values ({error})") from error
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _check(path: Path, content: Mapping[str, Any]) -> None:
    for key in content:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, 1)
            hint = f"did you mean {close[0]}?" if close else f"it may hold {', '.join(_KEYS)}"
            raise ConfigError(f"{path}: unknown key {key!r}; {hint}")
    for key in _NEEDED:
        if key not in content:
            raise ConfigError(f"{path}: lacks the key {key!r}; it needs {' and '.join(_NEEDED)}")
    for key, value in content.items():
        if key == "overrides":
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: overrides={value!r} must be an object of configuration id to value")
        elif not isinstance(value, str) or not value or "\0" in value:
            raise ConfigError(f"{path}: {key}={value!r} must be text")


def _require_folders(path: Path, found: Mapping[str, Path]) -> None:
    if not found["data"].is_dir():
        raise DataError(f"{path}: data {found['data']} is no folder; name the folder of the site's prepared data")
    for key in ("state", "output"):
        if found[key].exists() and not found[key].is_dir():
            raise ConfigError(f"{path}: {key} {found[key]} is a file; name a folder")


def _require_own(path: Path, data: Path, site: str, prepared_as: str) -> None:
    """Refuse another hospital's data: nothing else would notice, and its patients would be counted twice."""
    if not (data / MANIFEST).is_file():
        return
    found = read_manifest(data).site
    if found not in (site, prepared_as):
        raise DataError(
            f"{path}: data {data} were prepared for site {found!r}, but this is {site!r}; name this site's own folder, "
            f'or, if it is the same hospital under another name, "prepared_as": "{found}" (--prepared-as {found})'
        )
