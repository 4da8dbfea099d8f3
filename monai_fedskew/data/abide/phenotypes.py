"""Read ABIDE's phenotypic table: who was scanned where, with which diagnosis, and who passed the checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from monai_fedskew.errors import ConfigError, DataError

__all__ = ["LABEL_NAMES", "PROTOCOLS", "Person", "find_table", "pick_sites", "read_table"]

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
        DataError: a needed column is missing or a subject appears twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as tmp:
        ...     path = Path(tmp) / "pheno.csv"
        ...     _ = path.write_text("SUB_ID,FILE_ID,SITE_ID,DX_GROUP\\n1,A_0000001,A,1\\n2,A_0000002,A,2\\n")
        ...     [(person.id, person.label) for person in read_table(path, quality_checked=False)]
        [('0000001', 1), ('0000002', 0)]
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: no readable CSV table ({error})") from error
    needed = (*_NEEDED, *(_PASSED if quality_checked else ()))
    missing = [name for name in needed if name not in table.columns]
    if missing:
        hint = "; --all-subjects goes without the quality check" if missing[0] in _PASSED else ""
        raise DataError(f"{path}: column {', '.join(missing)} is missing (it has {len(table.columns)}){hint}")
    columns = [table[name].tolist() for name in needed]
    rows = [dict(zip(needed, values, strict=True)) for values in zip(*columns, strict=True)]
    people = sorted((_person(row, quality_checked) for row in rows), key=lambda person: person.id)
    for first, second in zip(people, people[1:], strict=False):
        if first.id == second.id:
            raise DataError(f"{path}: subject {first.id} (SUB_ID) appears more than once")
    return tuple(people)


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
        ConfigError: an unknown protocol or site, or a protocol with `merge`.

    Example:
        >>> pick_sites({"UM_1", "UM_2", "USM"}, (), None, merge=True) == {"UM": {"UM_1", "UM_2"}, "USM": {"USM"}}
        True
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {protocol!r} is unknown; there is {', '.join(PROTOCOLS)}")
    if protocol is not None and merge:
        raise ConfigError(f"protocol {protocol} names its samples itself: it cannot go with merged samples")
    if protocol is not None:
        sites = {site: {sample} for site, sample in PROTOCOLS[protocol].items()}
        absent = sorted(set(PROTOCOLS[protocol].values()) - samples)
        if absent:
            known = ", ".join(sorted(samples))
            raise ConfigError(f"protocol {protocol} needs the samples {', '.join(absent)}; the table has {known}")
    else:
        sites = {}
        for sample in samples:
            sites.setdefault(re.sub(r"_\d+$", "", sample) if merge else sample, set()).add(sample)
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


def _person(row: Mapping[str, str], quality_checked: bool) -> Person:
    number, diagnosis = row["SUB_ID"].strip(), row["DX_GROUP"].strip()
    label, problem = _DIAGNOSES.get(diagnosis), ""
    if row["FILE_ID"].strip() in ("", "no_filename"):
        problem = "no FILE_ID: the scan was not processed"
    elif quality_checked:
        failed = [name for name, passed in _PASSED.items() if row[name].strip() not in passed]
        problem = "quality check: " + ", ".join(f"{name} is {row[name]!r}" for name in failed) if failed else ""
    if not problem and label is None:
        problem = f"DX_GROUP is {diagnosis!r}; must be 1 (autism) or 2 (control)"
    identity = f"{int(number):07d}" if number.isdigit() else number
    return Person(identity, row["FILE_ID"].strip(), row["SITE_ID"].strip(), label, problem)
