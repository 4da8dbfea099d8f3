"""What a hospital can look at before it meets a server: its file, its data, its bundle, its folders."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from monai_fedskew.errors import FedSkewError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.sites.site_file import SiteFile

__all__ = ["Line", "check_site", "is_writable"]

Line = tuple[bool, str]


def check_site(file: SiteFile, method: str, settings: Settings) -> Iterator[Line]:
    """Yield, line by line, what was looked at: whether it is good, and what was found. Nothing is written.

    Args:
        file: the hospital's file.
        method: the study's method, as text.
        settings: the study's settings; how many sites there will be is not for this site to say.
    """
    yield from _data(file)
    yield from _names(file)
    yield from _bundle(file, method, replace(settings, min_sites=1))
    for key, folder in (("state", file.state), ("output", file.output)):
        is_good = is_writable(folder)
        yield is_good, f"{key}: {folder} {'can' if is_good else 'cannot'} be written"


def is_writable(folder: Path) -> bool:
    """Whether a folder, there or not yet, could be written; nothing is made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _data(file: SiteFile) -> Iterator[Line]:
    from monai_fedskew.data.integrity import verify_data
    from monai_fedskew.data.manifest import MANIFEST, read_manifest

    if not (file.data / MANIFEST).is_file():
        yield os.access(file.data, os.R_OK), f"data: {file.data} has no {MANIFEST} to be checked by"
        return
    try:
        manifest = read_manifest(file.data)
        verify_data(file.data, manifest)
    except FedSkewError as error:
        yield False, f"data: {error}"
        return
    yield True, f"data: {file.data}, {manifest.n_rows} samples of {manifest.n_groups} subjects, as prepared"


def _names(file: SiteFile) -> Iterator[Line]:
    """A bundle's settings for a site go by name: another name at the engine would leave them out in silence."""
    from monai_fedskew.data.manifest import MANIFEST, read_manifest

    overlay = _overlay(file, file.site)
    yield True, f"name: {file.site}, {overlay.name if overlay.is_file() else 'no settings of its own in the bundle'}"
    try:
        prepared = read_manifest(file.data).site if (file.data / MANIFEST).is_file() else file.site
    except FedSkewError:  # told by the line on data
        return
    theirs = _overlay(file, prepared)
    if theirs != overlay and theirs.is_file():
        yield (
            False,
            (
                f"name: the data were prepared as {prepared}, but the engine calls this site {file.site}, so "
                f"{theirs.name} is not used; copy it to {overlay.name}"
            ),
        )


def _bundle(file: SiteFile, method: str, settings: Settings) -> Iterator[Line]:
    from monai_fedskew.engines.simulator import check_run
    from monai_fedskew.federation.study import require_federated
    from monai_fedskew.methods import parse_method

    try:
        require_federated(parsed := parse_method(method))
        check_run(parsed, {file.site: file.source(settings.seed)}, settings)
    except FedSkewError as error:
        yield False, f"bundle: {error}"
        return
    yield True, f"bundle: {file.bundle.name} opens for training and test, and {method} fits its network"


def _overlay(file: SiteFile, site: str) -> Path:
    return file.bundle / "configs" / f"site_{site.lower()}.yaml"
