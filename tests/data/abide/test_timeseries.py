from pathlib import Path

import numpy as np
import pytest

from monai_fedskew.data.abide.timeseries import count_volumes, read_series, write_series
from monai_fedskew.errors import DataError

LABELS = ["10", "11", "101"]


def write(folder: Path, text: str) -> Path:
    """Write a file of series."""
    path = folder / "A_0000001_rois_ho.1D"
    path.write_bytes(text.encode())
    return path


def test_series_come_back_as_written(tmp_path: Path) -> None:
    """Values, labels and number of volumes survive; the hash is of the file."""
    path, values = tmp_path / "x.1D", np.random.default_rng(0).standard_normal((7, 3)).round(6)
    write_series(path, LABELS, values)
    series = read_series(path, LABELS)
    assert series.labels == tuple(LABELS)
    assert (series.values == values).all()
    assert count_volumes(path) == 7
    assert len(series.sha256) == 64


def test_columns_are_found_by_label(tmp_path: Path) -> None:
    """The order of the columns in the file does not matter, and an optional column can be left behind."""
    path = write(tmp_path, "#101\t#3455\t#11\t#10\n1\t2\t3\t4\n5\t6\t7\t8\n")
    series = read_series(path, LABELS, optional=["3455"])
    assert series.columns(LABELS).tolist() == [[4, 3, 1], [8, 7, 5]]


@pytest.mark.parametrize(
    "text",
    ["#10 #11 #101\n1 2 3\n4  5  6\n", "#10\t#11\t#101\r\n1\t2\t3\r\n4\t5\t6\r\n", "# 10 11 101\n1\t2\t3\n4\t5\t6\n"],
)
def test_other_separators_are_read(tmp_path: Path, text: str) -> None:
    """Spaces, Windows line ends and a single # give the same numbers."""
    assert read_series(write(tmp_path, text), LABELS).values.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#10\t#101\n1\t2\n", "line 1: the header lacks label 11 of 3"),
        ("#10\t#11\t#101\t#102\n1\t2\t3\t4\n", "line 1: the header has unexpected label 102"),
        ("#10\t#11\t#101\t#11\n1\t2\t3\t4\n", "line 1: the header has label 11 more than once"),
        ("1\t2\t3\n4\t5\t6\n", "line 1: expected a header of #labels"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t5\n", "line 3: 2 values where the header has 3 labels"),
        ("#10\t#11\t#101\n1\t2\n3\t4\t5\t6\n", "line 2: 2 values where the header has 3 labels"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t5\t6", "line 3: the last line does not end"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t5\tx6\n", "line 3: 'x6' is no number"),
        ("#10\t#11\t#101\n1\t2\t3\n4\tnan\t6\n", "line 3: the value of label 11 is nan"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t1_000\t6\n", "line 3: '1_000' is no number"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t٣\t6\n", "line 3: '٣' is no number"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t0x1\t6\n", "line 3: '0x1' is no number"),
        ("#10\t#11\t#101\n1\t2\t3\n\n4\t1e38\t6\n", r"line 4: the value of label 11 is 1e\+38; sizes up to 1e\+09"),
        ("#10\t#11\t#101\n1\t2\t3\n4\t-1e400\t6\n", "line 3: the value of label 11 is -inf; the file"),
        ("#10\t#11\t#101\n1\t2\t3\n" * 2, "line 3: a # after the header in line 1"),
        ("#10\t#11\t#101\n1\t2\t3 # late\n", "line 2: a # after the header in line 1"),
        ("#10\t#11\t#101\n", "no volume after the header"),
        ("", "line 1: expected a header"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_line(tmp_path: Path, text: str, message: str) -> None:
    """Every fault gives one error that names the file, the line and the fault."""
    with pytest.raises(DataError, match=f"A_0000001_rois_ho.1D.*{message}"):
        read_series(write(tmp_path, text), LABELS)


def test_every_cut_but_between_lines_is_noticed(tmp_path: Path) -> None:
    """A file cut at any byte is refused, unless what is left ends with a whole line."""
    text = "#10\t#11\t#101\n1.25\t2\t3\n4\t-5.5\t6\n"
    for length in range(len(text)):
        path = write(tmp_path, text[:length])
        if text[:length].count("\n") > 1 and text[length - 1] == "\n":
            assert len(read_series(path, LABELS).values) == 1
        else:
            with pytest.raises(DataError, match="A_0000001"):
                read_series(path, LABELS)
