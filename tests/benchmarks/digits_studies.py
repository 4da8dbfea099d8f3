"""FedBN's digits studies on four real sources: convergence, size of the data, clients of each source, unequal sizes.

    python tests/benchmarks/digits.py --images 699 --out PREPARED
    python tests/benchmarks/digits_studies.py --data PREPARED --out STUDIES [--only convergence] [--quick]

Runs each setting of the bundle's studies with `fedskew compare`, prints tables and writes to STUDIES a figure and a
file of scores a study, and convergence_curves.csv. What is finished is kept: the same call again only goes on.
"""

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from monai_fedskew.reports.history import read_history
from monai_fedskew.reports.plots import colours, png, sheet, style

SITES, METHODS, SEEDS = ("MNIST", "USPS", "SEMEION", "OPTDIGITS"), ("fedavg", "fedbn"), 3
METRICS = ("test accuracy", "training loss")  # in percent, and the mean over the batches of a round
DASHES = ("-", "--", ":")
TRAINING = 466  # images a site of 699 trains on, of three folds
WIDTH = 0.25  # of the network, in the studies


@dataclass(frozen=True)
class Setting:
    """One comparison: what is changed of a study, and by how much."""

    name: str
    value: float
    options: tuple[str, ...] = ()


def _size(images: int) -> Setting:
    return Setting(f"{images} images", images, ("--set", f"limit={images}"))


def _clients(number: int) -> Setting:
    return Setting(f"{number} of 10", number, ("--partition", f"by-site:parts=10,clients={number}"))


