"""Whole numbers in few words."""

from collections.abc import Iterable

__all__ = ["as_ranges"]


def as_ranges(numbers: Iterable[int]) -> str:
    """Write numbers (rounds, seeds) shortly.

    Example:
        >>> as_ranges([4, 1, 2, 3, 7])
        '1-4, 7'
    """
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
