"""Fetch ABIDE's preprocessed ROI series through nilearn, one scan at a time, and check every file.

What is there already stays, so that a broken run is taken up where it stopped. nilearn keeps a broken transfer as a
`.part` file and goes on with it; a file that arrived damaged, or was damaged later, is removed and fetched again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from monai_fedskew.data.abide.atlas import STRAY_LABEL, harvard_oxford
from monai_fedskew.data.abide.phenotypes import Person, check_choice, pick_sites, read_table
from monai_fedskew.data.abide.scans import usual_volumes
from monai_fedskew.data.abide.timeseries import count_volumes, read_series
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Fetched", "fetch"]

_TABLE = Path("ABIDE_pcp", "Phenotypic_V1_0b_preprocessed1.csv")
_SERIES = Path("ABIDE_pcp", "cpac", "filt_noglobal")
_AGAIN = "run the same command again to go on from there"
_log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Fetched:
    """What is there now.

    Args:
        folder: where it is.
        files: series in all.
        new: those fetched by this call.
        repaired: FILE_IDs fetched again because the file was damaged.
        shorter: (site, file, volumes, usual volumes) of files that have fewer volumes than is usual at their site.
    """

    folder: Path
    files: int
    new: int
    repaired: tuple[str, ...]
    shorter: tuple[tuple[str, str, int, int], ...]


def fetch(
    data: Path,
    *,
    sites: tuple[str, ...] = (),
    protocol: str | None = None,
    quality_checked: bool = True,
    url: str | None = None,
    progress: Progress = lambda done, total, name: None,
) -> Fetched:
    """Fetch the phenotypic table and the Harvard-Oxford series (C-PAC, band-passed, no global signal regression).

    Args:
        data: folder to fetch into, in nilearn's layout.
        sites: values of SITE_ID, e.g. NYU or UM_1; empty for all.
        protocol: `fedbn` for the four samples of that paper, or None.
        quality_checked: whether to take only scans that passed the raters' checks.
        url: another server with the layout of the original one.
        progress: called with the number of files done, of all, and the newest name.

    Raises:
        ConfigError: an unknown site or protocol, or no URL; found before anything is fetched where possible.
        DataError: a transfer failed or broke off, or a file arrived damaged. Names the file; nothing damaged stays.

    Example:
        >>> fetch(Path("abide"), sites=("NYU",))  # doctest: +SKIP
    """
    data = Path(data)
    check_choice(sites, protocol, merge=False)
    _check_url(url)
    people = _fetch_table(data, url, quality_checked)
    chosen = pick_sites({person.sample for person in people}, sites, protocol, merge=False)
    samples = set().union(*chosen.values())
    wanted = [person for person in people if person.sample in samples and _is_scan(person)]
    if not wanted:
        raise DataError(f"{data / _TABLE}: no scan for {', '.join(chosen)}; name other sites or try --all-subjects")
    new, repaired = 0, []
    for done, person in enumerate(wanted):
        path = data / _SERIES / f"{person.file_id}_rois_ho.1D"
        progress(done, len(wanted), person.file_id)
        if path.exists() and not _is_whole(path):
            path.unlink()
            repaired.append(person.file_id)
        if not path.exists():
            _fetch_series(data, person, path, url, f"{done} of {len(wanted)} scans are there; {_AGAIN}")
            new += 1
    progress(len(wanted), len(wanted), "")
    return Fetched(data, len(wanted), new, tuple(repaired), _shorter(data, wanted))


def _check_url(url: str | None) -> None:
    if url is None:
        return
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        is_url = False
    if not is_url or not url.isprintable() or " " in url:
        raise ConfigError(f"url={url!r} is no address of a server; give one such as https://example.org/abide")


def _is_scan(person: Person) -> bool:
    return not person.problem or person.problem.startswith("DX_GROUP")


def _fetch_table(data: Path, url: str | None, quality_checked: bool) -> tuple[Person, ...]:
    path = data / _TABLE
    is_old = path.exists()
    try:
        _call_nilearn(data, path, url, None, f"nothing was fetched; {_AGAIN}")
        return read_table(path, quality_checked=quality_checked)
    except DataError as error:
        if is_old or not path.exists():
            raise
        path.unlink()
        raise DataError(f"{error}; the file was removed; {_AGAIN}") from error


def _fetch_series(data: Path, person: Person, path: Path, url: str | None, state: str) -> None:
    if not (person.id.isascii() and person.id.isdecimal()):
        raise DataError(f"{data / _TABLE}: SUB_ID {person.id!r} is no number, so its scan cannot be fetched")
    try:
        _call_nilearn(data, path, url, int(person.id), state)
        read_series(path, [region.label for region in harvard_oxford()], optional=(STRAY_LABEL,))
    except DataError as error:
        if not path.exists():
            raise
        path.unlink()
        raise DataError(f"{error}; the file was removed; {state}") from error


def _call_nilearn(data: Path, path: Path, url: str | None, subject: int | None, state: str) -> None:
    """Let nilearn fetch the table (`subject` None) or one subject's series, and turn its errors into ours."""
    import requests
    from nilearn.datasets import fetch_abide_pcp

    one = {} if subject is None else {"SUB_ID": [subject]}
    try:
        fetch_abide_pcp(
            data_dir=str(data),
            n_subjects=0 if subject is None else None,
            pipeline="cpac",
            band_pass_filtering=True,
            global_signal_regression=False,
            derivatives=["rois_ho"],
            quality_checked=False,
            url=url,
            verbose=0,
            **one,
        )
    except requests.RequestException as error:
        raise DataError(f"{path.name}: the transfer failed ({_one_line(error)}); {state}") from error
    except (ValueError, KeyError, OSError) as error:
        # nilearn reads what it fetched: a damaged file fails there
        raise DataError(f"{path}: damaged or not written ({_one_line(error)})") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_whole(path: Path) -> bool:
    try:
        read_series(path, [region.label for region in harvard_oxford()], optional=(STRAY_LABEL,))
    except DataError as error:
        _log.warning("%s; fetched again", error)
        return False
    return True


def _shorter(data: Path, people: list[Person]) -> tuple[tuple[str, str, int, int], ...]:
    found = []
    for sample in sorted({person.sample for person in people}):
        paths = [data / _SERIES / f"{person.file_id}_rois_ho.1D" for person in people if person.sample == sample]
        usual = usual_volumes(paths)
        counts = {path.name: count_volumes(path) for path in paths}
        found += [(sample, name, count, usual) for name, count in counts.items() if count < usual]
    return tuple(found)
