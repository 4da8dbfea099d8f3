"""What a folder of prepared images says about itself: prepare.json, excluded.csv, and the same as tables."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from monai_fedskew.data.manifest import SiteManifest

if TYPE_CHECKING:
    from monai_fedskew.data.imaging.prepare import Prepared

__all__ = ["exclusions", "label_table", "look_table", "write_report"]


def label_table(manifests: Sequence[SiteManifest]) -> list[tuple[str, int, int, int, int, int, int]]:
    """Return (site, images, subjects, train, validation, test, left out) of each site; 0 where no list was given."""
    rows = []
    for manifest in manifests:
        splits = Counter(subject.split for subject in manifest.subjects)
        counts = (splits["train"], splits["validation"], splits["test"])
        rows.append((manifest.site, len(manifest.subjects), manifest.n_groups, *counts, len(manifest.excluded)))
    return rows


def look_table(surveys: Mapping[str, Mapping[str, object]]) -> list[tuple[str, ...]]:
    """Return (site, orientation, spacing, size, channels, mean, std, 1 %, 50 %, 99 %) of each site, as texts."""
    rows = []
    for site, survey in surveys.items():
        percentiles = survey["percentiles"]
        assert isinstance(percentiles, Mapping)
        values = [survey["mean"], survey["std"], *(percentiles[key] for key in ("1", "50", "99"))]
        words = [str(survey[key] or "-") for key in ("orientation", "spacing mm", "size", "channels")]
        rows.append((site, *words, *(f"{value:.4g}" for value in values)))
    return rows


def exclusions(manifests: Sequence[SiteManifest]) -> list[tuple[str, str, int]]:
    """Return (site, reason, images) of what was left out, the commonest reason first."""
    rows = []
    for manifest in manifests:
        rows += [(manifest.site, reason, n) for reason, n in Counter(e.reason for e in manifest.excluded).most_common()]
    return rows


def write_report(folder: Path, prepared: "Prepared", call: Mapping[str, object]) -> None:
    """Write prepare.json and excluded.csv.

    Args:
        folder: where to write.
        prepared: what was made.
        call: what was asked for, and by which versions.
    """
    names = ("images", "subjects", "train", "validation", "test", "excluded")
    sites = {site: dict(zip(names, counts, strict=True)) for site, *counts in label_table(prepared.manifests)}
    content = {
        "schema": 1,
        **call,
        "layout": prepared.layout,
        "label names": list(prepared.manifests[0].label_names),
        "sites": sites,
        "summary": prepared.surveys,
        "warnings": list(prepared.warnings),
        "files left alone": prepared.ignored,
    }
    (folder / "prepare.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with (folder / "excluded.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["site", "image", "reason"])
        writer.writerows([m.site, item.id, item.reason] for m in prepared.manifests for item in m.excluded)
