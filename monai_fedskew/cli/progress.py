"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:  # the module of entries brings torch, and a bar must not
    from monai_fedskew.federation.history import Entry

__all__ = ["bar", "round_progress"]

_LINES = 10  # plain lines of a run, about


@contextmanager
def bar(text: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show how much of ``total`` is done; yields ``advance(done, note)``. Silent where there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done, note: progress.update(task, completed=done, description=f"{text} {note}")


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
