"""A method is a value: what is shared, what is added to training, how updates become the next model."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from monai_fedskew.core.aggregate import Aggregator, WeightedMean
from monai_fedskew.core.keys import KeyFilter, all_keys, both
from monai_fedskew.core.part import EXCLUSIVE, Part
from monai_fedskew.errors import ConfigError

__all__ = ["Factory", "Method", "compose", "parse"]

Factory = Callable[..., "Method"]


@dataclass(frozen=True)
class Method:
    """A federated method as a value made of parts.

    Args:
        name: how it is written, for example ``"fedrdn+fedbn"``.
        share: the entries of a network's state that leave the site.
        parts: what is added to local training, sorted by name.
        aggregate: how updates become the next model.
        scope: "federated", or one of the two ends a study is compared with: "local" trains each site alone,
            "pooled" trains one model on all sites' data together.
        refuses: names of methods this one cannot work with, each with the reason.
    """

    name: str
    share: KeyFilter = all_keys()
    parts: tuple[Part, ...] = ()
    aggregate: Aggregator = WeightedMean()
    scope: Literal["federated", "local", "pooled"] = "federated"
    refuses: Mapping[str, str] = field(default_factory=dict)


def compose(*methods: Method) -> Method:
    """Put methods together; the order does not matter.

    Shares what all of them share, joins their parts, and takes the one aggregate that is not the mean.

    Raises:
        ConfigError: a part twice, two parts in an exclusive stage, two aggregates, methods of which one refuses the
            other, or a baseline with more than a normalisation.
    """
    parts = tuple(sorted((part for m in methods for part in m.parts), key=lambda part: part.name))
    name = "+".join(m.name for m in methods)
    _require_once(name, [part.name for part in parts])
    names = [piece.partition(":")[0] for piece in name.split("+")]
    _require_once(name, names)
    refused = {other: why for m in methods for other, why in m.refuses.items()}
    for other in names:
        if other in refused:
            raise ConfigError(f"{name}: {refused[other]}")
    for stage in EXCLUSIVE:
        users = [part.name for part in parts if stage in part.stages]
        if len(users) > 1:
            raise ConfigError(f"{name}: {' and '.join(users)} both take the stage {stage!r}; leave one of them out")
    special = [m for m in methods if m.aggregate != WeightedMean()]
    if len(special) > 1:
        bringing = " and ".join(m.name for m in special)
        raise ConfigError(f"{name}: {bringing} each bring their own aggregate; at most one can")
    scope = _scope(name, methods)
    aggregate = special[0].aggregate if special else WeightedMean()
    return Method(name, both(*(m.share for m in methods)), parts, aggregate, scope, refused)


def parse(text: str, table: Mapping[str, Factory]) -> Method:
    """Build a method from text such as ``fedrdn+fedbn+fedprox:mu=0.2``.

    Args:
        text: names from the table joined by ``+``, each followed by ``:name=value,...`` for its parameters.
        table: name to factory.

    Raises:
        ConfigError: unknown method or parameter, or a value of the wrong type or range.
    """
    methods = [_build(piece.strip(), table) for piece in text.split("+")]
    return methods[0] if len(methods) == 1 else compose(*methods)


def _build(piece: str, table: Mapping[str, Factory]) -> Method:
    name, _, arguments = piece.partition(":")
    if name not in table:
        close = difflib.get_close_matches(name, table, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"unknown method {name!r}; {hint}known: {', '.join(sorted(table))}")
    factory = table[name]
    hints, known = get_type_hints(factory), inspect.signature(factory).parameters
    values: dict[str, Any] = {}
    for pair in filter(None, arguments.split(",")):
        key, _, value = (side.strip() for side in pair.partition("="))
        if key not in known:
            takes = ", ".join(known) or "no parameters"
            raise ConfigError(f"method {name}: unknown parameter {key!r}; it takes {takes}")
        if key in values:
            raise ConfigError(f"method {name}: parameter {key!r} is given twice")
        values[key] = _convert(f"method {name}: {key}", value, hints[key])
    return replace(factory(**values), name=piece)


def _convert(what: str, text: str, kind: Any) -> Any:
    choices = [option for option in get_args(kind) if option is not type(None)]
    if get_origin(kind) is Literal:
        if text in choices:
            return text
        raise ConfigError(f"{what}={text!r} must be one of {', '.join(map(str, choices))}")
    if choices:  # "X | None"
        return None if text.lower() == "none" else _convert(what, text, choices[0])
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{what}={text!r} must be true or false")
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{what}={text!r} must be {'a number' if kind is float else kind.__name__}") from None


def _require_once(name: str, names: list[str]) -> None:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ConfigError(f"{name}: {', '.join(twice)} is given twice; name each method once")


def _scope(name: str, methods: tuple[Method, ...]) -> Literal["federated", "local", "pooled"]:
    baselines = [m for m in methods if m.scope != "federated"]
    if not baselines:
        return "federated"
    others = [m for m in methods if m is not baselines[0]]
    for other in others:
        only_normalises = all(set(part.stages) <= {"normalise", "normalise_eval"} for part in other.parts)
        if (
            other.scope != "federated"
            or other.share != all_keys()
            or other.aggregate != WeightedMean()
            or (not only_normalises)
        ):
            raise ConfigError(
                f"{name}: the baseline {baselines[0].name} only takes a normalisation in front, not {other.name}"
            )
    return baselines[0].scope
