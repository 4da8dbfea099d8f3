"""The figures of a report, drawn with matplotlib's objects (no pyplot state) and given back as SVG or PNG."""

import io
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_fedskew.reports.metrics import Metric, describe
from monai_fedskew.reports.results import Level, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DASHES", "PALETTE", "axis", "bars", "colours", "convergence", "name_ticks", "png", "sheet", "style", "svg"]

WIDTH = 10.0  # inches; the page shows figures at about this width
# Okabe and Ito's palette without yellow and black, with Tol's muted colours: safe for colour-blind readers
PALETTE = [
    "#444444",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#999933",
    "#AA4499",
]
DASHES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "text.parse_math": False,  # names of subjects and classes may hold a $
    "svg.hashsalt": "monai_fedskew",  # the same results give the same file
}


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Give each method its colour, the same in every figure.

    Example:
        >>> colours(["local", "fedavg"])
        {'local': '#444444', 'fedavg': '#0072B2'}
    """
    return {method: PALETTE[k % len(PALETTE)] for k, method in enumerate(methods)}


def convergence(results: Results) -> str | None:
    """Draw the main score on validation data and the training loss over rounds.

    Lines are means over sites and seeds, bands one standard deviation over seeds; on a log scale, which a loss gets
    that falls by much, bands reach from the lowest seed to the highest.

    Returns:
        An SVG, or None when no run has a history.
    """
    name = _validated(results)
    metric = describe(name)
    scored = (f"validation {axis(metric)}", _curves(results, "validation", name, metric.scale))
    panels = [panel for panel in (scored, ("training loss", _curves(results, "train", "loss", 1.0))) if panel[1]]
    if not panels:
        return None
    from matplotlib.ticker import MaxNLocator

    with style():
        figure, axes = sheet(len(panels), height=3.9)
        for ax, (label, lines) in zip(axes, panels, strict=True):
            lowest = min(min(values) for line in lines.values() for values in line.values())
            highest = max(max(values) for line in lines.values() for values in line.values())
            is_log = 0 < 20 * lowest < highest  # a loss that falls to 1 % would look like zero
            for k, (method, line) in enumerate(lines.items()):
                colour = colours(results.methods)[method]
                mean = [statistics.fmean(values) for values in line.values()]
                ax.plot(list(line), mean, color=colour, linestyle=DASHES[k % 4], linewidth=1.6, label=method)
                band = np.array([(min(v), max(v)) if is_log else _one_deviation(v) for v in line.values()])
                ax.fill_between(list(line), band[:, 0], band[:, 1], color=colour, alpha=0.12, linewidth=0)
            ax.set(xlabel="round", ylabel=f"{label},\nmean over sites{' (log scale)' * is_log}")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            if is_log:
                ax.set_yscale("log")
        _legend(figure, axes[0])
        return svg(figure)


def bars(results: Results, level: Level, *, n_classes: int | None = 2) -> str:
    """Draw the main score per site and over all sites: bars with one standard deviation, a dot for each seed.

    Bars of an accuracy start at what guessing among ``n_classes`` gives, not at zero, so that differences of a few
    points can be seen; at zero where the number of classes is not known (None).
    """
    is_guess = results.main.key == "accuracy" and bool(n_classes)
    groups = (*results.sites, "mean over sites")
    guess = 100 / n_classes if n_classes and is_guess else 0.0
    palette = colours(results.methods)
    methods = [method for method in results.methods if results.of(method)]
    with style():
        figure, (ax,) = sheet(1, height=3.9)
        width = min(0.84 / len(methods), 0.3)
        named: set[str] = set()
        for k, method in enumerate(methods):
            offset = (k - (len(methods) - 1) / 2) * width
            for at, values in enumerate(_bar_values(results, method, level)):
                if not values:
                    continue
                mean = statistics.fmean(values)
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                label = None if method in named else method  # the legend lists a method once
                named.add(method)
                ax.bar(
                    at + offset,
                    mean - guess,
                    width * 0.92,
                    bottom=guess,
                    color=palette[method],
                    alpha=0.75,
                    label=label,
                )
                if len(values) > 1:
                    ax.errorbar(at + offset, mean, spread, color="#222222", capsize=2, linewidth=1)
                jitter = np.linspace(-0.22, 0.22, len(values)) * width if len(values) > 1 else np.zeros(1)
                ax.plot(at + offset + jitter, values, "o", ms=2.6, color="white", mec="#222222", mew=0.6, zorder=3)
        ax.axhline(guess, color="#222222", linewidth=1)
        ax.axvline(len(groups) - 1.5, color="#999999", linewidth=1, linestyle=":")
        name_ticks(ax, groups, room=90)
        starts = f"\nbars start at guessing: {guess:.0f} %" if is_guess else ""
        ax.set_ylabel(f"{results.word(level)} {axis(results.main)}{starts}")
        _legend(figure, ax)
        return svg(figure)


def svg(figure: "Figure") -> str:
    """Render a figure as SVG text, cropped to what is drawn so that no label is clipped."""
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.08, metadata={"Date": None})
    return out.getvalue()


def png(figure: "Figure", *, dpi: int = 130) -> bytes:
    """Render a figure as PNG, cropped to what is drawn."""
    out = io.BytesIO()
    figure.savefig(out, format="png", bbox_inches="tight", pad_inches=0.08, dpi=dpi)
    return out.getvalue()


def style(more: dict[Any, Any] | None = None) -> Any:
    """Return a context in which figures of a report are drawn, with ``more`` of matplotlib's settings."""
    import matplotlib as mpl

    return mpl.rc_context({**_STYLE, **(more or {})})


