"""fedskew.json at the server: where runs are kept, and what is wrong with it when something is."""

import json
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.server_file import read_runs_folder


def test_runs_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the working directory, and whether the folder is there yet or not."""
    monkeypatch.chdir("/")
    path = tmp_path / "local" / "fedskew.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"runs": "../runs"}))
    assert read_runs_folder(path) == tmp_path / "runs"
    path.write_text(json.dumps({"runs": str(tmp_path)}))
    assert read_runs_folder(path) == tmp_path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, "runs=None must name the folder"),
        ({"runs": 3}, "runs=3 must name the folder"),
        ({"runs": ""}, "runs='' must name the folder"),
        ({"runs": "fedskew.json"}, "is a file; name a folder"),
    ],
)
def test_what_is_wrong_is_named(content: Any, told: str, tmp_path: Path) -> None:
    """File, key and value, with the command that mends it."""
    path = tmp_path / "fedskew.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"fedskew\.json: .*{told}.* `fedskew nvflare site-setup KIT --runs DIR"):
        read_runs_folder(path)


def test_a_file_that_is_absent_or_no_json_is_refused(tmp_path: Path) -> None:
    """Named, with the command that writes it."""
    path = tmp_path / "fedskew.json"
    with pytest.raises(DataError, match="fedskew.json does not exist; .* site-setup KIT --runs DIR"):
        read_runs_folder(path)
    for text, told in (("{", "cannot be read as JSON"), ("[]", "holds a list, not an object")):
        path.write_text(text)
        with pytest.raises(DataError, match=f"fedskew.json: {told}.* site-setup KIT --runs DIR"):
            read_runs_folder(path)
