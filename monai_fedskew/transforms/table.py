"""Statistics of sites as files, and the table of several sites."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, cast

from monai_fedskew.core.whole_file import write_whole
from monai_fedskew.errors import DataError
from monai_fedskew.transforms.statistics import REGIONS, STD_MODES, Region, SiteStatistics, StdMode, require_comparable

__all__ = ["as_table", "read_statistics", "read_table", "write_statistics"]


def write_statistics(file: str | Path, statistics: SiteStatistics) -> None:
    """Write statistics as JSON; every number comes back exactly.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "A.json"
    >>> write_statistics(file, SiteStatistics("A", (0.1,), (1.0,), "image", 1, 10))
    >>> read_statistics(file).mean
    (0.1,)
    """
    write_whole(Path(file), json.dumps(asdict(statistics), indent=1) + "\n")


def read_statistics(file: str | Path) -> SiteStatistics:
    """Read what ``write_statistics`` wrote.

    Raises:
        DataError: the file is absent, is not JSON, or lacks a key or holds a wrong value.
    """
    file = Path(file)
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        found = SiteStatistics(
            _text(raw["site"]),
            _numbers(raw["mean"]),
            _numbers(raw["std"]),
            cast(StdMode, raw["std_mode"]),
            _whole(raw["ddof"]),
            _whole(raw["samples"]),
            cast(Region, raw.get("region", "all")),  # files of older versions have none: all values were measured
        )
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a statistics file") from error
    except KeyError as error:
        raise DataError(f"{file}: key {error} is missing; write the file with write_statistics") from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{file}: {error}; write the file with write_statistics") from error
    is_known = found.std_mode in STD_MODES and found.ddof in (0, 1) and found.region in REGIONS
    if not is_known or not found.mean or len(found.mean) != len(found.std) or found.samples < 1:
        raise DataError(
            f"{file}: std_mode={found.std_mode!r} must be one of {', '.join(STD_MODES)}, ddof={found.ddof} 0 or 1, "
            f"region={found.region!r} one of {', '.join(REGIONS)}, and mean and std ({len(found.mean)} and "
            f"{len(found.std)} numbers) of one length, samples={found.samples} 1 or more"
        )
    if not all(map(isfinite, (*found.mean, *found.std))) or min(found.std, default=0) < 0:
        raise DataError(f"{file}: a mean or std is not finite, or a std is negative; measure the site again")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"a site named {value!r}")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} where a whole number is expected")
    return value


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or any(not isinstance(v, int | float) or isinstance(v, bool) for v in values):
        raise TypeError(f"{str(values)[:60]!r} where a list of numbers is expected")
    return tuple(float(value) for value in values)


def read_table(files: Iterable[str | Path], *, own: str) -> Mapping[str, SiteStatistics]:
    """Read the statistics of several sites, sorted by site.

    Args:
        files: one JSON file a site.
        own: the site that will be evaluated with its own pair; it must be among them.

    Raises:
        DataError: sites measured differently (both are named), a site twice, or ``own`` unknown.
    """
    return as_table(files, own=own)


def as_table(
    sites: Iterable[SiteStatistics | str | Path] | Mapping[str, SiteStatistics], *, own: str
) -> Mapping[str, SiteStatistics]:
    """Return the statistics of several sites, given or in files, sorted by site.

    Raises:
        DataError: as ``read_table``.

    >>> a, b = (SiteStatistics(name, (0.0,), (1.0,), "image", 1, 10) for name in "AB")
    >>> list(as_table([b, a], own="A"))
    ['A', 'B']
    """
    table: dict[str, SiteStatistics] = {}
    for given in sites.values() if isinstance(sites, Mapping) else sites:
        found = given if isinstance(given, SiteStatistics) else read_statistics(Path(given))
        if found.site in table:
            where = "statistics" if isinstance(given, SiteStatistics) else given
            raise DataError(f"{where}: site {found.site} is given twice; each site counts once")
        table[found.site] = found
    require_comparable(table.values())
    if own not in table:
        raise DataError(f"site {own!r} has no statistics; known sites: {', '.join(sorted(table)) or 'none'}")
    return dict(sorted(table.items()))
