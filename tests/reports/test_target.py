import os
from pathlib import Path

import pytest

from monai_fedskew.errors import ConfigError
from monai_fedskew.reports.target import may_write, table_beside, write_whole


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """Folder, link, pipe and device stay what they are, with and without force."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    places = {"a folder": tmp_path / "folder", "a link": tmp_path / "link", "a device or pipe": tmp_path / "pipe"}
    for kind, place in places.items():
        with pytest.raises(ConfigError, match=f"is {kind}, no regular file"):
            may_write(place, is_derived=True, force=True)
    with pytest.raises(ConfigError, match="/dev/null is a device or pipe, no regular file"):
        may_write(Path("/dev/null"), is_derived=False, force=True)


def test_an_existing_file_needs_force_unless_it_is_derived(tmp_path: Path) -> None:
    """A new file needs nothing."""
    mine = tmp_path / "mine.html"
    may_write(mine, is_derived=False)
    mine.write_text("mine")
    may_write(mine, is_derived=True)
    may_write(mine, is_derived=False, force=True)
    with pytest.raises(ConfigError, match="mine.html exists; choose another file .*, or replace it with --force"):
        may_write(mine, is_derived=False)
    with pytest.raises(ConfigError, match="mine.html is no folder"):
        may_write(mine / "below" / "page.html", is_derived=False)


def test_the_default_page_is_known_by_any_path(tmp_path: Path) -> None:
    """DIR/report.html named in another way is still the default page."""
    (tmp_path / "run").mkdir()
    assert (
        table_beside(tmp_path / "run", tmp_path / "run" / ".." / "run" / "report.html")
        == tmp_path / "run" / "table.csv"
    )
    assert table_beside(tmp_path / "run", tmp_path / "report.html") == tmp_path / "report.csv"


def test_writing_leaves_nothing_behind(tmp_path: Path) -> None:
    """The folder is made; a failed write removes its own part."""
    write_whole(tmp_path / "new" / "page.html", "text")
    assert (tmp_path / "new" / "page.html").read_text() == "text"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        write_whole(tmp_path / "folder", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "new"]
