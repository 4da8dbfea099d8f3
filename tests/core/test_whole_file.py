"""Files that are there wholly or not at all."""

from pathlib import Path

import pytest

from monai_fedskew.core.whole_file import write_whole


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    """In UTF-8, whatever the machine's own encoding."""
    path = tmp_path / "run.json"
    for text in ("old", "São Paulo"):
        write_whole(path, text)
    assert path.read_bytes() == "São Paulo".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    """A lone surrogate cannot be written as UTF-8."""
    path = tmp_path / "run.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        write_whole(path, "new\udc80")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path, "new")
    assert not tmp_path.with_name(f"{tmp_path.name}.partial").exists()
