"""Read ABIDE's phenotypic table: who was scanned where, with which diagnosis, and who passed the checks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from monai_fedskew.data.abide.csv_tables import read_csv
from monai_fedskew.data.manifest import require_site_name
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["LABEL_NAMES", "PROTOCOLS", "Person", "check_choice", "find_table", "pick_sites", "read_table"]

LABEL_NAMES = ("control", "autism")
PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    # Li et al. 2021 (FedBN), appendix D.4: the first samples of the four largest sites
    "fedbn": {"NYU": "NYU", "USM": "USM", "UM": "UM_1", "UCLA": "UCLA_1"},
}
_DIAGNOSES = {"1": 1, "2": 0}
_PASSED = {
    "qc_rater_1": {"OK"},
    "qc_anat_rater_2": {"OK", "maybe"},
    "qc_func_rater_2": {"OK", "maybe"},
    "qc_anat_rater_3": {"OK"},
    "qc_func_rater_3": {"OK"},
}
_NO_FILE = ("", "no_filename")
_NEEDED = ("SUB_ID", "FILE_ID", "SITE_ID", "DX_GROUP")


@dataclass(frozen=True)
class Person:
    """A row of the table: `label` is 1 (autism), 0 (control) or None; `problem` says why the row cannot be used."""

    id: str
    file_id: str
    sample: str
    label: int | None
    problem: str = ""


def find_table(folder: Path) -> Path:
    """Find the phenotypic table below a folder by its name, `*pheno*.csv`.

    Raises:
        DataError: there is none, or several at the same depth.
    """
    found = [path for path in folder.rglob("*.csv") if "pheno" in path.name.lower()]
    if not found:
        raise DataError(f"{folder}: no phenotypic table (*pheno*.csv) in it; `fedskew abide fetch` gets one")
    depth = min(len(path.parts) for path in found)
    top = sorted(path for path in found if len(path.parts) == depth)
    if len(top) > 1:
        raise DataError(f"{folder}: several phenotypic tables ({', '.join(p.name for p in top[:5])}); leave one")
    return top[0]


def read_table(path: Path, *, quality_checked: bool = True) -> tuple[Person, ...]:
    """Read the table by a real CSV reader, sorted by subject.

    Args:
        path: the CSV file; needs the columns SUB_ID, FILE_ID, SITE_ID and DX_GROUP.
        quality_checked: whether rows must have passed the raters' checks; needs the five qc columns.

    Raises:
        DataError: a needed column is missing or there twice, a subject or a file appears twice, or a SUB_ID, FILE_ID or
            SITE_ID cannot be one. Names table, line and value.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     path = Path(tmp) / "pheno.csv"
        ...     _ = path.write_text("SUB_ID,FILE_ID,SITE_ID,DX_GROUP\\n1,A_0000001,A,1\\n2,A_0000002,A,2\\n")
        ...     [(person.id, person.label) for person in read_table(path, quality_checked=False)]
        [('0000001', 1), ('0000002', 0)]
    """
    needed = (*_NEEDED, *(_PASSED if quality_checked else ()))
    table = read_csv(path, once=needed, is_complete=True)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise DataError(
            f"{path}: column {', '.join(missing)} is missing (it has {len(table.columns)}: "
            f"{', '.join(table.columns[:8])}{', ...' if len(table.columns) > 8 else ''}); {_missing(missing)}"
        )
    people = sorted((_person(path, line, row, quality_checked) for line, row in table.rows), key=lambda one: one.id)
    for first, second in zip(people, people[1:], strict=False):
        if first.id == second.id:
            raise DataError(f"{path}: subject {first.id} (SUB_ID) appears more than once; keep one row a subject")
    owners: dict[str, Person] = {}
    for person in people:
        other = owners.setdefault(person.file_id, person) if person.file_id not in _NO_FILE else person
        if other is not person:
            raise DataError(
                f"{path}: FILE_ID {person.file_id} stands in the rows of two subjects, {other.id} (site "
                f"{other.sample}) and {person.id} (site {person.sample}); a scan belongs to one: correct the table"
            )
    return tuple(people)


def _missing(columns: Sequence[str]) -> str:
    """Say what to do about columns that are missing."""
    if all(name in _PASSED for name in columns):
        return "--all-subjects goes without the quality check"
    if columns[0] == "DX_GROUP":
        return "add it with the diagnosis: 1 is autism, 2 is control"
    return "a table needs SUB_ID, FILE_ID, SITE_ID and DX_GROUP, separated by commas"


def check_choice(wanted: Sequence[str], protocol: str | None, *, merge: bool) -> None:
    """Refuse what is wrong with a choice of sites whatever the table holds; see `pick_sites`.

    Raises:
        ConfigError: an unknown protocol, a protocol with `merge`, a site that the protocol has not, or one named twice.

    Example:
        >>> check_choice(("NYU", "UM"), "fedbn", merge=False)
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {protocol!r} is unknown; there is {', '.join(PROTOCOLS)}")
    if protocol is not None and merge:
        raise ConfigError(f"protocol {protocol} names its samples itself: it cannot go with merged samples")
    for name in wanted:
        if list(wanted).count(name) > 1:
            raise ConfigError(f"site {name} is named {list(wanted).count(name)} times; name it once")
        if protocol is not None and name not in PROTOCOLS[protocol]:
            known = ", ".join(sorted(PROTOCOLS[protocol]))
            raise ConfigError(f"site {name!r} is unknown; protocol {protocol} has {known}")


