"""Seeded sites with feature skew, for the demo and the tests: no file of a real person is needed.

Two forms of the same idea, a label effect that every site shares on top of a shift that each has for itself:
`write_synthetic_study` writes prepared folders at once, `write_synthetic_abide` a small ABIDE tree for ``prepare``.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from monai_fedskew.data.manifest import Region, SiteManifest, Subject, require_site_name, write_manifest
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["SITES", "Scanner", "write_synthetic_abide", "write_synthetic_study"]


@dataclass(frozen=True)
class Scanner:
    """How one synthetic hospital measures.

    Args:
        site: its name, also in file names.
        volumes: length of a scan.
        coupling: baseline coupling of the two networks in which the label shows, 0 .. 1: the skew along the label.
        common: strength of a signal shared by all regions, 0 .. 1: raises every correlation.
        noise: standard deviation of the noise of a region: lowers every correlation.
    """

    site: str
    volumes: int
    coupling: float
    common: float
    noise: float


SITES = (
    Scanner("NORTH", 90, 0.1, 0.1, 1.0),
    Scanner("SOUTH", 60, 0.3, 0.3, 0.7),
    Scanner("EAST", 80, 0.5, 0.2, 1.4),
    Scanner("WEST", 70, 0.7, 0.4, 0.5),
)
_EFFECT = 0.5  # coupling that the label adds
_SPREAD = 0.05  # between subjects
_NETWORKS = 6
_UNLABELLED = "3455"  # the 111th column of the Harvard-Oxford files, which no atlas names


def write_synthetic_study(
    out: str | Path, *, sites: Sequence[str] = ("NORTH", "SOUTH", "EAST", "WEST"), subjects: int = 20,
    windows: int = 6, n_regions: int = 12, seed: int = 0,
) -> Path:  # fmt: skip
    """Write prepared folders in the data contract, without any scan behind them.

    Site k adds an offset and a gain of its own to every edge; label 1 moves a fixed quarter of the edges; rows of a
    subject share the subject's own deviation, so that a split by window would leak.

    Args:
        out: folder that receives one folder a site.
        sites: names of the sites.
        subjects: subjects a site, half of them with label 1; at least 2.
        windows: rows a subject.
        n_regions: regions; n (n - 1) / 2 edges.
        seed: of all numbers.

    Returns:
        The folder.

    Raises:
        ConfigError: a size is too small.
        DataError: a site's folder exists, or a name cannot be a site's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sorted(p.name for p in write_synthetic_study(folder, sites=("EAST", "WEST")).iterdir())
        ['EAST', 'WEST']
    """
    if subjects < 2 or windows < 1 or n_regions < 2:
        raise ConfigError(
            f"synthetic study: subjects={subjects}, windows={windows}, n_regions={n_regions}; at least 2, 1 and 2"
        )
    n_edges = n_regions * (n_regions - 1) // 2
    effect = np.random.default_rng(seed).choice((0.0, 0.0, 0.0, 0.4), n_edges)
    regions = tuple(Region(f"{k + 1}") for k in range(n_regions))
    for position, site in enumerate([require_site_name(site, "synthetic study: a site's name") for site in sites]):
        rng = np.random.default_rng([seed, position])
        offset, gain = rng.normal(0.0, 0.5, n_edges) + position * effect, 1.0 + 0.5 * position
        labels = np.arange(subjects) % 2
        own = rng.normal(0.0, 0.1, (subjects, 1, n_edges)) + labels[:, None, None] * effect
        rows = offset + gain * (own + rng.normal(0.0, 0.2, (subjects, windows, n_edges)))
        first = position * subjects + 1
        people = tuple(
            Subject(f"{first + k:07d}", int(labels[k]), k * windows, (k + 1) * windows) for k in range(subjects)
        )
        _write_site(Path(out) / site, rows.reshape(-1, n_edges).astype(np.float32), people, regions)
    return Path(out)


def write_synthetic_abide(
    folder: str | Path, *, scanners: Sequence[Scanner] = SITES, subjects: int = 24, seed: int = 0
) -> Path:
    """Write a small tree in the layout that nilearn's ABIDE fetcher leaves behind.

    ``folder/ABIDE_pcp/cpac/filt_noglobal/<FILE_ID>_rois_ho.1D`` with the 111 Harvard-Oxford columns, and the
    phenotypic table with what the real one is known for: quoted commas, -9999, blanks, a row without a file, a rater
    who rejects. The last site also has one subject with a dead region and one with a scan of 20 volumes. Two networks
    are coupled more in subjects with autism, and by a baseline that differs between the sites.

    Args:
        folder: receives the tree; made if need be.
        scanners: the sites.
        subjects: usable subjects a site, half of each group.
        seed: of all numbers.

    Returns:
        The folder, to be given to ``fedskew abide prepare``.

    Raises:
        ConfigError: fewer than 2 subjects.
        DataError: the tree exists, or a name cannot be a site's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tree = write_synthetic_abide(folder, scanners=SITES[:1], subjects=2)
        ...     sorted(p.name for p in tree.rglob("*.1D"))[:2]
        ['NORTH_0000001_rois_ho.1D', 'NORTH_0000002_rois_ho.1D']
    """
    if subjects < 2:
        raise ConfigError(f"synthetic ABIDE: {subjects} subjects a site; at least 2 are needed, one of each group")
    for scanner in scanners:
        require_site_name(scanner.site, "synthetic ABIDE: a site's name")
    root = Path(folder) / "ABIDE_pcp"
    if root.exists():
        raise DataError(f"{root.absolute()} exists; give a new folder")
    series = root / "cpac" / "filt_noglobal"
    series.mkdir(parents=True)
    labels = _harvard_oxford()
    loadings = _loadings(np.random.default_rng(seed), len(labels))
    dead_column = np.array([name == _UNLABELLED for name in labels])
    rows: list[dict[str, str]] = []
    for position, scanner in enumerate(scanners):
        rng = np.random.default_rng([seed, position])
        for k, kind in enumerate(_kinds(subjects, is_last=position == len(scanners) - 1)):
            row = _phenotype(rng, scanner.site, number=len(rows) + 1, autism=k % 2 == 0, kind=kind)
            rows.append(row)
            if kind == "no file":
                continue
            values = _series(rng, scanner, loadings, autism=k % 2 == 0)
            values[:, dead_column] *= rng.random() < 0.7
            if kind == "dead":
                values[:, 50] = 0.0
            _write_1d(series / f"{row['FILE_ID']}_rois_ho.1D", labels, values[:20] if kind == "short" else values)
    _write_table(root / "Phenotypic_V1_0b_preprocessed1.csv", rows)
    return Path(folder)


def _write_site(
    folder: Path, rows: NDArray[np.float32], people: tuple[Subject, ...], regions: tuple[Region, ...]
) -> None:
    if folder.exists():
        raise DataError(f"{folder.absolute()} exists; give a new folder")
    folder.mkdir(parents=True)
    np.save(folder / "vectors.npy", rows)
    manifest = SiteManifest(
        site=folder.name,
        label_names=("control", "autism"),
        kind="edges",
        regions=regions,
        features=(),
        subjects=people,
        estimator="synthetic",
        summary={"mean": float(rows.mean()), "std": float(rows.std()), "windows": float(len(rows))},
        notes={"origin": "synthetic"},
    )
    write_manifest(folder, manifest)


def _harvard_oxford() -> list[str]:
    below = [10, 11, 12, 13, 17, 18, 26, 49, 50, 51, 52, 53, 54, 58]
    cortex = [100 * k + side for k in range(1, 49) for side in (1, 2)]
    return [str(label) for label in [*below, *sorted([*cortex, int(_UNLABELLED)])]]


def _kinds(subjects: int, *, is_last: bool) -> Iterator[str]:
    yield from ["usable"] * subjects
    yield from ["no file", "rejected"]
    if is_last:
        yield from ["dead", "short"]


def _loadings(rng: Generator, n_regions: int) -> NDArray[np.float64]:
    """Each region listens to one network: shape (networks, regions)."""
    networks = np.arange(n_regions) % _NETWORKS
    loadings: NDArray[np.float64] = np.eye(_NETWORKS)[networks].T * rng.uniform(0.7, 1.0, n_regions)
    return loadings


def _series(rng: Generator, scanner: Scanner, loadings: NDArray[np.float64], *, autism: bool) -> NDArray[np.float64]:
    """Make one scan, shape (volumes, regions): network 0 and 1 share a signal of the size ``coupling``."""
    coupling = np.clip(scanner.coupling + _EFFECT * autism + rng.normal(0.0, _SPREAD), 0.0, None)
    networks = rng.normal(size=(scanner.volumes, len(loadings)))
    shared = rng.normal(size=(scanner.volumes, 1))
    networks[:, :2] += coupling * shared
    common = scanner.common * rng.normal(size=(scanner.volumes, 1))
    noise = scanner.noise * rng.normal(size=(scanner.volumes, loadings.shape[1]))
    values: NDArray[np.float64] = 10.0 * (networks @ loadings + common + noise)
    return values


def _phenotype(rng: Generator, site: str, *, number: int, autism: bool, kind: str) -> dict[str, str]:
    """Make one row of the phenotypic table; a blank and -9999 both stand for a missing value there."""
    subject = f"{number:07d}"
    row = {
        "": str(number), "Unnamed: 0": str(number), "SUB_ID": str(number), "X": str(number), "subject": str(number),
        "SITE_ID": site,
        "FILE_ID": "no_filename" if kind == "no file" else f"{site}_{subject}",
        "DX_GROUP": "1" if autism else "2",
        "DSM_IV_TR": "1" if autism else "-9999",
        "AGE_AT_SCAN": f"{rng.uniform(8, 40):.2f}",
        "SEX": "1" if rng.random() < 0.8 else "2",
        "FIQ": "-9999" if rng.random() < 0.2 else str(int(rng.normal(108, 14))),
        "MEDICATION_NAME": "drug one, drug two" if rng.random() < 0.3 else "",
        "func_mean_fd": f"{rng.uniform(0.03, 0.2):.6f}",
    }  # fmt: skip
    raters = ("qc_rater_1", "qc_anat_rater_2", "qc_func_rater_2", "qc_anat_rater_3", "qc_func_rater_3")
    row |= dict.fromkeys(raters, "OK")
    row["qc_func_rater_2"] = "maybe" if rng.random() < 0.2 else "OK"
    if kind == "rejected":
        row["qc_rater_1"] = "fail"
    return row


def _write_1d(path: Path, labels: Sequence[str], values: NDArray[np.float64]) -> None:
    header = "\t".join(f"#{label}" for label in labels)
    np.savetxt(path, values, fmt="%.6f", delimiter="\t", header=header, comments="")


def _write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
