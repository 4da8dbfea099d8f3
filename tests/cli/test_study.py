"""Studies as YAML files, and what the command line changes in them."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from monai_fedskew.cli.study import Study, parse_overrides, read_study, with_options
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.locate import find_bundle

GOOD: dict[str, Any] = {"title": "A table", "methods": ["local", "fedbn"], "rounds": 3}


def _read(tmp_path: Path, content: Any) -> Study:
    bundle = tmp_path / "mine"
    (bundle / "studies").mkdir(parents=True, exist_ok=True)
    (bundle / "studies" / "table.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_study(bundle, "table")


def _settings(tmp_path: Path, content: Any) -> Settings:
    return Settings(seed=0, **_read(tmp_path, content).settings())


def test_a_study_needs_title_methods_and_rounds_only(tmp_path: Path) -> None:
    """All else has a default."""
    study = _read(tmp_path, GOOD)
    assert (study.title, study.methods, study.rounds, study.seeds) == ("A table", ("local", "fedbn"), 3, 5)
    assert study.settings() == {"rounds": 3}


def test_everything_a_study_may_say_arrives(tmp_path: Path) -> None:
    """Settings by their names; published figures as they are written."""
    published = [{"source": "paper", "level": "window", "values": {"fedbn": {"NYU": [65.6, 1.1]}}}]
    more = {
        "seeds": 2, "sites": ["NYU"], "local_epochs": 2, "weights": "equal", "fraction": 0.5, "choose": "last",
        "optimizer_state": "keep", "min_sites": 1, "threads": 2, "overrides": {"lr": 0.1}, "reference": "a paper",
        "published": published, "partition": "dirichlet:alpha=0.5", "clients": 16,
    }  # fmt: skip
    study = _read(tmp_path, {**GOOD, **more})
    assert list(study.published) == published
    assert study.sites == ("NYU",)
    assert (study.partition, study.clients) == ("dirichlet:alpha=0.5", 16)
    settings = _settings(tmp_path, {**GOOD, **more})
    assert (settings.local_epochs, settings.weights, settings.fraction, settings.choose) == (2, "equal", 0.5, "last")
    assert (settings.optimizer_state, settings.min_sites, settings.threads) == ("keep", 1, 2)


def test_an_unknown_key_is_refused_with_a_guess(tmp_path: Path) -> None:
    """The file and the key are named."""
    with pytest.raises(ConfigError, match=r"table.yaml: unknown key 'metods'; did you mean 'methods'\?"):
        _read(tmp_path, {**GOOD, "metods": ["fedbn"]})


@pytest.mark.parametrize("key", ["title", "methods", "rounds"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    """With the file."""
    with pytest.raises(ConfigError, match=f"table.yaml: lacks the key '{key}'"):
        _read(tmp_path, {name: value for name, value in GOOD.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("methods", "fedbn"),
        ("methods", []),
        ("methods", [1]),
        ("sites", "NYU"),
        ("rounds", "ten"),
        ("rounds", 0),
        ("rounds", 1.5),
        ("seeds", 0),
        ("seeds", "five"),
        ("title", 3),
        ("local_epochs", "two"),
        ("weights", "windows"),
        ("choose", "first"),
        ("optimizer_state", 1),
        ("fraction", "half"),
        ("fraction", 2),
        ("clients", "many"),
        ("partition", 16),
        ("overrides", ["lr"]),
        ("published", "a paper"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    """Key and value are named, before anything runs: a string of methods would be read letter by letter."""
    with pytest.raises(ConfigError, match=key) as caught:
        _settings(tmp_path, {**GOOD, key: value})
    assert str(value).strip("[]'") in str(caught.value)


@pytest.mark.parametrize("content", ["- fedbn\n- local\n", "", "just words", "title: [unclosed"])
def test_a_file_that_is_no_study_is_refused(content: str, tmp_path: Path) -> None:
    """A list, nothing, a word, broken YAML."""
    with pytest.raises(ConfigError, match="table.yaml"):
        _read(tmp_path, content)


def test_an_unknown_study_lists_the_known(tmp_path: Path) -> None:
    """And the bundle."""
    _read(tmp_path, GOOD)
    with pytest.raises(ConfigError, match="--study other: not in mine; its studies: table"):
        read_study(tmp_path / "mine", "other")


def test_a_study_is_named_not_a_path(tmp_path: Path) -> None:
    """Only the bundle's own studies are read."""
    _read(tmp_path, GOOD)
    shutil.copy(tmp_path / "mine" / "studies" / "table.yaml", tmp_path / "mine" / "secret.yaml")
    with pytest.raises(ConfigError, match="--study ../secret: is a name, not a path"):
        read_study(tmp_path / "mine", "../secret")


def test_options_change_a_study() -> None:
    """What was given wins, what was not stays, overrides are merged."""
    study = Study("A table", ("local",), 3, overrides={"lr": 0.1, "batch_size": 8})
    given = {"methods": (), "rounds": 5, "weights": None, "seeds": 2, "overrides": {"lr": 0.5}, "sites": ("NYU",)}
    changed = with_options(study, given)
    assert (changed.methods, changed.rounds, changed.seeds, changed.sites) == (("local",), 5, 2, ("NYU",))
    assert changed.overrides == {"lr": 0.5, "batch_size": 8}
    assert with_options(study, {"overrides": {}}) == study


def test_overrides_are_typed() -> None:
    """Read as YAML; `::` is MONAI's older way to write `#`."""
    pairs = ["lr=0.5", "class_balance=true", "train::batches::batch_size=8", "name=a=b", "sizes=[1, 2]"]
    assert parse_overrides(pairs) == {
        "lr": 0.5, "class_balance": True, "train#batches#batch_size": 8, "name": "a=b", "sizes": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("2E4", 20000.0), ("1e", "1e"), ("null", None)])
def test_a_number_with_an_exponent_is_a_number(text: str, value: Any) -> None:
    """YAML 1.1 reads 1e-3 as text, and an optimizer would fail on it."""
    assert parse_overrides([f"lr={text}"]) == {"lr": value}


@pytest.mark.parametrize("pair", ["lr", "=1", "lr=[1"])
def test_a_wrong_override_is_refused(pair: str) -> None:
    """The pair is named."""
    with pytest.raises(ConfigError, match=re.escape(f"--set {pair}")):
        parse_overrides([pair])


@pytest.mark.parametrize("name", ["demo", "fedbn_table1"])
def test_the_shipped_studies_can_be_run(name: str) -> None:
    """Methods parse, settings are in range, overrides are ids of the bundle."""
    from monai_fedskew.sites.bundle import BundleSite

    bundle = find_bundle("abide_connectome")
    study = read_study(bundle, name)
    for method in study.methods:
        parse_method(method)
    Settings(seed=0, **study.settings())
    assert set(study.overrides) <= set(BundleSite(bundle, "").ids())
