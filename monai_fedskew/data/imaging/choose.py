"""Which of the images on disk are prepared: found, put into splits, and chosen."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from monai_fedskew.data.imaging.given_splits import apply_splits
from monai_fedskew.data.imaging.layouts import find_images
from monai_fedskew.data.imaging.layouts.table import read_table
from monai_fedskew.data.imaging.options import Options
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.manifest import Excluded, require_site_name
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["choose", "find"]


def find(data: Path, options: Options) -> tuple[str, list[ImageSource]]:
    """Find all images, with their splits and subjects.

    Returns:
        The name of the layout, and the images, sorted by site and id.

    Raises:
        ConfigError: an unknown layout, or a pattern of subjects that fits an image nowhere.
        DataError: no images, a list or table that does not fit them, a name of a site that cannot be one, two images of
            one name, or masks for some of them only.
    """
    if options.table is not None:
        layout, found = "table", read_table(options.table, data)
    else:
        layout, found = find_images(data, options.layout)
    if not options.has_lists:
        found = [replace(source, split="") for source in found]
    if options.splits is not None:
        found = apply_splits(found, options.splits, data)
    if options.subject_pattern:
        found = [replace(source, group=_subject(source, options.subject_pattern)) for source in found]
    for source in found:
        _require_text(source)
    for site in {source.site for source in found}:
        require_site_name(site, f"{data}: the name of a site")
    twice = next((key for key, n in Counter((s.site, s.id) for s in found).items() if n > 1), None)
    if twice is not None:
        files = [str(s.files[0]) for s in found if (s.site, s.id) == twice]
        raise DataError(f"site {twice[0]}: {files[0]} and {files[1]} would both be image {twice[1]!r}; rename one")
    kinds = {source.mask is None for source in found}
    if len(kinds) > 1:
        one = next(source for source in found if source.mask is None)
        raise DataError(f"site {one.site}: {one.files[0]} has no mask, other images have; prepare them apart")
    return layout, sorted(found, key=lambda source: (source.site, source.id))


def choose(found: Sequence[ImageSource], options: Options) -> tuple[list[ImageSource], dict[str, list[Excluded]]]:
    """Choose the images of the sites and classes asked for, and of these the ones that a list of splits has.

    Returns:
        The images, and those that the list lacks, by site.

    Raises:
        ConfigError: an unknown site or class.
        DataError: no image is left, or the list cuts a subject.
    """
    for name, wanted, known in (
        ("--site", options.sites, {source.site for source in found}),
        ("--classes", options.classes, {str(source.label) for source in found}),
    ):
        unknown = [value for value in wanted if value not in known]
        if unknown:
            shown = ", ".join(sorted(known)[:20])
            raise ConfigError(f"{name} {unknown[0]} is none of these: {shown}{', ...' if len(known) > 20 else ''}")
    kept = [
        source
        for source in found
        if (not options.sites or source.site in options.sites)
        and (not options.classes or source.label in options.classes)
    ]
    listed = [source for source in kept if source.split]
    left_out: dict[str, list[Excluded]] = {}
    if listed:
        for source in kept:
            if not source.split:
                left_out.setdefault(source.site, []).append(Excluded(source.id, "not in the list of splits"))
        kept = listed
    if not kept:
        raise DataError("no image is left: --site, --classes and the list of splits have none in common")
    _require_whole_groups(kept)
    return kept, left_out


def _subject(source: ImageSource, pattern: str) -> str:
    try:
        match = re.search(pattern, source.id)
    except re.error as error:
        raise ConfigError(f"--subject-pattern {pattern!r} is no regular expression ({error})") from error
    subject = "" if match is None else (match[1] if match.re.groups else match[0]) or ""
    if not subject:
        raise ConfigError(f"--subject-pattern {pattern!r} fits nothing in {source.id!r} of site {source.site}")
    return subject


def _require_text(source: ImageSource) -> None:
    """Refuse names that no JSON can hold, before an hour of work instead of after."""
    named = (*map(str, source.files), source.label or "", str(source.mask or ""), source.group)
    for name in named:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"site {source.site}: the name {ascii(name)} is not in UTF-8; rename it") from None


def _require_whole_groups(kept: Sequence[ImageSource]) -> None:
    given: dict[tuple[str, str], ImageSource] = {}
    for source in kept:
        first = given.setdefault((source.site, source.group or source.id), source)
        if first.split != source.split:
            raise DataError(
                f"site {source.site}: subject {source.group or source.id!r} is in {first.split} with {first.id} and in "
                f"{source.split} with {source.id}; no split may cut a subject: correct the list, or --splits none"
            )