def sheet(count: int, *, height: float, columns: int | None = None) -> "tuple[Figure, list[Axes]]":
    """Return a figure of the page's width, ``height`` inches high, and its panels."""
    from matplotlib.figure import Figure

    columns = columns or count
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(-(-count // columns), columns, squeeze=False)
    return figure, list(grid.ravel())


def _legend(figure: "Figure", ax: "Axes") -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)


def axis(metric: Metric) -> str:
    """Name a score on an axis.

    Example:
        >>> axis(describe("dice"))
        'Dice (%)'
    """
    return f"{metric.short} ({metric.sign})" if metric.sign else metric.short


def name_ticks(ax: "Axes", names: Sequence[str], *, room: int) -> None:
    """Write names below positions 0, 1, ...; aslant where they have more than ``room`` letters together."""
    is_long = len(names) * (max(map(len, names), default=0) + 2) > room
    turned: dict[str, Any] = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    ax.set_xticks(range(len(names)), names, **turned)


def _validated(results: Results) -> str:
    """Name the score that rounds were chosen by: the main one, else the first that was validated."""
    names = {mark.metric: None for run in results.runs.values() for mark in run.history if mark.split == "validation"}
    return results.main.key if results.main.key in names else next(iter(names), results.main.key)


def _curves(results: Results, split: str, metric: str, scale: float) -> dict[str, dict[int, list[float]]]:
    """Give, per method and round, the mean over sites of each seed."""
    curves = {}
    for method in results.methods:
        by_round: dict[int, list[float]] = defaultdict(list)
        for run in results.of(method):
            of_run: dict[int, list[float]] = defaultdict(list)
            for mark in run.history:
                if mark.split == split and mark.metric == metric:
                    of_run[mark.round].append(scale * mark.value)
            for number, values in of_run.items():
                by_round[number].append(statistics.fmean(values))
        if by_round:
            curves[method] = dict(sorted(by_round.items()))
    return curves


def _one_deviation(values: Sequence[float]) -> tuple[float, float]:
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return mean - spread, mean + spread


def _bar_values(results: Results, method: str, level: Level) -> list[list[float]]:
    """Give a method's main score of each seed, site by site, then of the mean over sites."""
    metric = results.main
    groups: list[list[float]] = [[] for _ in range(len(results.sites) + 1)]
    for run in results.of(method):
        scores = [run.scores[level].get(site) for site in results.sites]
        values = [None if score is None else score.of(metric.key) for score in scores]
        for group, value in zip(groups, values, strict=False):
            if value is not None:
                group.append(metric.scale * value)
        known = [value for value in values if value is not None]
        at_every = [run.scores[level].get(site) for site in results.averaged(run)]
        if known and all(score is not None and score.of(metric.key) is not None for score in at_every):
            groups[-1].append(metric.scale * statistics.fmean(known))
    return groups
