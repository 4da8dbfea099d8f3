"""What a prepared folder says about itself: prepare.json, excluded.csv, and the same as tables."""

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fedskew.data.manifest import SiteManifest

__all__ = ["exclusions", "site_table", "write_report"]


def site_table(manifests: Sequence[SiteManifest]) -> list[tuple[str, int, int, int, int, int]]:
    """Return (site, subjects, autism, control, windows, excluded) for each site."""
    return [
        (
            m.site,
            len(m.subjects),
            sum(s.label == 1 for s in m.subjects),
            sum(s.label == 0 for s in m.subjects),
            m.n_rows,
            len(m.excluded),
        )
        for m in manifests
    ]


def exclusions(manifests: Sequence[SiteManifest]) -> list[tuple[str, str, int]]:
    """Return (site, reason, subjects) of what was left out, by kind of reason, the commonest first."""
    rows = []
    for manifest in manifests:
        # one line for all scans without file, whose reasons differ in the FILE_ID only
        kinds = Counter(re.sub(r"^no file for FILE_ID .*", "no file", item.reason) for item in manifest.excluded)
        rows += [(manifest.site, reason, count) for reason, count in kinds.most_common()]
    return rows


def write_report(folder: Path, manifests: Sequence[SiteManifest], call: Mapping[str, object]) -> None:
    """Write prepare.json and excluded.csv.

    Args:
        folder: where to write.
        manifests: the sites.
        call: what was asked for, and by which versions.
    """
    names = ("subjects", "autism", "control", "windows", "excluded")
    sites = {site: dict(zip(names, counts, strict=True)) for site, *counts in site_table(manifests)}
    left_out = {m.site: {item.id: item.reason for item in m.excluded} for m in manifests}
    flagged = {m.site: m.notes["edges set to zero"] for m in manifests if "edges set to zero" in m.notes}
    content = {"schema": 1, **call, "sites": sites, "excluded": left_out, "edges set to zero": flagged}
    (folder / "prepare.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    with (folder / "excluded.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["site", "subject", "reason"])
        writer.writerows([m.site, item.id, item.reason] for m in manifests for item in m.excluded)
