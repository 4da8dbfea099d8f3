from pathlib import Path

import pytest

from monai_fedskew.data.abide.phenotypes import LABEL_NAMES, find_table, pick_sites, read_table
from monai_fedskew.errors import ConfigError, DataError

HEAD = "SUB_ID,FILE_ID,SITE_ID,DX_GROUP\n"
SAMPLES = {"UM_1", "UM_2", "UCLA_1", "UCLA_2", "LEUVEN_1", "LEUVEN_2", "USM", "NYU"}


def table(folder: Path, text: str) -> Path:
    """Write a phenotypic table."""
    path = folder / "pheno.csv"
    path.write_text(text)
    return path


def test_autism_is_one_and_control_is_zero(tmp_path: Path) -> None:
    """Case 29: DX_GROUP 1 -> 1, 2 -> 0; 0, blank and -9999 are left out with the value; never label 2."""
    rows = "".join(f"{k},NYU_{k:07d},NYU,{dx}\n" for k, dx in enumerate(["1", "2", "1", "0", "", "-9999"], start=1))
    people = read_table(table(tmp_path, HEAD + rows), quality_checked=False)
    assert [person.label for person in people] == [1, 0, 1, None, None, None]
    for person, value in zip(people[3:], ["'0'", "''", "'-9999'"], strict=True):
        assert person.problem == f"DX_GROUP is {value}; must be 1 (autism) or 2 (control)"
    assert LABEL_NAMES == ("control", "autism")
    assert people[0].id == "0000001"


def test_quoted_commas_and_quality_checks(tmp_path: Path) -> None:
    """A comma in quotes shifts no column; a failed check is named with its value; no_filename comes first."""
    quality = "qc_rater_1,qc_anat_rater_2,qc_func_rater_2,qc_anat_rater_3,qc_func_rater_3"
    text = f",SUB_ID,FILE_ID,SITE_ID,DX_GROUP,MEDICATION,{quality}\n"
    text += '0,1,A_0000001,A,1,"one, two, three",OK,maybe,OK,OK,OK\n'
    text += "1,2,A_0000002,A,2,,OK,fail,OK,OK,maybe\n2,3,no_filename,A,2,,OK,OK,OK,OK,OK\n"
    path = table(tmp_path, text)
    assert [person.problem for person in read_table(path)] == [
        "",
        "quality check: qc_anat_rater_2 is 'fail', qc_func_rater_3 is 'maybe'",
        "no FILE_ID: the scan was not processed",
    ]
    assert [bool(person.problem) for person in read_table(path, quality_checked=False)] == [False, False, True]


def test_a_table_that_lacks_columns_is_refused(tmp_path: Path) -> None:
    """DX_GROUP missing, quality columns missing, a subject twice, no table: one error each."""
    path = table(tmp_path, "SUB_ID,FILE_ID,SITE_ID\n1,A_0000001,A\n")
    with pytest.raises(
        DataError, match=r"pheno.csv: column DX_GROUP is missing \(it has 3: SUB_.*; add it .* 1 is aut"
    ):
        read_table(path, quality_checked=False)
    path = table(tmp_path, HEAD + "1,A_0000001,A,1\n")
    with pytest.raises(DataError, match="column qc_rater_1, .* --all-subjects goes without"):
        read_table(path)
    with pytest.raises(DataError, match="subject 0000001 .* more than once"):
        read_table(table(tmp_path, HEAD + "1,A_0000001,A,1\n0001,A_0000001,A,1\n"), quality_checked=False)
    with pytest.raises(DataError, match="no readable CSV"):
        read_table(table(tmp_path, ""), quality_checked=False)


def test_names_of_sites_are_checked_in_the_table(tmp_path: Path) -> None:
    """A SITE_ID that would write elsewhere or be evaluated is refused with its line, whatever else the row holds."""
    for name in ("../evil", "$__import__('os').getpid()", "", ".hidden", "a::b", '"a\nb"', "prepare.json"):
        path = table(tmp_path, HEAD + f"1,A_0000001,A,1\n2,no_filename,{name},2\n")
        with pytest.raises(DataError, match=r"pheno.csv, line [34]: SITE_ID is .*; rename the site"):
            read_table(path, quality_checked=False)
    with pytest.raises(DataError, match="sample '_1': its site's name is '': a site must have a name"):
        pick_sites({"_1"}, (), None, merge=True)


def test_a_scan_belongs_to_one_row(tmp_path: Path) -> None:
    """A FILE_ID in two rows, of one site or of two, would put the same windows on both sides of a split."""
    for site in ("A", "B"):
        path = table(tmp_path, HEAD + f"1,A_0000001,A,1\n2,A_0000001,{site},2\n3,no_filename,A,1\n4,no_filename,A,1\n")
        message = rf"FILE_ID A_0000001 .* two subjects, 0000001 \(site A\) and 0000002 \(site {site}\)"
        with pytest.raises(DataError, match=message):
            read_table(path, quality_checked=False)


