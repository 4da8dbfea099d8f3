"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from monai_fedskew.core.messages import History

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
def round_progress(method: str, rounds: int) -> Iterator[Callable[[int, History], None]]:
    """Show the rounds of one run with the newest scores."""
    every = max(1, rounds // _LINES)
    with bar(method, rounds) as advance:

        def on_round(round: int, history: History) -> None:
            note = _note(history)
            advance(round, note)
            if not sys.stdout.isatty() and (round % every == 0 or round == rounds):
                click.echo(f"{method}: round {round} of {rounds}{', ' if note else ''}{note}")

        yield on_round


def _note(history: History) -> str:
    """The newest mean over sites of the validation score, else of the training loss."""
    for split in ("validation", "train"):
        scores = [score for score in history.scores if score.split == split and score.metrics]
        if scores:
            last = max(score.round for score in scores)
            newest = [score.metrics for score in scores if score.round == last]
            name = next(iter(newest[0]))
            value = sum(metrics[name] for metrics in newest) / len(newest)
            return f"{split} {name} {value:.3f}"
    return ""
