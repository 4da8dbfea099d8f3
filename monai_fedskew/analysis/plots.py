"""Figures of the toy problems and Gram matrices, as matplotlib objects (no pyplot state)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monai_fedskew.analysis.gram import GramDraw
from monai_fedskew.analysis.synthetic import Case, Curves
from monai_fedskew.analysis.toy import Averaging

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CLIENTS",
    "METHOD_COLOURS",
    "new_figure",
    "plot_gram",
    "plot_synthetic",
    "plot_toy_curves",
    "plot_toy_surface",
]

# Okabe and Ito's colours, which colour-blind readers can tell apart; each comes with a line style or marker of its own
CLIENTS = ("#0072B2", "#D55E00")
METHOD_COLOURS = {"fedavg": "#444444", "fedbn": "#009E73"}
_DASHES = ("-", "--")
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}


def new_figure(
    rows: int, columns: int, *, width: float = 10.0, height: float = 4.0, **axes: Any
) -> "tuple[Figure, list[Axes]]":
    """Return a figure of rows x columns axes, row by row; sizes in inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, **axes)
    return figure, list(grid.ravel())


def plot_toy_curves(
    weights: Tensor, curves: Mapping[tuple[str, bool], Sequence[Tensor]], *, scales: Sequence[float]
) -> "Figure":
    """Draw figure 1: loss against w for both clients, by what the label depends on, without and with division.

    Args:
        weights: (k,) values of w.
        curves: (labels, divided) to one loss (k,) a client.
        scales: standard deviation of x by client.
    """
    figure, axes = new_figure(2, 2, height=6.4, sharex=True, sharey=True)
    for number, ((labels, divided), losses) in enumerate(curves.items()):
        ax = axes[number]
        for k, loss in enumerate(losses):
            ax.plot(
                weights, loss, color=CLIENTS[k], linestyle=_DASHES[k], label=f"client {k + 1}, std(x) = {scales[k]:g}"
            )
            at = int(loss.argmin())
            ax.plot(
                weights[at], loss[at], "os"[k], color=CLIENTS[k], ms=(12, 6)[k], mec="white"
            )  # both seen where equal
        depends = "x as it is" if labels == "raw" else "x / std(x)"
        ax.set_title(f"label depends on {depends}\n{'x divided by std(x)' if divided else 'no division'}", fontsize=10)
        ax.grid(visible=True)
        if number % 2 == 0:
            ax.set_ylabel("mean squared error")
        if number >= 2:
            ax.set_xlabel("w (marks: minima)")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def plot_toy_surface(
    weights: Tensor, gammas: Tensor, losses: Tensor, averaging: Averaging, rounds: Mapping[str, Tensor]
) -> "Figure":
    """Draw figure 2: client 1's loss over (w, gamma) with the averages marked, and the loss over many rounds.

    Args:
        weights: (k,) values of w.
        gammas: (l,) values of gamma.
        losses: (k, l).
        averaging: of one start, the first of its.
        rounds: method to mean loss over clients after each round.
    """
    from matplotlib.ticker import MultipleLocator

    figure, (left, right) = new_figure(1, 2, height=4.6)
    drawn = left.contourf(weights, gammas, losses.T, levels=20, cmap="cividis")
    figure.colorbar(drawn, ax=left, label="client 1's mean squared error", ticks=MultipleLocator(0.2))
    marks = [(averaging.local[k, 0], "os"[k], CLIENTS[k], f"where client {k + 1} ends") for k in range(2)]
    marks += [
        (averaging.shared[0], "X", METHOD_COLOURS["fedavg"], "means of w and gamma (FedAvg)"),
        (averaging.kept[0], "P", METHOD_COLOURS["fedbn"], "mean of w, own gamma (FedBN)"),
    ]
    for point, marker, colour, name in marks:
        left.plot(*point.tolist(), marker, color=colour, ms=10, mec="white", mew=1.4, linestyle="none", label=name)
    left.set(xlabel="w", ylabel="gamma", title="one average")
    for k, (method, values) in enumerate(rounds.items()):
        marks_at = range(1, len(values) + 1)
        right.plot(marks_at, values, color=METHOD_COLOURS[method], linestyle=_DASHES[k], label=method)
    right.set(xlabel="round", ylabel="mean squared error, mean over clients", title="many rounds", yscale="log")
    right.grid(visible=True)
    right.legend(frameon=False)
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def plot_gram(draw: GramDraw) -> "Figure":
    """Draw both Gram matrices, on one scale, and their eigenvalues."""
    figure, axes = new_figure(1, 3, height=3.7, width=11.5)
    top = float(draw.gram.max())
    edge = float((draw.clients == draw.clients[0]).sum()) - 0.5
    for ax, matrix, name in zip(axes, (draw.gram, draw.masked), ("G (FedAvg)", "G* (FedBN)"), strict=False):
        drawn = ax.imshow(matrix.numpy(), cmap="cividis", vmin=0, vmax=top)
        for line in (ax.axhline, ax.axvline):
            line(edge, color="white", linewidth=1)
        ax.set(title=name, xlabel="example, by client")
    axes[0].set_ylabel("example, by client")
    figure.colorbar(drawn, ax=axes[:2], label="entry", shrink=0.85)
    places = torch.arange(1, len(draw.gram) + 1)
    for k, (name, found) in enumerate((("fedavg", draw.fedavg), ("fedbn", draw.fedbn))):
        label = f"{'G ' if name == 'fedavg' else 'G*'} ({name}), smallest {found.smallest:.3g}"
        axes[2].plot(places, found.eigenvalues, "o^"[k], ms=3.5, color=METHOD_COLOURS[name], label=label)
    axes[2].set(title="eigenvalues", xlabel="from the smallest to the largest", ylabel="eigenvalue", yscale="log")
    axes[2].grid(visible=True)
    axes[2].legend(frameon=False, fontsize=9)
    return figure