def test_ids_are_checked(tmp_path: Path) -> None:
    """An empty SUB_ID or a FILE_ID with a folder is an error with its line; digits of other scripts are no numbers."""
    for text, message in (
        (",A_0000001,A,1", "line 2: SUB_ID is ''"),
        ("1,../A_0000001,A,1", "line 2: FILE_ID is '../A_0000001'; it must be the name of a file"),
        ("1,a\\b,A,1", "line 2: FILE_ID is"),
    ):
        with pytest.raises(DataError, match=message):
            read_table(table(tmp_path, HEAD + text + "\n"), quality_checked=False)
    people = read_table(table(tmp_path, HEAD + "²,A_1,A,1\n٣,A_2,A,1\n12,A_3,A,1\n"), quality_checked=False)
    assert {person.id for person in people} == {"²", "٣", "0000012"}


def test_a_table_that_is_no_clean_csv_is_refused(tmp_path: Path) -> None:
    """A column twice, a row too short or too long, and another encoding are named; a byte order mark is none."""
    for text, message in (
        (HEAD.strip() + ",DX_GROUP\n1,A_1,A,1,2\n", "line 1: column DX_GROUP is there 2 times; keep one"),
        (HEAD + "1,A_1,A,1\n2,A_2\n", "line 3: 2 cells where the header has 4"),
        (HEAD + "1,A_1,A,1,2\n", "line 2: 5 cells where the header has 4"),
        ("SUB_ID;FILE_ID;SITE_ID;DX_GROUP\n", "a table needs SUB_ID.* separated by commas"),
    ):
        with pytest.raises(DataError, match=message):
            read_table(table(tmp_path, text), quality_checked=False)
    path = table(tmp_path, "")
    path.write_bytes((HEAD + "1,A_1,K\xf6ln,1\n").encode("latin-1"))
    with pytest.raises(DataError, match="pheno.csv: cannot be read as CSV: byte 0xf6 is not UTF-8; save the table"):
        read_table(path, quality_checked=False)
    path.write_text(HEAD + "1,A_1,Köln,1\n\n", encoding="utf-8-sig")
    assert [person.sample for person in read_table(path, quality_checked=False)] == ["Köln"]


def test_the_table_is_found_by_name(tmp_path: Path) -> None:
    """The topmost *pheno*.csv counts; none or two side by side is an error."""
    with pytest.raises(DataError, match="no phenotypic table"):
        find_table(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "Phenotypic_V1.csv").write_text("")
    (tmp_path / "excluded.csv").write_text("")
    assert find_table(tmp_path).name == "Phenotypic_V1.csv"
    for name in ("pheno_a.csv", "pheno_b.csv"):
        (tmp_path / name).write_text("")
    with pytest.raises(DataError, match="several phenotypic tables .*pheno_a.csv, pheno_b.csv"):
        find_table(tmp_path)


def test_samples_merge_on_request_only() -> None:
    """Case 30: merged, UM_1 and UM_2 are UM and USM stays itself; unmerged there are eight sites."""
    merged = pick_sites(SAMPLES, (), None, merge=True)
    assert merged == {
        "LEUVEN": {"LEUVEN_1", "LEUVEN_2"},
        "NYU": {"NYU"},
        "UCLA": {"UCLA_1", "UCLA_2"},
        "UM": {"UM_1", "UM_2"},
        "USM": {"USM"},
    }
    assert list(pick_sites(SAMPLES, (), None, merge=False)) == sorted(SAMPLES)
    assert pick_sites(SAMPLES, ("UM",), None, merge=True) == {"UM": {"UM_1", "UM_2"}}


def test_the_protocol_takes_the_first_samples() -> None:
    """FedBN's UM is UM_1 and its UCLA is UCLA_1; a part of the four can be asked for."""
    four = pick_sites(SAMPLES, (), "fedbn", merge=False)
    assert four == {"NYU": {"NYU"}, "UCLA": {"UCLA_1"}, "UM": {"UM_1"}, "USM": {"USM"}}
    assert list(pick_sites(SAMPLES, ("UM",), "fedbn", merge=False)) == ["UM"]


def test_unknown_sites_are_refused_with_what_there_is() -> None:
    """Case 30: asking for UM unmerged names UM_1 and UM_2; any other unknown name lists the known ones."""
    with pytest.raises(ConfigError, match="site UM has the samples UM_1 and UM_2: .*--merge-samples"):
        pick_sites(SAMPLES, ("UM",), None, merge=False)
    with pytest.raises(ConfigError, match=r"site 'MIT' is unknown; known: LEUVEN_1, .*USM"):
        pick_sites(SAMPLES, ("MIT",), None, merge=False)
    with pytest.raises(ConfigError, match="protocol 'x' is unknown; there is fedbn"):
        pick_sites(SAMPLES, (), "x", merge=False)
    with pytest.raises(ConfigError, match="cannot go with merged samples"):
        pick_sites(SAMPLES, (), "fedbn", merge=True)
    with pytest.raises(ConfigError, match="needs the samples UCLA_1, UM_1, USM; the table has NYU"):
        pick_sites({"NYU"}, (), "fedbn", merge=False)
    with pytest.raises(ConfigError, match="site NYU is named 2 times; name it once"):
        pick_sites(SAMPLES, ("NYU", "NYU"), None, merge=False)
    with pytest.raises(ConfigError, match="site 'MIT' is unknown; protocol fedbn has NYU, UCLA, UM, USM"):
        pick_sites({"NYU"}, ("MIT",), "fedbn", merge=False)
