"""fedskew.json: what a hospital decides, and what is wrong with it when something is."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monai_fedskew.errors import ConfigError, DataError
from monai_fedskew.sites.locate import find_bundle
from monai_fedskew.sites.site_file import SiteFile, read_site_file, write_site_file


@pytest.fixture
def file(study: Path, tiny_bundle: Path, tmp_path: Path) -> Path:
    """A hospital's folder with its file, its bundle and its data beside it."""
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    shutil.copytree(study / "A", tmp_path / "prepared" / "A")
    path = tmp_path / "fedskew.json"
    path.write_text(json.dumps({"bundle": "bundle", "data": "prepared/A"}))
    return path


def _with(path: Path, **changes: Any) -> Path:
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))
    return path


def test_paths_are_relative_to_the_file(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the working directory; state and results lie beside the file by default."""
    monkeypatch.chdir("/")
    held = read_site_file(file, "A")
    assert held == SiteFile(
        "A", tmp_path / "bundle", tmp_path / "prepared" / "A", tmp_path / "state", tmp_path / "results", {}
    )
    assert read_site_file(_with(file, state="../elsewhere"), "A").state == tmp_path.parent / "elsewhere"


def test_absolute_paths_and_shipped_bundles_are_taken(file: Path, study: Path) -> None:
    """A name is looked up among the shipped bundles."""
    held = read_site_file(_with(file, bundle="abide_connectome", data=str(study / "B")), "B")
    assert (held.bundle, held.data) == (find_bundle("abide_connectome"), study / "B")


def test_the_source_opens_the_site_with_the_fold_of_the_seed(file: Path) -> None:
    """Fold = seed % folds, as in `fedskew simulate`; 6 % 4 = 2, and a fold that is given stays."""
    source = read_site_file(_with(file, overrides={"lr": 0.01}), "A").source(6)
    assert dict(source.overrides) == {"lr": 0.01, "fold": 2}
    assert source.open(seed=6).samples > 0
    assert read_site_file(_with(file, overrides={"fold": 1}), "A").source(6).overrides["fold"] == 1
    assert read_site_file(_with(file, overrides={"folds": 5}), "A").source(6).overrides["fold"] == 1


@pytest.mark.parametrize("folds", [0, "x", True, 2.0])
def test_folds_that_make_no_sense_are_refused(file: Path, folds: Any) -> None:
    """The value is named."""
    with pytest.raises(ConfigError, match="folds=.* must be a whole number"):
        read_site_file(_with(file, overrides={"folds": folds}), "A").source(0)


@pytest.mark.parametrize("value", ["$open('pwned', 'w')", "@lr", {"_target_": "os.system"}])
def test_nothing_in_the_file_is_evaluated(file: Path, value: Any) -> None:
    """Expressions belong in the bundle."""
    with pytest.raises(ConfigError, match="not taken here|would build an object"):
        read_site_file(_with(file, overrides={"lr": value}), "A").source(0).open()


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"ste": "A"}, ConfigError, "unknown key 'ste'; did you mean site"),
        (
            {"xyzzy": 1},
            ConfigError,
            "unknown key 'xyzzy'; it may hold site, bundle, data, state, output, prep",
        ),
        ({"data": "gone"}, ConfigError, "lacks the key 'data'; it needs bundle and data"),
        ({"site": "B"}, ConfigError, "site is 'B', but the engine knows this site as 'A'"),
        ({"data": "nowhere"}, DataError, "data .*nowhere is no folder"),
        (
            {"bundle": "nowhere"},
            ConfigError,
            "bundle '.*nowhere': .* does not exist; shipped bundles: abide_connectome",
        ),
        ({"bundle": 3}, ConfigError, "bundle=3 must be text"),
        ({"data": ""}, ConfigError, "data='' must be text"),
        ({"state": "a\0b"}, ConfigError, r"state='a.x00b' must be text"),
        ({"overrides": ["lr"]}, ConfigError, r"overrides=\['lr'\] must be an object"),
        ({"state": "fedskew.json"}, ConfigError, "state .*fedskew.json is a file; name a folder"),
    ],
)
def test_what_is_wrong_is_named(file: Path, changes: dict[str, Any], error: type[Exception], says: str) -> None:
    """Every error names the file, the key and what to do."""
    with pytest.raises(error, match=says):
        read_site_file(_with(file, **changes), "A")


def test_a_file_that_is_absent_or_no_json_is_refused(tmp_path: Path) -> None:
    """The command that writes one is named."""
    path = tmp_path / "fedskew.json"
    with pytest.raises(DataError, match="fedskew.json does not exist; `fedskew site init` writes one"):
        read_site_file(path, "A")
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_site_file(path, "A")
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_site_file(path, "A")
    with pytest.raises(DataError, match="is a folder; `fedskew site init` writes one"):
        read_site_file(tmp_path, "A")
    path.write_text("[]")
    with pytest.raises(DataError, match="holds a list, not an object; correct it, or `fedskew site init`"):
        read_site_file(path, "A")


@pytest.mark.parametrize("site", ["../B", "", "$x"])
def test_an_engine_cannot_name_a_site_anything(file: Path, site: str) -> None:
    """The name becomes a folder and a word of MONAI's configuration."""
    with pytest.raises(DataError, match="the engine's name of this site"):
        read_site_file(file, site)


def test_what_is_written_reads_the_same(file: Path, study: Path, tmp_path: Path) -> None:
    """Data and state below the file are named relative to it, so that the folder can move; shipped bundles by name."""
    held = SiteFile(
        "A", find_bundle("abide_connectome"), tmp_path / "prepared" / "A", tmp_path / "s", study, {"lr": 0.1}
    )
    write_site_file(file, held)
    assert read_site_file(file, "A") == held
    content = json.loads(file.read_text())
    assert (content["bundle"], content["data"], content["state"]) == ("abide_connectome", "prepared/A", "s")
    with pytest.raises(ConfigError, match="overrides must be plain values"):
        write_site_file(file, SiteFile("A", study, study, study, study, {"lr": {1}}))
    assert read_site_file(file, "A") == held


def test_a_bundle_of_ones_own_is_not_taken_for_a_shipped_one_of_its_name(file: Path, tmp_path: Path) -> None:
    """It lies beside the file and is called abide_connectome: the bare name would mean the shipped bundle."""
    own = tmp_path / "abide_connectome"
    shutil.move(tmp_path / "bundle", own)
    held = SiteFile("A", own, tmp_path / "prepared" / "A", tmp_path / "state", tmp_path / "results")
    write_site_file(file, held)
    assert json.loads(file.read_text())["bundle"] == "./abide_connectome"
    assert read_site_file(file, "A").bundle == own


def test_what_could_not_be_read_back_is_not_written(file: Path, study: Path, tmp_path: Path) -> None:
    """A folder in the file's place, a file where state belongs, data that are not there; nothing is left behind."""
    good = SiteFile("A", find_bundle("abide_connectome"), study / "A", tmp_path / "s", tmp_path / "r")
    before = file.read_text()
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        write_site_file(tmp_path, good)
    with pytest.raises(ConfigError, match="state .* is a file; name a folder"):
        write_site_file(file, replace(good, state=file))
    with pytest.raises(DataError, match="data .* is no folder"):
        write_site_file(file, replace(good, data=tmp_path / "nowhere"))
    assert file.read_text() == before
    assert not list(tmp_path.parent.glob("*.partial"))


def test_another_hospitals_data_are_refused(tiny_bundle: Path, study: Path, tmp_path: Path) -> None:
    """Data prepared for A under the name of B: refused by every reader, unless the file says that they are its own."""
    content = {"bundle": str(tiny_bundle), "data": str(study / "A")}
    path = tmp_path / "fedskew.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="prepared for site 'A', but this is 'B'.*\"prepared_as\": \"A\""):
        read_site_file(path, "B")
    path.write_text(json.dumps({**content, "prepared_as": "A"}))
    held = read_site_file(path, "B")
    assert (held.data, held.prepared_as) == (study / "A", "A")
    write_site_file(path, held)
    assert read_site_file(path, "B") == held
    with pytest.raises(DataError, match="prepared for site 'A'"):
        write_site_file(path, replace(held, prepared_as=""))
