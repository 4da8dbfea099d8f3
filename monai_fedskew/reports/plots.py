"""The figures of a report, drawn with matplotlib's objects (no pyplot state) and given back as SVG or PNG."""

import io
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_fedskew.reports.facts import SiteFacts
from monai_fedskew.reports.results import Level, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["bars", "colours", "convergence", "png", "sheet", "site_statistics", "style", "svg"]

WIDTH = 10.0  # inches; the page shows figures at about this width
# Okabe and Ito's palette without yellow and black, with Tol's muted colours: safe for colour-blind readers
_PALETTE = [
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
_DASHES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "svg.hashsalt": "monai_fedskew",  # the same results give the same file
}


def colours(methods: Sequence[str]) -> dict[str, str]:
    """Give each method its colour, the same in every figure.

    Example:
        >>> colours(["local", "fedavg"])
        {'local': '#444444', 'fedavg': '#0072B2'}
    """
    return {method: _PALETTE[k % len(_PALETTE)] for k, method in enumerate(methods)}


def convergence(results: Results) -> str | None:
    """Draw validation accuracy and training loss over rounds.

    Lines are means over sites and seeds, bands one standard deviation over seeds; on a log scale, which a loss gets
    that falls by much, bands reach from the lowest seed to the highest.

    Returns:
        An SVG, or None when no run has a history.
    """
    accuracy = ("validation accuracy (%)", _curves(results, "validation", "accuracy", 100.0))
    panels = [panel for panel in (accuracy, ("training loss", _curves(results, "train", "loss", 1.0))) if panel[1]]
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
                ax.plot(list(line), mean, color=colour, linestyle=_DASHES[k % 4], linewidth=1.6, label=method)
                band = np.array([(min(v), max(v)) if is_log else _one_deviation(v) for v in line.values()])
                ax.fill_between(list(line), band[:, 0], band[:, 1], color=colour, alpha=0.12, linewidth=0)
            ax.set(xlabel="round", ylabel=f"{label},\nmean over sites{' (log scale)' * is_log}")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            if is_log:
                ax.set_yscale("log")
        _legend(figure, axes[0])
        return svg(figure)


def bars(results: Results, level: Level, *, n_classes: int | None = 2) -> str:
    """Draw accuracy per site and over all sites: bars with one standard deviation, a dot for each seed.

    Bars start at what guessing among ``n_classes`` gives, not at zero, so that differences of a few points can be seen;
    at zero where the number of classes is not known (None).
    """
    groups = (*results.sites, "mean over sites")
    guess = 100 / n_classes if n_classes else 0.0
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
        ax.set_xticks(range(len(groups)), groups)
        ax.set_ylabel(f"{level} accuracy (%)" + (f"\nbars start at guessing: {guess:.0f} %" if n_classes else ""))
        _legend(figure, ax)
        return svg(figure)


def site_statistics(facts: Sequence[SiteFacts]) -> str | None:
    """Draw subjects and windows per site and how far features differ between sites.

    Returns:
        An SVG, or None when no site's manifest can be read.
    """
    known = [fact for fact in facts if fact.manifest is not None]
    if not known:
        return None
    with style():
        figure, axes = sheet(4, height=6.4, columns=2)
        _draw_subjects(axes[0], known)
        rows = [fact.manifest.n_rows for fact in known if fact.manifest is not None]
        drawn = axes[1].bar([fact.site for fact in known], rows, color="#777777", width=0.6)
        axes[1].bar_label(drawn, [f"{n:,}" for n in rows], fontsize=9)
        axes[1].set(ylabel="windows (rows)", title="windows")
        axes[1].margins(y=0.12)
        axes[1].yaxis.set_major_formatter("{x:,.0f}")
        if all(fact.mean is not None for fact in known):
            _draw_spread(axes[2], {fact.site: fact.mean for fact in known}, "mean of a feature at the site")
            _draw_spread(
                axes[3], {fact.site: fact.std for fact in known}, "standard deviation of a feature at the site"
            )
        else:
            for ax, key in zip(axes[2:], ("mean", "std"), strict=True):
                values = [float(fact.summary.get(key, np.nan)) for fact in known]
                ax.plot([fact.site for fact in known], values, "o", color="#0072B2")
                ax.set(ylabel=f"{key} over all values", title=f"{key} of the features")
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
    """Give a method's accuracy of each seed in percent, site by site, then of the mean over sites."""
    groups: list[list[float]] = [[] for _ in range(len(results.sites) + 1)]
    for run in results.of(method):
        scores = [run.scores[level].get(site) for site in results.sites]
        values = [None if score is None else score.accuracy for score in scores]
        for group, value in zip(groups, values, strict=False):
            if value is not None:
                group.append(100 * value)
        known = [value for value in values if value is not None]
        at_every = [run.scores[level].get(site) for site in results.averaged(run)]
        if known and all(score is not None and score.accuracy is not None for score in at_every):
            groups[-1].append(100 * statistics.fmean(known))
    return groups


def _draw_subjects(ax: "Axes", facts: Sequence[SiteFacts]) -> None:
    sites = [fact.site for fact in facts]
    names = facts[0].manifest.label_names if facts[0].manifest else ()
    bottom = np.zeros(len(facts))
    for label, name in enumerate(names):
        counts = np.array([fact.subjects_per_class[label] for fact in facts])
        drawn = ax.bar(
            sites, counts, bottom=bottom, width=0.6, label=name, color=("#56B4E9", "#D55E00", *_PALETTE)[label]
        )
        ax.bar_label(drawn, [str(n) for n in counts], label_type="center", fontsize=9)
        bottom += counts
    ax.set(ylabel="subjects", title="subjects by class")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_spread(ax: "Axes", values: Mapping[str, Any], label: str) -> None:
    everything = np.concatenate(list(values.values()))
    low, high = np.percentile(everything, [0.2, 99.8])
    bins = np.linspace(low, high, 60) if high > low else 10
    for k, (site, of_site) in enumerate(values.items()):
        counts, edges = np.histogram(of_site, bins)
        share = 100 * counts / len(of_site)
        ax.stairs(share, edges, label=site, color=_PALETTE[1:][k % 9], linestyle=_DASHES[k % 4], linewidth=1.6)
    ax.set(xlabel=label, ylabel="features (% of all)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
