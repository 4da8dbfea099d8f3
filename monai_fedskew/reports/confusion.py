"""What is taken for what: a confusion matrix of each site, pooled over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monai_fedskew.data.predictions import probability_columns
from monai_fedskew.reports.plots import sheet, style, svg
from monai_fedskew.reports.predictions import has_predictions, predictions_at
from monai_fedskew.reports.results import Results, Run
from monai_fedskew.reports.spread import is_crowded
from monai_fedskew.reports.tables import summarise

__all__ = ["Confusion", "confusion_figure", "confusions", "shown_methods"]

_WRITTEN = 12  # classes whose shares are written into the cells
_NAMED = 30  # classes that get a name each
_ALL = "all sites"


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often a class (row) was taken for which (column) at a site, shape (classes, classes)."""

    site: str
    counts: npt.NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """Share on the diagonal, in percent."""
        return 100 * float(np.trace(self.counts) / self.counts.sum())


def shown_methods(results: Results) -> tuple[str, ...]:
    """Choose whose pictures are shown: the first method and the one with the best mean over sites, each once."""
    table = summarise(results, results.levels[0])
    scored = [(row.cells[-1].mean, row.method) for row in table.rows if not row.source]
    known = [(mean, method) for mean, method in scored if mean is not None]
    choose = min if table.metric.is_better_low else max
    best = [choose(known, key=lambda pair: pair[0])[1]] if known else []
    first = [method for method in results.methods if results.of(method)][:1]
    return tuple(dict.fromkeys([*first, *best]))


def confusions(results: Results, method: str) -> tuple[Confusion, ...]:
    """Count the predictions of a method over all its seeds, site by site; of many sites or clients all in one.

    Returns:
        One entry a site with predictions; nothing where there are none.

    Raises:
        DataError: a predictions.csv cannot be read.
    """
    runs = results.of(method)
    sites = [site for site in results.sites if runs and has_predictions(runs, site)]
    found = [Confusion(site, _counts(runs, site)) for site in sites]
    if len(found) > 1 and is_crowded(results):
        size = max(len(one.counts) for one in found)
        total = sum(np.pad(one.counts, (0, size - len(one.counts))) for one in found)
        return (Confusion(_ALL if not results.is_dealt else "all clients", np.asarray(total)),)
    return tuple(found)


def confusion_figure(matrices: Sequence[Confusion], word: str, names: Sequence[str] = ()) -> str:
    """Draw matrices side by side: the colour and the figure are the share of a row, in percent.

    Args:
        matrices: of `confusions`, at least one.
        word: what a sample is called.
        names: of the classes; numbers where there are too few.
    """
    classes = max(len(one.counts) for one in matrices)
    columns = min(len(matrices), 4 if classes <= 4 else 2)
    labels = list(names[:classes]) if len(names) >= classes else [str(k) for k in range(classes)]
    labels = [label if len(label) <= 14 else f"{label[:13]}…" for label in labels]
    is_long = max(map(len, labels)) > 2 and classes > 2
    side = 10.0 / max(columns, 2)
    with style({"axes.grid": False, "axes.spines.top": True, "axes.spines.right": True}):
        rows = -(-len(matrices) // columns)
        figure, axes = sheet(
            len(matrices), height=rows * min(side, 5.0) * (0.9 if classes > 4 else 1.05), columns=columns
        )
        for ax, one in zip(axes, matrices, strict=False):
            total = one.counts.sum(axis=1, keepdims=True)
            share = 100 * one.counts / np.maximum(total, 1)
            drawn = ax.imshow(share, cmap="Blues", vmin=0, vmax=100)
            if classes <= _WRITTEN:
                for row, column in np.argwhere((share >= 0.5) | (np.eye(classes) * total > 0)):
                    colour = "white" if share[row, column] > 55 else "#222222"
                    text = f"{share[row, column]:.0f}"
                    ax.text(
                        column, row, text, ha="center", va="center", color=colour, fontsize=9 if classes <= 4 else 8
                    )
            if classes <= _NAMED:
                ax.set_xticks(range(classes), labels, fontsize=8, rotation=45 if is_long else 0,
                              ha="right" if is_long else "center", rotation_mode="anchor")  # fmt: skip
                ax.set_yticks(range(classes), labels, fontsize=8)
            ax.set_title(f"{one.site}\n{one.accuracy:.1f} % of {int(one.counts.sum()):,} {word}s", fontsize=9)
            ax.set(xlabel="predicted", ylabel="label")
        for ax in axes[len(matrices) :]:
            ax.set_axis_off()
        figure.colorbar(drawn, ax=axes, label="% of the label", fraction=0.03, pad=0.01)
        return svg(figure)


def _counts(runs: Sequence[Run], site: str) -> npt.NDArray[np.int64]:
    tables = [predictions_at(run, site) for run in runs]
    pairs = np.concatenate([table[["label", "prediction"]].to_numpy() for table in tables])
    classes = max(int(pairs.max()) + 1, *(len(probability_columns(table)) for table in tables))
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (pairs[:, 0], pairs[:, 1]), 1)
    return counts
