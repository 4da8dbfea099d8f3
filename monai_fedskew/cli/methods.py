"""``fedskew methods``: every method, its parameters and its paper, read off its factory."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

__all__ = ["describe", "methods"]


@click.command()
def methods() -> None:
    """List every method, its parameters with their defaults, and its paper.

    A method is written NAME:parameter=value,...; several are joined by +, as in fedrdn+fedbn+fedprox:mu=0.2.
    """
    from rich.console import Console
    from rich.table import Table

    from monai_fedskew.methods import METHODS

    table = Table("Method", "What it does", "Parameters", show_lines=True)
    for name, factory in METHODS.items():
        summary, paper, parameters = describe(factory)
        table.add_row(name, f"{summary}\n[dim]{paper}[/dim]", "\n".join(parameters) or "none")
    console = Console()
    # into a file or a pipe goes a fixed width: lines broken at 80 columns are hard to search
    console.width = console.width if console.is_terminal else 140
    console.print(table)
    console.print("Written as in: fedbn, fedprox:mu=0.2, fedrdn+fedbn+fedprox:mu=0.2", highlight=False)


def describe(factory: Callable[..., Any]) -> tuple[str, str, list[str]]:
    """Return a factory's summary, its paper and one text a parameter, from signature and docstring.

    >>> from monai_fedskew.methods import fedprox
    >>> describe(fedprox)[2][0]
    'mu=0.01 (number): weight of the term, 0 or more'
    """
    paragraphs = inspect.cleandoc(factory.__doc__ or "").split("\n\n")
    paper = next((p.removeprefix("Paper:") for p in paragraphs if p.startswith("Paper:")), "")
    arguments = next((p.removeprefix("Args:\n") for p in paragraphs if p.startswith("Args:")), "")
    hints, told = get_type_hints(factory), _first_sentences(arguments)
    parameters = [
        f"{name}={_default(parameter.default)} ({_kind(hints[name])}): {told[name]}"
        for name, parameter in inspect.signature(factory).parameters.items()
    ]
    return " ".join(paragraphs[0].split()), " ".join(paper.split()), parameters


def _first_sentences(arguments: str) -> dict[str, str]:
    """Return the first sentence on each argument of a Google-style ``Args:`` block."""
    told: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(arguments).splitlines():
        if not line.startswith(" "):
            name, _, line = line.partition(":")
        told[name] = f"{told.get(name, '')} {line.strip()}".strip()
    return {name: text.partition(". ")[0].rstrip(".") for name, text in told.items()}


def _default(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _kind(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    options = [option for option in get_args(hint) if option is not type(None)]
    if options:
        return " | ".join([*map(_kind, options), "none"])
    return {float: "number", int: "integer", bool: "true | false"}.get(hint, getattr(hint, "__name__", str(hint)))
