import json
from pathlib import Path

import pytest

from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.locate import bundle_of_call, find_bundle, list_bundles


def test_shipped_bundle_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name means the shipped bundle even where a folder of that name lies."""
    (tmp_path / "abide_connectome" / "configs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_bundle("abide_connectome") == list_bundles()["abide_connectome"]


def test_unknown_bundle_lists_the_known(tmp_path: Path) -> None:
    """The error gives the absolute path that was tried and the names there are."""
    with pytest.raises(ConfigError, match="abide_connektome does not exist; shipped bundles: .*abide_connectome"):
        find_bundle("abide_connektome")
    with pytest.raises(ConfigError, match=f"{tmp_path} has no configs/train.yaml"):
        find_bundle(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["--config_file", "/b/nyu/configs/train.yaml"],
        ["--config_file=/b/nyu/configs/train.yaml,/b/nyu/configs/site_nyu.yaml"],
        ["--config_file", "['/b/nyu/configs/train.yaml','/b/nyu/configs/site_nyu.yaml']"],
        ["--config_file", "[/b/nyu/configs/train.yaml,/b/nyu/configs/site_nyu.yaml]"],
        ["--config-file", "/b/nyu/train.yaml"],
    ],
)
def test_root_is_that_of_the_configuration(words: list[str]) -> None:
    """The forms MONAI's command line takes all lead to the bundle's folder."""
    assert bundle_of_call(["run", *words, "--lr", "0.1"]) == "/b/nyu"


def test_root_from_an_arguments_file(tmp_path: Path) -> None:
    """--args_file with a config_file in it does as well."""
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"config_file": ["/b/nyu/configs/train.yaml"]}))
    assert bundle_of_call(["run", "--args_file", str(path)]) == "/b/nyu"


def test_relative_configuration_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is taken from the working directory, and the result does not change with it later."""
    monkeypatch.chdir(tmp_path)
    assert bundle_of_call(["--config_file", "configs/train.yaml"]) == str(tmp_path)


def test_no_configuration_is_an_error() -> None:
    """Opened from Python without bundle_root, a bundle says what to give instead of taking the working directory."""
    with pytest.raises(ConfigError, match="bundle_root=FOLDER"):
        bundle_of_call(["pytest"])
