"""Sums of float64 numbers without any rounding, so that neither order nor grouping can change them."""

import math

__all__ = ["SCALE", "as_integer", "quotient"]

SCALE = 1074  # 2^-1074 is the smallest float64 above 0, and every finite float64 is a whole multiple of it


def as_integer(value: float) -> int:
    """Return ``value * 2^SCALE``, which is a whole number.

    >>> as_integer(0.1) + as_integer(0.2) + as_integer(0.3) == as_integer(0.3) + as_integer(0.2) + as_integer(0.1)
    True
    """
    numerator, denominator = value.as_integer_ratio()
    return numerator << (SCALE - denominator.bit_length() + 1)


def quotient(numerator: int, denominator: int) -> float:
    """Return the float64 nearest to the quotient of two whole numbers of any size; infinite where there is none.

    >>> quotient(as_integer(0.75), 3 << SCALE)
    0.25
    """
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf
