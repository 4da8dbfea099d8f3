"""What somebody should look at: copies, classes that a site lacks, files that were left alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_fedskew.data.imaging.found import stem
from monai_fedskew.data.imaging.source import ImageSource
from monai_fedskew.data.imaging.write import Written
from monai_fedskew.data.manifest import Excluded, SiteManifest

__all__ = ["ignored_files", "warnings_of"]


def warnings_of(
    written: Sequence[Written], manifests: Sequence[SiteManifest], left_out: Mapping[str, Sequence[Excluded]]
) -> tuple[str, ...]:
    """Say what somebody should look at, a sentence each.

    Args:
        written: the sites' images.
        manifests: the sites, in the same order.
        left_out: images that a list of splits lacks, by site.
    """
    found = [text for one in written for text in (*one.warnings, *_copies(one.site, written))]
    empty = [one for one in written if one.highest and not max(one.highest.values())]
    found += [f"site {one.site}: all {len(one.highest)} masks are empty, 0 everywhere" for one in empty]
    for manifest in manifests:
        absent = sorted(set(range(len(manifest.label_names))) - {subject.label for subject in manifest.subjects})
        if absent and not any(subject.mask for subject in manifest.subjects):
            names = ", ".join(manifest.label_names[label] for label in absent[:5])
            found.append(f"site {manifest.site}: no image of {names}{', ...' if len(absent) > 5 else ''}")
    sites = {manifest.site for manifest in manifests}
    found += [f"site {site}: no image is in the list of splits" for site in left_out if site not in sites]
    return tuple(found)


def ignored_files(data: Path, found: Sequence[ImageSource]) -> dict[str, int]:
    """Count the files below a folder that belong to no image, by ending."""
    used = {path for source in found for path in (*source.files, *([source.mask] if source.mask else []))}
    inside = (path for path in data.rglob("*") if path.is_file() and not path.name.startswith("."))
    loose = (path.name for path in inside if path not in used and path.parent not in used)
    endings = Counter(name.removeprefix(stem(Path(name))) or Path(name).suffix or "without ending" for name in loose)
    return dict(endings.most_common())


def _copies(site: str, written: Sequence[Written]) -> list[str]:
    """Say which images of a site are copies of images before them, here or at another site."""
    first: dict[str, tuple[str, str, str]] = {}
    copies: list[str] = []
    apart = 0
    for one in written:
        for subject in one.subjects:
            here = (one.site, subject.id, subject.split)
            other = first.setdefault(one.digests[subject.id], here)
            if other != here and one.site == site:
                copies.append(f"{here[1]} = {other[1] if other[0] == site else ' '.join(other[:2])}")
                apart += (other[0], other[2]) != (site, subject.split)
    if not copies:
        return []
    shown = ", ".join(copies[:3]) + (", ..." if len(copies) > 3 else "")
    across = f", {apart} of them across splits or sites" if apart else ""
    return [f"site {site}: {len(copies)} images are copies of others, byte for byte{across}: {shown}"]
