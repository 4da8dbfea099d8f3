"""A study: one table of a paper as a YAML file of a bundle, or the same thing from options."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from monai_fedskew.errors import ConfigError

__all__ = ["Study", "parse_overrides", "read_study", "with_options"]

_SETTINGS = ("local_epochs", "weights", "fraction", "choose", "optimizer_state", "min_sites", "threads")


_KINDS: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("title", str, "text"),
    ("reference", str, "text"),
    ("methods", list, "a list of methods"),
    ("sites", list, "a list of sites"),
    ("rounds", int, "a whole number"),
    ("seeds", int, "a whole number"),
    ("local_epochs", int, "a whole number"),
    ("min_sites", int, "a whole number"),
    ("threads", int, "a whole number"),
    ("fraction", (int, float), "a number"),
    ("weights", str, "samples, groups or equal"),
    ("choose", str, "best or last"),
    ("optimizer_state", str, "reset or keep"),
    ("partition", str, "homogeneous, dirichlet:alpha=0.5 or by-site:parts=5"),
    ("clients", int, "a whole number"),
    ("overrides", dict, "ids and values"),
    ("published", list, "a list of blocks"),
)


@dataclass(frozen=True)
class Study:
    """What is compared, and how it is run.

    Args:
        title: one line.
        methods: in the order of the table; the first is what the others are compared with.
        rounds: communication rounds.
        seeds: number of seeds; seed s uses subject fold s.
        reference: where the protocol comes from.
        sites: sites that take part; empty for all prepared ones.
        local_epochs, weights, fraction, choose, optimizer_state, min_sites, threads: of Settings; None: its default.
        partition, clients: how the sites' rows are dealt to how many clients; None: every site holds its own.
        overrides: configuration id of the bundle to value.
        published: figures to print beside ours.
    """

    title: str
    methods: tuple[str, ...]
    rounds: int
    seeds: int = 5
    reference: str = ""
    sites: tuple[str, ...] = ()
    local_epochs: int | None = None
    weights: str | None = None
    fraction: float | None = None
    choose: str | None = None
    optimizer_state: str | None = None
    min_sites: int | None = None
    threads: int | None = None
    partition: str | None = None
    clients: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    published: Sequence[Mapping[str, Any]] = ()

    def settings(self) -> dict[str, Any]:
        """Return what is set, by Settings' names, without the seed."""
        given = {name: getattr(self, name) for name in _SETTINGS if getattr(self, name) is not None}
        return {"rounds": self.rounds, **given}


def read_study(bundle: Path, name: str) -> Study:
    """Read ``studies/<name>.yaml`` of a bundle.

    Raises:
        ConfigError: no such study, or a key that is unknown or missing.
    """
    folder = bundle / "studies"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise ConfigError(f"--study {name}: not in {bundle.name}; its studies: {known}")
    if path.parent.resolve() != folder.resolve():
        raise ConfigError(f"--study {name}: is a name, not a path")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"study {path}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"study {path}: must hold keys and values, holds {type(content).__name__}")
    known_keys = {f.name for f in fields(Study)}
    for key in content:
        if key not in known_keys:
            close = difflib.get_close_matches(str(key), known_keys, 1)
            raise ConfigError(f"study {path}: unknown key {key!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    for key in ("title", "methods", "rounds"):
        if key not in content:
            raise ConfigError(f"study {path}: lacks the key {key!r}")
    for key, kind, example in _KINDS:
        if key in content and (not isinstance(content[key], kind) or isinstance(content[key], bool)):
            raise ConfigError(f"study {path}: {key}={content[key]!r} must be {example}")
    for key in ("methods", "sites"):
        content[key] = tuple(content.get(key, ()))
        if not all(isinstance(name, str) for name in content[key]):
            raise ConfigError(f"study {path}: {key}={list(content[key])} must be names")
    if not content["methods"]:
        raise ConfigError(f"study {path}: methods=[] must be a list of methods, at least one")
    for key in ("rounds", "seeds"):
        if content.get(key, 1) < 1:
            raise ConfigError(f"study {path}: {key}={content[key]} must be at least 1")
    return Study(**content)


def with_options(study: Study, given: Mapping[str, Any]) -> Study:
    """Return the study with the options that were given on the command line."""
    changes = {name: value for name, value in given.items() if value not in (None, (), {})}
    if "overrides" in changes:
        changes["overrides"] = {**study.overrides, **changes["overrides"]}
    return replace(study, **changes)


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn ``id=value`` pairs into a mapping; values are read as YAML, so numbers and booleans are typed.

    Raises:
        ConfigError: a pair without ``=``.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {pair}: must be ID=VALUE, for example --set batch_size=32")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {pair}: {value!r} is no value of YAML ({str(error).splitlines()[0]})") from error
        # YAML 1.1 reads 1e-3 as text
        is_exponent = isinstance(read, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", read)
        found[key.replace("::", "#")] = float(read) if is_exponent else read
    return found
