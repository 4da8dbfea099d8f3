import json

import pytest

from monai_fedskew.errors import DataError
from monai_fedskew.transforms import SiteStatistics, read_statistics, read_table, write_statistics


def written(folder, *sites):
    """One file a site."""
    files = [folder / f"{s.site}.json" for s in sites]
    for file, site in zip(files, sites, strict=True):
        write_statistics(file, site)
    return files


def one(site, *, std_mode="image", ddof=1, channels=1, region="all"):
    """Statistics of a site."""
    return SiteStatistics(site, (0.1,) * channels, (1 / 3,) * channels, std_mode, ddof, 10, region)


def test_file_gives_back_every_bit(tmp_path) -> None:
    """JSON keeps float64 exactly, and mode and ddof."""
    (file,) = written(tmp_path, one("A", region="nonzero"))

    assert read_statistics(file) == one("A", region="nonzero")
    assert json.loads(file.read_text())["std_mode"] == "image"


def test_file_of_an_older_version_is_read(tmp_path) -> None:
    """It says nothing of a region: all values were measured."""
    (file,) = written(tmp_path, one("A"))
    file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "region"}))

    assert read_statistics(file) == one("A")


def test_table_is_sorted_by_site(tmp_path) -> None:
    """Whatever the order of the files."""
    assert list(read_table(written(tmp_path, one("B"), one("A")), own="A")) == ["A", "B"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            one("B", std_mode="pooled"),
            "sites A and B were measured differently: std 'image' with ddof=1 against 'pooled'",
        ),
        (one("B", ddof=0), "sites A and B were measured differently: .* ddof=0"),
        (one("B", region="mask"), "sites A and B were measured differently: region 'all' against 'mask'"),
        (one("C", channels=3), "site C has statistics of 3 channels, site A of 1"),
    ],
)
def test_sites_that_do_not_compare_are_refused(other, message, tmp_path) -> None:
    """Cases 15 and 18: a ValueError naming both sites."""
    with pytest.raises(ValueError, match=message):
        read_table(written(tmp_path, one("A"), other), own="A")


def test_unknown_own_site_is_refused(tmp_path) -> None:
    """Case 18: the known ones are listed."""
    with pytest.raises(ValueError, match="site 'Z' has no statistics; known sites: A, B"):
        read_table(written(tmp_path, one("A"), one("B")), own="Z")


def test_site_given_twice_is_refused(tmp_path) -> None:
    """Two files of one site."""
    (file,) = written(tmp_path, one("A"))

    with pytest.raises(DataError, match=r"A\.json: site A is given twice"):
        read_table([file, file], own="A")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std_mode": "robust"}, "std_mode='robust' must be one of image, pooled"),
        ({"ddof": 3}, "ddof=3 0 or 1"),
        ({"std": [1, 2]}, "1 and 2 numbers"),
        ({"region": "brain"}, "region='brain' one of all, nonzero, mask"),
        ({"std": [float("nan")]}, "a mean or std is not finite"),
        ({"std": [-1.0]}, "or a std is negative"),
        ({"mean": "12", "std": "11"}, "'12' where a list of numbers is expected"),
        ({"mean": [True]}, "where a list of numbers is expected"),
        ({"mean": [10**400]}, "too large to convert to float"),
        ({"samples": 2.7}, "2.7 where a whole number is expected"),
        ({"samples": 0}, "samples=0 1 or more"),
        ({"mean": [], "std": []}, "0 and 0 numbers"),
        ({"site": None}, "a site named None"),
    ],
)
def test_hand_edited_file_is_refused(change, message, tmp_path) -> None:
    """The file and the value are named."""
    (file,) = written(tmp_path, one("A"))
    file.write_text(json.dumps(json.loads(file.read_text()) | change))

    with pytest.raises(DataError, match=rf"A\.json.*{message}"):
        read_statistics(file)


def test_broken_files_are_refused(tmp_path) -> None:
    """Absent, no JSON, a key missing."""
    file = tmp_path / "A.json"
    with pytest.raises(DataError, match=r"A\.json: cannot be read"):
        read_statistics(file)
    for text in ("{", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(DataError, match=r"A\.json: .*write the file with write_statistics"):
            read_statistics(file)
    file.write_text('{"site": "A"}')
    with pytest.raises(DataError, match=r"A\.json: key 'mean' is missing"):
        read_statistics(file)