STUDIES = {
    "convergence": tuple(
        Setting(f"E = {epochs}", epochs, ("--local-epochs", str(epochs), "--rounds", str(16 // epochs)))
        for epochs in (1, 4, 8)
    ),
    "unequal": (
        Setting("each image once", 0),
        Setting("images repeated", 1, ("--set", f"samples_per_epoch={TRAINING}")),
    ),
    "data_size": tuple(_size(images) for images in (5, 23, 47, 117, 233, TRAINING)),
    "heterogeneity": tuple(_clients(number) for number in (1, 2, 5, 10)),
}


@dataclass(frozen=True)
class Score:
    """Final test accuracy of a run at a source, in percent; over clients of a source that of all their test images."""

    study: str
    setting: str
    value: float
    method: str
    seed: int
    site: str
    accuracy: float


@dataclass(frozen=True)
class Point:
    """What a history tells after so many rounds and local epochs."""

    study: str
    setting: str
    value: float
    method: str
    seed: int
    site: str
    round: int
    epochs: int
    metric: str
    reached: float


def run(study: str, setting: Setting, data: Path, out: Path, *, jobs: int, quick: bool) -> None:
    """Run one setting, or what is left of it, as on the command line."""
    call = ["compare", "digits", "--study", study, "--data", str(data), "--jobs", str(jobs), "--resume"]
    small = ["--seeds", "2", "--set", "width=0.1", "--rounds", "2"] if quick else []
    words = [sys.executable, "-m", "monai_fedskew.cli.main", *call, *setting.options, *small, "--out", str(out)]
    done = subprocess.run(words, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def read_scores(study: str, setting: Setting, out: Path) -> Iterator[Score]:
    """Accuracy of each run and source, from the predictions of the test images."""
    for folder in sorted(out.glob("runs/*/seed*")):
        right: dict[str, list[bool]] = {site: [] for site in SITES}
        for path in sorted(folder.glob("sites/*/predictions.csv")):
            source = path.parent.name.split("-")[0]
            with path.open(newline="") as file:
                right[source] += [row["label"] == row["prediction"] for row in csv.DictReader(file)]
        where = (study, setting.name, setting.value, folder.parent.name, int(folder.name.removeprefix("seed")))
        yield from (Score(*where, site, 100 * fmean(right[site])) for site in SITES)


def read_curves(study: str, setting: Setting, out: Path) -> Iterator[Point]:
    """Every score and loss of the histories, in which validation is the test split in the study of convergence."""
    for folder in sorted(out.glob("runs/*/seed*")):
        where = (study, setting.name, setting.value, folder.parent.name, int(folder.name.removeprefix("seed")))
        for mark in read_history(folder / "history.jsonl")[0]:
            metric, scale = (METRICS[0], 100) if mark.split == "validation" else (METRICS[1], 1)
            if mark.metric in metric:
                epochs = mark.round * int(setting.value)
                yield Point(*where, mark.site, mark.round, epochs, metric, scale * mark.value)


def _mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def _by_seed(scores: Sequence[Score], setting: str, method: str, sites: Sequence[str]) -> list[float]:
    """Mean over the sites, one a seed."""
    seeds = sorted({score.seed for score in scores})
    held = {(s.seed, s.site): s.accuracy for s in scores if (s.setting, s.method) == (setting, method)}
    return [fmean(held[seed, site] for site in sites) for seed in seeds]


def print_table(study: str, settings: Sequence[Setting], scores: Sequence[Score]) -> None:
    """Print a table in Markdown: accuracy by source, their mean, and how far fedbn is above fedavg, over seeds."""
    print(f"\n{study}\n\n| setting | method | {' | '.join(SITES)} | mean over sources | fedbn - fedavg |")
    print(f"|{'---|' * (len(SITES) + 4)}")
    for setting in settings:
        means = {method: _by_seed(scores, setting.name, method, SITES) for method in METHODS}
        for method in METHODS:
            columns = [_by_seed(scores, setting.name, method, [site]) for site in SITES] + [means[method]]
            gain = [own - other for own, other in zip(means[method], means[METHODS[0]], strict=True)]
            told = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in map(_mean_and_spread, columns)]
            mean, spread = _mean_and_spread(gain)
            last = f"{mean:+.1f} ± {spread:.1f}" if method != METHODS[0] else ""
            print(f"| {setting.name} | {method} | {' | '.join(told)} | {last} |", flush=True)


def draw_convergence(settings: Sequence[Setting], scores: Sequence[Score], points: Sequence[Point]) -> bytes:
    """Test accuracy and training loss of each source over local epochs; a mark is a round.

    The first method is drawn wide and pale below the other: their training losses may lie on each other.
    """
    palette, widths, opacities = colours(METHODS), (3.6, 1.3), (0.45, 1.0)
    with style():
        figure, axes = sheet(8, height=6.2, columns=4)
        for ax, (metric, site) in zip(axes, ((m, s) for m in METRICS for s in SITES), strict=True):
            for setting, dash in zip(settings, DASHES, strict=False):
                for method, width, opacity in zip(METHODS, widths, opacities, strict=True):
                    which = (metric, site, setting.name, method)
                    own = [p for p in points if (p.metric, p.site, p.setting, p.method) == which]
                    at = sorted({p.epochs for p in own})
                    mean = [fmean(p.reached for p in own if p.epochs == epochs) for epochs in at]
                    (line,) = ax.plot(at, mean, dash, marker="o", ms=3, color=palette[method], lw=width)
                    line.set(alpha=opacity, label=f"{method}, {setting.name}")
            ax.set_xticks(range(0, 17, 4))
        for top, bottom, site in zip(axes[:4], axes[4:], SITES, strict=True):
            top.set(title=site, ylim=(0, 100))
            bottom.set(xlabel="local epochs", yscale="log", ylim=(0.1, 3))
            bottom.set_yticks([0.1, 0.3, 1, 3], ["0.1", "0.3", "1", "3"])
            bottom.minorticks_off()
        axes[0].set_ylabel("test accuracy (%)")
        axes[4].set_ylabel("training loss (log scale)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        return png(figure)


def draw_sizes(label: str) -> Callable[..., bytes]:
    """Return what draws accuracy over a number on a log scale, each source and their mean; dots are seeds."""

    def draw(settings: Sequence[Setting], scores: Sequence[Score], points: Sequence[Point]) -> bytes:
        palette, at = colours(METHODS), [setting.value for setting in settings]
        with style():
            figure, axes = sheet(5, height=3.4)
            for ax, (title, sites) in zip(
                axes, [*((s, [s]) for s in SITES), ("mean over sources", SITES)], strict=True
            ):
                for method, dash in zip(METHODS, DASHES, strict=False):
                    runs = np.array([_by_seed(scores, setting.name, method, sites) for setting in settings])
                    ax.plot(at, runs.mean(axis=1), dash, color=palette[method], label=method)
                    ax.plot(at, runs, "o", ms=2.5, color=palette[method], alpha=0.5)
                ax.set_xscale("log")
                ax.set_xticks(at, [f"{value:g}" for value in at], rotation=90)
                ax.minorticks_off()
                ax.set(title=title)
            low = min(score.accuracy for score in scores)
            for ax in axes:
                ax.set_ylim(max(0, low - 5), 100)
            axes[0].set_ylabel("test accuracy (%)")
            axes[2].set_xlabel(f"{label} (log scale)")
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
            return png(figure)

    return draw


def draw_unequal(settings: Sequence[Setting], scores: Sequence[Score], points: Sequence[Point]) -> bytes:
    """Bars: each source and their mean, both methods, with and without repeating images; dots are seeds."""
    palette = colours(METHODS)
    groups = [*((site, [site]) for site in SITES), ("mean over sources", SITES)]
    shown = [(method, setting) for method in METHODS for setting in settings]
    with style():
        figure, (ax,) = sheet(1, height=3.9)
        for k, (method, setting) in enumerate(shown):
            place = np.arange(len(groups)) + 0.2 * (k - 1.5)
            runs = np.array([_by_seed(scores, setting.name, method, sites) for _, sites in groups])
            hatch = "//" if setting.value else ""
            told = f"{method}, {setting.name}"
            ax.bar(
                place, runs.mean(axis=1), 0.18, color=palette[method], alpha=0.75, hatch=hatch, ec="white", label=told
            )
            ax.plot(place, runs, "o", ms=2.6, color="white", mec="#222222", mew=0.6)
        ax.set_xticks(range(len(groups)), [title for title, _ in groups])
        ax.set(ylabel="test accuracy (%)", ylim=(0, 100))
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        return png(figure)


FIGURES: dict[str, Callable[..., bytes]] = {
    "convergence": draw_convergence,
    "unequal": draw_unequal,
    "data_size": draw_sizes("training images a source"),
    "heterogeneity": draw_sizes("clients of each source"),
}


def write_table(path: Path, rows: Sequence[Score] | Sequence[Point]) -> None:
    """Write rows with the names of their fields, whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    partial.replace(path)


def main() -> None:
    """Run, collect, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the prepared sources, 699 images each")
    parser.add_argument("--out", type=Path, required=True, help="folder for the comparisons, tables and figures")
    parser.add_argument("--only", action="append", choices=list(STUDIES), help="this study; repeatable")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (default 1)")
    parser.add_argument("--quick", action="store_true", help="two rounds and seeds, a narrow network: means nothing")
    given = parser.parse_args()
    for study in given.only or STUDIES:
        scores: list[Score] = []
        points: list[Point] = []
        for number, setting in enumerate(STUDIES[study]):
            out = given.out / study / f"{number}"
            print(f"{study}, {setting.name}", flush=True)
            run(study, setting, given.data, out, jobs=given.jobs, quick=given.quick)
            scores += read_scores(study, setting, out)
            points += read_curves(study, setting, out) if study == "convergence" else []
        print_table(study, STUDIES[study], scores)
        (given.out / f"{study}.png").write_bytes(FIGURES[study](STUDIES[study], scores, points))
        write_table(given.out / f"{study}.csv", scores)
        if points:
            write_table(given.out / f"{study}_curves.csv", points)


if __name__ == "__main__":
    main()
