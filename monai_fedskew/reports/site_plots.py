"""What the sites' data are like, as a figure: how many subjects there are, and how far features differ."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_fedskew.reports.facts import SiteFacts
from monai_fedskew.reports.plots import DASHES, PALETTE, name_ticks, sheet, style, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["site_statistics"]

_WRITTEN = 5  # classes whose counts are written into the bars


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
        is_image = any(fact.manifest is not None and fact.manifest.kind == "image" for fact in known)
        _draw_subjects(axes[0], known, "images" if is_image else "subjects")
        if is_image:
            _draw_intensities(axes[1], known)
        else:
            _draw_windows(axes[1], known)
        if all(fact.mean is not None for fact in known):
            what = "pixel" if is_image else "feature"
            _draw_spread(axes[2], {fact.site: fact.mean for fact in known}, f"mean of a {what} at the site")
            _draw_spread(
                axes[3], {fact.site: fact.std for fact in known}, f"standard deviation of a {what} at the site"
            )
        elif is_image:
            for ax in axes[2:]:
                ax.remove()
        else:
            for ax, key in zip(axes[2:], ("mean", "std"), strict=True):
                values = [float(fact.summary.get(key, np.nan)) for fact in known]
                ax.plot([fact.site for fact in known], values, "o", color="#0072B2")
                ax.set(ylabel=f"{key} over all values", title=f"{key} of the features")
        return svg(figure)


def _draw_subjects(ax: "Axes", facts: Sequence[SiteFacts], what: str) -> None:
    if any(fact.has_masks for fact in facts):
        _draw_counts(ax, facts, [len(fact.manifest.subjects) if fact.manifest else 0 for fact in facts], what)
        return
    sites = [fact.site for fact in facts]
    names = facts[0].manifest.label_names if facts[0].manifest else ()
    bottom = np.zeros(len(facts))
    palette = ("#56B4E9", "#D55E00", *PALETTE)
    for label, name in enumerate(names):
        counts = np.array([fact.subjects_per_class[label] for fact in facts])
        drawn = ax.bar(sites, counts, bottom=bottom, width=0.6, label=name, color=palette[label % len(palette)])
        if len(names) <= _WRITTEN:
            ax.bar_label(drawn, [str(n) for n in counts], label_type="center", fontsize=9)
        bottom += counts
    name_ticks(ax, sites, room=42)
    ax.set(ylabel=what, title=f"{what} by class")
    if len(names) <= len(palette):
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9 if len(names) > 5 else 10)


def _draw_windows(ax: "Axes", facts: Sequence[SiteFacts]) -> None:
    _draw_counts(ax, facts, [fact.manifest.n_rows for fact in facts if fact.manifest is not None], "windows")
    ax.set_ylabel("windows (rows)")


def _draw_counts(ax: "Axes", facts: Sequence[SiteFacts], counts: Sequence[int], what: str) -> None:
    drawn = ax.bar([fact.site for fact in facts], counts, color="#777777", width=0.6)
    ax.bar_label(drawn, [f"{n:,}" for n in counts], fontsize=9)
    name_ticks(ax, [fact.site for fact in facts], room=42)
    ax.set(ylabel=what, title=what)
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter("{x:,.0f}")


def _draw_intensities(ax: "Axes", facts: Sequence[SiteFacts]) -> None:
    """Mean and standard deviation over all values of a site, as its manifest has them."""
    for k, fact in enumerate(facts):
        mean, std = (float(fact.summary.get(key, np.nan)) for key in ("mean", "std"))
        ax.errorbar(k, mean, std, fmt="o", color=PALETTE[1:][k % 9], capsize=4)
    name_ticks(ax, [fact.site for fact in facts], room=42)
    ax.set(ylabel="all values: mean ± std", title="intensity", xlim=(-0.5, len(facts) - 0.5))


def _draw_spread(ax: "Axes", values: Mapping[str, Any], label: str) -> None:
    everything = np.concatenate(list(values.values()))
    low, high = np.percentile(everything, [0.2, 99.8])
    bins = np.linspace(low, high, 60) if high > low else 10
    for k, (site, of_site) in enumerate(values.items()):
        counts, edges = np.histogram(of_site, bins)
        share = 100 * counts / len(of_site)
        ax.stairs(share, edges, label=site, color=PALETTE[1:][k % 9], linestyle=DASHES[k % 4], linewidth=1.6)
    ax.set(xlabel=label, ylabel="features (% of all)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
