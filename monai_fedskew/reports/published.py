"""Figures from elsewhere (a paper, a plain script) that are shown beside ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monai_fedskew.errors import DataError

__all__ = ["Published", "read_published"]


@dataclass(frozen=True)
class Published:
    """One block of published figures.

    ``values[method][site]`` is (mean, standard deviation or None), both in percent. The site called ``mean`` stands for
    the mean over sites. ``metric`` is the score's name; empty stands for the main one of the runs.
    """

    source: str
    level: str
    note: str
    values: Mapping[str, Mapping[str, tuple[float, float | None]]]
    metric: str = ""


def read_published(blocks: Any, *, source: str = "published") -> tuple[Published, ...]:
    """Read a study's published figures: nothing, one block or a list of blocks.

    Args:
        blocks: None, or ``{"source", "level", "metric", "note", "values": {method: {site: [mean, std]}}}``, or a list
            of such, shares in percent; a figure without deviation may be a bare number or ``[mean]``.
        source: what to call a block that does not say where it is from.

    Raises:
        DataError: a figure is neither a number nor a pair of numbers.

    Example:
        >>> read_published({"source": "paper", "values": {"fedavg": {"NYU": [62.7, 1.7]}}})[0].values["fedavg"]
        {'NYU': (62.7, 1.7)}
    """
    if not blocks:
        return ()
    listed = blocks if isinstance(blocks, list) else [blocks]
    return tuple(_block(block, source) for block in listed)


def _block(block: Any, source: str) -> Published:
    if not isinstance(block, dict) or not isinstance(block.get("values"), dict):
        raise DataError(f"published figures of a study must have the key 'values', seen {str(block)[:80]!r}")
    name = str(block.get("source") or source)
    if not all(isinstance(row, dict) for row in block["values"].values()):
        raise DataError(f"published figures of {name} must be one object of sites a method, seen {str(block)[:80]!r}")
    values = {
        str(method): {str(site): _figure(figure, f"{name}, {method}, {site}") for site, figure in row.items()}
        for method, row in block["values"].items()
    }
    level, note, metric = (
        str(block.get(key) or other) for key, other in (("level", "window"), ("note", ""), ("metric", ""))
    )
    return Published(name, level, note, values, metric)


def _figure(figure: Any, where: str) -> tuple[float, float | None]:
    pair = figure if isinstance(figure, list) else [figure]
    if not 1 <= len(pair) <= 2 or not all(isinstance(v, (int, float)) or v is None for v in pair) or pair[0] is None:
        raise DataError(f"published figure of {where} must be a number or [mean, std] in percent, seen {figure!r}")
    return float(pair[0]), float(pair[1]) if len(pair) == 2 and pair[1] is not None else None
