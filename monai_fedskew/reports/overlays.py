"""Segmentations to look at: Dice of every image as boxes, and images with the outlines of truth and prediction."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from monai_fedskew.data.segmentations import Example, image_scores, read_examples
from monai_fedskew.errors import DataError
from monai_fedskew.reports.fields import RUN_AGAIN
from monai_fedskew.reports.plots import colours, png, sheet, style, svg
from monai_fedskew.reports.predictions import has_outcomes, segmentations_at
from monai_fedskew.reports.results import Results, Run
from monai_fedskew.reports.spread import is_crowded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PREDICTION", "SHOWN_SITES", "TRUTH", "dice_boxes", "overlays"]

SHOWN_SITES = 6
TRUTH, PREDICTION = "#00E5FF", "#FFB000"  # far from grey, and from the pink and violet of stained tissue
_DASHES = ("solid", "dashed", "dotted")
_COLUMNS = 5


def dice_boxes(results: Results) -> str | None:
    """Draw the Dice of every test image, pooled over seeds: one panel a site, one box a method.

    Of many sites or clients all are in one panel.

    Returns:
        An SVG, or None where no method has a segmentation.csv of every site.

    Raises:
        DataError: a segmentation.csv cannot be read.
    """
    methods = [m for m in results.methods if results.of(m) and all(_has(results, m, site) for site in results.sites)]
    if not methods or not results.sites:
        return None
    groups = {"all sites": results.sites} if is_crowded(results) else {site: (site,) for site in results.sites}
    rows = -(-len(groups) // _COLUMNS)
    columns = -(-len(groups) // rows)
    with style({"axes.grid.axis": "x"}):
        figure, axes = sheet(len(groups), height=rows * (0.9 + 0.3 * len(methods)), columns=columns)
        lowest = 100.0
        for k, (ax, (name, sites)) in enumerate(zip(axes, groups.items(), strict=False)):
            values = {method: _dice(results.of(method), sites) for method in methods}
            _draw_boxes(ax, values, colours(results.methods))
            lowest = min([lowest, *(float(np.nanmin(array)) for array in values.values() if np.isfinite(array).any())])
            ax.set_title(f"{name}\n{len(values[methods[0]]):,} images", fontsize=9)
            ax.set_yticks(range(len(methods)), methods if k % columns == 0 else [""] * len(methods))
            if k >= len(groups) - columns:
                ax.set_xlabel("Dice (%)")
        for ax in axes[: len(groups)]:
            ax.set_xlim(lowest - 3, 101)
        for ax in axes[len(groups) :]:
            ax.set_axis_off()
        return svg(figure)


def overlays(results: Results, method: str) -> bytes | None:
    """Draw up to four test images of each of the first sites, of the method's first seed, with both outlines.

    Returns:
        A PNG, or None where the run left no examples.

    Raises:
        DataError: an examples.npz or a segmentation.csv cannot be read.
    """
    run = next(iter(results.of(method)), None)
    if run is None:
        return None
    sites = [site for site in results.sites if _file(run, site).is_file()][:SHOWN_SITES]
    examples = {site: _examples(_file(run, site)) for site in sites}
    most = max((len(one) for one in examples.values()), default=0)
    if not most:
        return None
    columns = max(most, 3)
    with style({"axes.grid": False}):
        figure, axes = sheet(len(sites) * columns, height=len(sites) * 10.0 / columns * 1.02, columns=columns)
        for ax in axes:
            ax.set(xticks=(), yticks=())
            ax.set_axis_off()
        for row, site in enumerate(sites):
            dice = image_scores(segmentations_at(run, site))["dice"].groupby(level="subject").mean()
            first = axes[row * columns]
            first.text(-0.06, 0.5, site, transform=first.transAxes, rotation=90, ha="right", va="center")
            for ax, (subject, one) in zip(axes[row * columns :], examples[site].items(), strict=False):
                _draw_overlay(ax, one)
                shown = subject if len(subject) <= 22 else f"{subject[:11]}…{subject[-10:]}"
                value = f"{100 * dice[subject]:.1f}" if subject in dice and np.isfinite(dice[subject]) else "-"
                ax.set_title(f"{shown}\nDice {value}", fontsize=9)
        return png(figure, dpi=100)


def _has(results: Results, method: str, site: str) -> bool:
    return has_outcomes(results.of(method), site, "dice")


def _dice(runs: Sequence[Run], sites: Sequence[str]) -> np.ndarray:
    values = [image_scores(segmentations_at(run, site))["dice"].to_numpy() for run in runs for site in sites]
    return 100 * np.concatenate(values)


def _draw_boxes(ax: "Axes", values: dict[str, np.ndarray], palette: dict[str, str]) -> None:
    known = [array[np.isfinite(array)] for array in values.values()]
    drawn = ax.boxplot(
        known,
        positions=range(len(known)),
        orientation="horizontal",
        widths=0.66,
        patch_artist=True,
        manage_ticks=False,
        medianprops={"color": "#222222", "linewidth": 1.4},
        whiskerprops={"color": "#555555"},
        capprops={"color": "#555555"},
        flierprops={"marker": "o", "markersize": 2.2, "markerfacecolor": "#555555", "markeredgewidth": 0},
    )
    for box, method in zip(drawn["boxes"], values, strict=True):
        box.set(facecolor=palette[method], alpha=0.75, edgecolor="#444444")
    ax.set_ylim(len(known) - 0.4, -0.6)


def _draw_overlay(ax: "Axes", one: Example) -> None:
    ax.imshow(one["image"], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for plane, colour in (("truth", TRUTH), ("prediction", PREDICTION)):
        for number in range(1, int(one[plane].max()) + 1):
            mask = np.pad(one[plane] == number, 1).astype(float)  # outlines are closed at the border, too
            if mask.any():
                ax.contour(np.arange(-1, mask.shape[1] - 1), np.arange(-1, mask.shape[0] - 1), mask, levels=[0.5],
                           colors=colour, linewidths=0.9, linestyles=_DASHES[(number - 1) % 3])  # fmt: skip
    ax.set(xlim=(-0.5, one["truth"].shape[1] - 0.5), ylim=(one["truth"].shape[0] - 0.5, -0.5))


def _examples(file: Path) -> dict[str, Example]:
    try:
        return read_examples(file)
    except DataError as error:
        raise DataError(f"{error}; {RUN_AGAIN}") from error


def _file(run: Run, site: str) -> Path:
    return run.folder / "sites" / site / "examples.npz"