def pick_sites(samples: set[str], wanted: tuple[str, ...], protocol: str | None, *, merge: bool) -> dict[str, set[str]]:
    """Decide which samples (values of SITE_ID) make which site.

    Args:
        samples: the samples of the table.
        wanted: names of the sites asked for; empty for all.
        protocol: a key of PROTOCOLS, which names its own sites and samples.
        merge: whether UM_1 and UM_2 and the like become one site UM.

    Returns:
        The samples of each site, sites sorted by name.

    Raises:
        ConfigError: an unknown protocol or site, a site named twice, or a protocol with `merge`.
        DataError: a merged name cannot be a site's.

    Example:
        >>> pick_sites({"UM_1", "UM_2", "USM"}, (), None, merge=True) == {"UM": {"UM_1", "UM_2"}, "USM": {"USM"}}
        True
    """
    check_choice(wanted, protocol, merge=merge)
    if protocol is not None:
        sites = {site: {sample} for site, sample in PROTOCOLS[protocol].items()}
        absent = sorted(set(PROTOCOLS[protocol].values()) - samples)
        if absent:
            known = ", ".join(sorted(samples))
            raise ConfigError(f"protocol {protocol} needs the samples {', '.join(absent)}; the table has {known}")
    else:
        sites = {}
        for sample in samples:
            site = re.sub(r"_\d+$", "", sample) if merge else sample
            sites.setdefault(require_site_name(site, f"sample {sample!r}: its site's name"), set()).add(sample)
    for name in wanted:
        if name not in sites:
            raise ConfigError(_unknown(name, sites, merge))
    return {site: sites[site] for site in sorted(wanted or sites)}


def _unknown(name: str, sites: Mapping[str, set[str]], merge: bool) -> str:
    parts = sorted(site for site in sites if re.fullmatch(re.escape(name) + r"_\d+", site))
    if parts:
        return f"site {name} has the samples {' and '.join(parts)}: name them, or merge them with --merge-samples"
    merged = " (samples are merged)" if merge else ""
    return f"site {name!r} is unknown; known{merged}: {', '.join(sorted(sites))}"


def _person(path: Path, line: int, row: Mapping[str, str], quality_checked: bool) -> Person:
    where = f"{path}, line {line}"
    number, diagnosis, file_id = row["SUB_ID"].strip(), row["DX_GROUP"].strip(), row["FILE_ID"].strip()
    if not number or not number.isprintable():
        raise DataError(f"{where}: SUB_ID is {number!r}; every row needs the number of its subject")
    if file_id in (".", "..") or not file_id.isprintable() or set(file_id) & set("/\\"):
        raise DataError(f"{where}: FILE_ID is {file_id[:60]!r}; it must be the name of a file, without a folder")
    sample = require_site_name(row["SITE_ID"].strip(), f"{where}: SITE_ID")
    label, problem = _DIAGNOSES.get(diagnosis), ""
    if file_id in _NO_FILE:
        problem = "no FILE_ID: the scan was not processed"
    elif quality_checked:
        failed = [name for name, passed in _PASSED.items() if row[name].strip() not in passed]
        problem = "quality check: " + ", ".join(f"{name} is {row[name]!r}" for name in failed) if failed else ""
    if not problem and label is None:
        problem = f"DX_GROUP is {diagnosis!r}; must be 1 (autism) or 2 (control)"
    identity = f"{int(number):07d}" if number.isascii() and number.isdecimal() else number
    return Person(identity, file_id, sample, label, problem)