def plot_synthetic(cases: Sequence[Case], curves: Sequence[Curves]) -> "Figure":
    """Draw a row for each case: the loss in training, in evaluation, and the difference in evaluation.

    Lines are means over repeats; the difference has a band from the smallest to the largest of the repeats.
    """
    figure, axes = new_figure(len(cases), 3, height=2.7 * len(cases) + 0.6, width=12.0)
    for row, (case, found) in enumerate(zip(cases, curves, strict=True)):
        shown = found.rounds > 0  # before training the loss says nothing of a method
        rounds, of_row = found.rounds[shown], axes[3 * row : 3 * row + 3]
        for ax, losses in zip(of_row, (found.training[..., shown], found.evaluation[..., shown]), strict=False):
            _draw_methods(ax, rounds, losses.mean(dim=0))
            if case.reduction == "mean":  # the first rounds in evaluation, with fresh running statistics, are far off
                late = losses.mean(dim=0)[..., rounds > case.rounds // 8]
                margin = 0.1 * float(late.max() - late.min()) + 1e-3
                ax.set_ylim(float(late.min()) - margin, float(late.max()) + margin)
        gap = (found.evaluation[:, 0] - found.evaluation[:, 1])[..., found.rounds > case.rounds // 8]
        late_rounds = found.rounds[found.rounds > case.rounds // 8]
        for client in range(gap.shape[1]):
            of = gap[:, client]
            style: dict[str, Any] = {"color": CLIENTS[client], "linestyle": _DASHES[client]}
            of_row[2].plot(late_rounds, of.mean(dim=0), label=f"client {client + 1}", **style)
            of_row[2].fill_between(late_rounds, of.amin(dim=0), of.amax(dim=0), color=CLIENTS[client], alpha=0.15)
        of_row[2].axhline(0, color="#222222", linewidth=0.8)
        modes = ("each client's, batch statistics", "averaged, running statistics", "fedavg - fedbn, averaged")
        for ax, mode in zip(of_row, modes, strict=True):
            ax.set_title(f"{case.reduction} loss, E = {case.local_epochs}: {mode}", fontsize=9.5)
            ax.grid(visible=True)
        of_row[0].set_ylabel("mean cross-entropy")
        of_row[2].set_ylabel("difference")
    for ax in axes[-3:]:
        ax.set_xlabel("round")
    for ax in (axes[0], axes[2]):
        ax.legend(frameon=False, fontsize=8)
    return figure


def _draw_methods(ax: "Axes", rounds: Tensor, losses: Tensor) -> None:
    """Draw losses (methods, clients, rounds): a colour a method, a marker a client."""
    for m, method in enumerate(METHOD_COLOURS):
        for client, line in enumerate(losses[m]):
            ax.plot(
                rounds,
                line,
                color=METHOD_COLOURS[method],
                linestyle=_DASHES[m],
                marker="os"[client],
                markevery=(6 * m, 12),  # where curves coincide, both methods' marks are seen
                ms=4,
                label=f"{method}, client {client + 1}",
            )
