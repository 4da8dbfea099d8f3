"""Whether a parameter lies in its range: the checks of all factories, and what they say when it does not."""

import math
from typing import Literal, get_args

from monai_fedskew.errors import ConfigError

__all__ = ["Variant", "require_choice", "require_flag", "require_number", "require_variant", "require_whole"]

_MOST = 2**31 - 1
Variant = Literal["paper", "official"]  # as the paper has it, or as the authors' public code does it


def require_number(
    what: str,
    name: str,
    value: float | None,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    """Raise ConfigError unless the value is a finite number within its bounds.

    Args:
        what: opens the message, e.g. ``method moon``.
        name: of the parameter.
        value: as given.
        least: lower bound, allowed itself.
        above: lower bound, not allowed itself.
        most: upper bound, allowed itself.
        below: upper bound, not allowed itself.

    >>> require_number("method moon", "mu", 1.0, least=0)
    """
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -math.inf < value < math.inf
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    kind = "a finite number" if most is None and below is None else "a number"
    bounds = (("of at least", least), ("above", above), ("at most", most), ("below", below))
    told = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    raise ConfigError(f"{what}: {name}={value!r} must be {kind} {told}".rstrip())


def require_whole(what: str, name: str, value: int, least: int) -> None:
    """Raise ConfigError unless the value is a whole number of at least ``least`` that torch takes for a size.

    >>> require_whole("method moon", "dim", 256, 1)
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what}: {name}={value!r} must be a whole number, {least} or more")
    if value > _MOST:
        raise ConfigError(f"{what}: {name}={value!r} must be a whole number of at most {_MOST}")


def require_choice(what: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ConfigError unless the value is one of the choices, which a ``Literal`` tells by ``get_args``.

    >>> require_choice("method fedbn", "norms", "all", ("batch", "all"))
    """
    if value not in choices:
        known = ", ".join("none" if choice is None else str(choice) for choice in choices)
        raise ConfigError(f"{what}: {name}={value!r} must be one of {known}")


def require_variant(what: str, value: Variant) -> None:
    """Raise ConfigError unless the value is a ``Variant``.

    >>> require_variant("method moon", "paper")
    """
    require_choice(what, "variant", value, get_args(Variant))


def require_flag(what: str, name: str, value: bool) -> None:
    """Raise ConfigError unless the value is a truth value.

    >>> require_flag("method fedbn", "allow_none", False)
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{what}: {name}={value!r} must be true or false")
