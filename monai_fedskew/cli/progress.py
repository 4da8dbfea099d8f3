"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:  # the module of entries brings torch, and a bar must not
    from monai_fedskew.federation.history import Entry

__all__ = ["Advance", "bar", "round_progress"]

_LINES = 10  # plain lines of a run, about


class Advance(Protocol):
    """What a bar yields."""

    def __call__(self, done: int, note: str, total: int | None = None) -> None:
        """Show that ``done`` steps are done, of ``total`` where that was not known before, and a note."""


@contextmanager
def bar(text: str, total: int | None = None, *, has_lines: bool = False) -> Iterator[Advance]:
    """Show how much of ``total`` is done.

    Args:
        text: what is being done.
        total: steps in all; None until it is known.
        has_lines: where there is no terminal, print about ten plain lines instead of nothing.
    """
    is_terminal, shown = sys.stdout.isatty(), -1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not is_terminal) as progress:
        task = progress.add_task(text, total=total)

        def advance(done: int, note: str, total: int | None = total) -> None:
            nonlocal shown
            progress.update(task, completed=done, total=total, description=f"{text} {note}")
            if has_lines and not is_terminal and (part := _LINES * done // max(total or 0, 1)) > shown:
                shown = part
                click.echo(f"{text}: {done} of {total} {note}".rstrip())

        yield advance


@contextmanager
def round_progress(method: str, rounds: int) -> Iterator[Callable[[int, Sequence["Entry"]], None]]:
    """Show the rounds of one run with the newest scores."""
    every = max(1, rounds // _LINES)
    with bar(method, rounds) as advance:

        def on_round(round: int, entries: Sequence["Entry"]) -> None:
            note = _note(entries)
            advance(round, note)
            if not sys.stdout.isatty() and (round % every == 0 or round == rounds):
                click.echo(f"{method}: round {round} of {rounds}{', ' if note else ''}{note}")

        yield on_round


def _note(entries: Sequence["Entry"]) -> str:
    """The round's mean over sites of the validation score (of the model it started from), else of the training loss."""
    for split in ("validation", "train"):
        scores: list[Mapping[str, float | None]] = [
            getattr(entry, "metrics", {}) for entry in entries if getattr(entry, "split", None) == split
        ]
        if scores and scores[0]:
            name = next(iter(scores[0]))
            values = [value for metrics in scores if (value := metrics.get(name)) is not None]
            return f"{split} {name} {sum(values) / len(values):.3f}" if values else ""
    return ""
