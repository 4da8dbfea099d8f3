"""Figures of Hessians and loss landscapes, as matplotlib objects (no pyplot state)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from monai_fedskew.analysis.landscape import Landscape
from monai_fedskew.analysis.plots import CLIENTS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_hessian", "plot_landscape"]

_NAMED = 12  # sites whose cosines are written into the matrix


def plot_hessian(
    values: Mapping[str, Mapping[str, Any]], cosines: Mapping[tuple[str, str], float | None], *, sites: Sequence[str]
) -> "Figure":
    """Draw eigenvalues and trace of each model, and the cosines of pairs of sites.

    Args:
        values: model to "eigenvalues", "trace" and "trace_standard_error".
        cosines: pair of sites to the cosine of their diagonals; empty for one site.
        sites: in the order of the matrix.
    """
    figure, axes = new_figure(1, 3 if cosines else 2, height=3.9, width=11.5)
    names = list(values)
    places = np.arange(len(names))
    eigenvalues = np.array([one["eigenvalues"] for one in values.values()])
    width = 0.8 / eigenvalues.shape[1]
    for k, column in enumerate(eigenvalues.T):
        at = places + (k - (eigenvalues.shape[1] - 1) / 2) * width
        colour = CLIENTS[k] if k < len(CLIENTS) else "#999999"
        axes[0].bar(at, column, width * 0.92, color=colour, label=f"eigenvalue {k + 1}" if k < 3 else None)
    axes[0].axhline(0, color="#222222", linewidth=0.8)
    axes[0].set(title="largest eigenvalues", ylabel="eigenvalue of the Hessian")
    axes[0].margins(y=0.18)
    axes[0].legend(frameon=False, fontsize=9, loc="upper right", ncols=2)
    traces = [one["trace"] for one in values.values()]
    errors = [one["trace_standard_error"] for one in values.values()]
    axes[1].bar(places, traces, 0.6, color="#009E73")
    axes[1].errorbar(places, traces, errors, color="#222222", linestyle="none", capsize=3)
    axes[1].set(title="trace, with its standard error", ylabel="trace of the Hessian")
    for ax in axes[:2]:
        ax.set_xticks(places, names, rotation=0 if len(names) < 6 else 60)
    if cosines:
        matrix = np.eye(len(sites))
        for (one, other), value in cosines.items():
            k, j = sites.index(one), sites.index(other)
            matrix[k, j] = matrix[j, k] = np.nan if value is None else value
        drawn = axes[2].imshow(matrix, cmap="cividis", vmin=min(0.0, float(np.nanmin(matrix))), vmax=1)
        figure.colorbar(drawn, ax=axes[2], label="cosine of the diagonals", shrink=0.85)
        axes[2].set_xticks(range(len(sites)), sites, rotation=0 if len(sites) < 6 else 60)
        axes[2].set_yticks(range(len(sites)), sites)
        axes[2].set_title("H_D of pairs of sites")
        if len(sites) <= _NAMED:
            for k, j in np.ndindex(*matrix.shape):
                colour = "black" if matrix[k, j] > 0.6 else "white"
                axes[2].text(j, k, f"{matrix[k, j]:.2f}", ha="center", va="center", color=colour, fontsize=9)
    return figure


def plot_landscape(landscape: Landscape, title: str) -> "Figure":
    """Draw a landscape as contours and as a surface; the mark is the network as it is."""
    figure, (left, right) = new_figure(1, 2, height=4.4)
    along, losses = landscape.steps_along.numpy(), landscape.losses.numpy()
    filled = left.contourf(along, along, losses.T, levels=24, cmap="cividis")
    left.contour(along, along, losses.T, levels=12, colors="white", linewidths=0.4)
    left.plot(0, 0, "P", color="#D55E00", ms=10, mec="white", mew=1.2)
    left.set(xlabel="along eigenvector 1", ylabel="along eigenvector 2", title="mark: the network as it is")
    left.set_aspect("equal")
    ticks = along[-1] * np.array([-1, -0.5, 0, 0.5, 1])
    left.set(xticks=ticks, yticks=ticks)
    figure.colorbar(filled, ax=left, label="mean loss", format="%.3g", shrink=0.85)
    place = right.get_subplotspec()
    right.remove()
    surface = figure.add_subplot(place, projection="3d")
    first, second = np.meshgrid(along, along, indexing="ij")
    surface.plot_surface(first, second, losses, cmap="cividis", rcount=41, ccount=41, linewidth=0)
    surface.set(xlabel="along eigenvector 1", ylabel="along eigenvector 2", zlabel="mean loss")
    surface.view_init(elev=28, azim=-55)
    figure.suptitle(title, fontsize=11)
    return figure
