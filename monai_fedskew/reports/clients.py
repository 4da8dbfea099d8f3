"""Clients of a partition, and sites that are too many for bars: what each holds and how it scores, as figures."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monai_fedskew.reports.plots import axis, colours, sheet, style, svg
from monai_fedskew.reports.results import Level, Results, Run

__all__ = ["Holding", "holdings", "label_strip", "score_strip"]

_SHOWN = 3  # partitions that are drawn
_FEW = 12  # classes that get a name each


@dataclass(frozen=True)
class Holding:
    """What the clients of one partition hold; each pair is the fewest and the most of a client."""

    seed: int
    how: str
    clients: int
    samples: tuple[int, int]
    median: float
    subjects: tuple[int, int] | None
    classes: tuple[int, int]


def holdings(results: Results) -> tuple[Holding, ...]:
    """Summarise the partition of each seed; nothing where every site holds its own rows."""
    return tuple(_holding(run) for run in _by_seed(results))


def label_strip(results: Results, names: Sequence[str] = ()) -> str | None:
    """Draw how many training samples of each class each client holds, one strip a seed, the first three of them.

    Args:
        results: what :func:`read_results` returned.
        names: of the classes; numbers where there are too few.

    Returns:
        An SVG, or None where no rows were dealt.
    """
    runs = _by_seed(results)[:_SHOWN]
    if not runs:
        return None
    counts = [np.array([c.labels for c in run.dealt.clients.values()]).T for run in runs if run.dealt is not None]
    classes = len(counts[0])
    height = 0.9 + min(0.28 * classes, 2.6)
    with style({"axes.grid": False}):
        figure, panels = sheet(len(runs), height=height * len(runs) + 0.4, columns=1)
        for ax, run, count in zip(panels, runs, counts, strict=True):
            drawn = ax.imshow(count, aspect="auto", cmap="Blues", vmin=0, vmax=max(int(c.max()) for c in counts))
            ax.set_ylabel("class" if len(runs) == 1 else f"seed {run.seed}\nclass")
            if classes <= _FEW:
                ax.set_yticks(range(classes), names[:classes] if len(names) >= classes else map(str, range(classes)))
            step = max(1, -(-count.shape[1] // 16))
            ax.set_xticks(range(0, count.shape[1], step), map(str, range(1, count.shape[1] + 1, step)))
        panels[-1].set_xlabel("client")
        figure.colorbar(drawn, ax=panels, label="training samples", fraction=0.03, pad=0.01)
        return svg(figure)


def score_strip(results: Results, level: Level) -> str:
    """Draw the main score of every site of every seed as a dot, one row a method, and the mean as a line."""
    methods = [method for method in results.methods if results.of(method)]
    palette, rng, metric = colours(results.methods), np.random.default_rng(0), results.main
    with style({"axes.grid.axis": "x"}):
        figure, (ax,) = sheet(1, height=0.8 + 0.55 * len(methods))
        for row, method in enumerate(methods):
            scores = [score.of(metric.key) for run in results.of(method) for score in run.scores[level].values()]
            values = [metric.scale * value for value in scores if value is not None]
            if not values:
                continue
            place = row + rng.uniform(-0.28, 0.28, len(values))
            ax.plot(values, place, "o", ms=4, color=palette[method], alpha=0.45, mec="none")
            mean = statistics.fmean(values)
            ax.plot([mean, mean], [row - 0.38, row + 0.38], color="#222222", linewidth=2)
        ax.set_yticks(range(len(methods)), methods)
        ax.set_ylim(len(methods) - 0.5, -0.5)
        ax.set_xlabel(f"{results.word(level)} {axis(metric)}")
        return svg(figure)


def _by_seed(results: Results) -> list[Run]:
    """One run of each seed that dealt rows out; the methods of a seed have the same clients."""
    found: dict[int, Run] = {}
    for run in results.runs.values():
        if run.dealt is not None:
            found.setdefault(run.seed, run)
    return [found[seed] for seed in sorted(found)]


def _holding(run: Run) -> Holding:
    assert run.dealt is not None
    clients = list(run.dealt.clients.values())
    samples = [client.samples for client in clients]
    subjects = [client.subjects for client in clients if client.subjects is not None]
    classes = [sum(count > 0 for count in client.labels) for client in clients]
    return Holding(
        run.seed,
        run.dealt.how,
        len(clients),
        (min(samples), max(samples)),
        statistics.median(samples),
        (min(subjects), max(subjects)) if len(subjects) == len(clients) else None,
        (min(classes), max(classes)),
    )
