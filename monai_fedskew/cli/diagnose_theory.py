"""The diagnoses that need no data: toy, gram and synthetic, from numbers to tables and figures."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from monai_fedskew.analysis import gram, synthetic, toy
from monai_fedskew.analysis.plots import plot_gram, plot_synthetic, plot_toy_curves, plot_toy_surface
from monai_fedskew.cli.diagnose_output import Diagnosis, Picture, Sheet
from monai_fedskew.cli.progress import bar

__all__ = ["gram_diagnosis", "synthetic_diagnosis", "toy_diagnosis"]

_MARGIN = 1e-3  # a loss lower by less is called equal
_SAMPLED = 100_000  # vectors that the closed form is checked with
_DIMENSION, _HIDDEN, _ALPHA, _RATE = 10, 100, 10.0, 1e-5  # of the paper's synthetic experiment


def toy_diagnosis(*, scales: tuple[float, float], w_true: float, noise: float, samples: int, seed: int) -> Diagnosis:
    """Figures 1 and 2 of the FedBN paper, for labels of the raw and of the standardised x."""
    settings = {"scales": scales, "w_true": w_true, "noise": noise, "samples": samples, "seed": seed}
    weights, gammas = torch.linspace(0.001, 12, 361), torch.linspace(0.001, 4, 121)
    narrow = weights[weights <= max(3.0, 2.5 * w_true * max(scales))]
    curves, minima, pictures = {}, [], []
    counted: list[tuple[Any, ...]] = []
    for labels in ("raw", "standardised"):
        clients = toy.draw_clients(scales, labels=labels, w_true=w_true, noise=noise, samples=samples, seed=seed)
        for divide in (False, True):
            losses = [toy.loss_curve(client, narrow, divide=divide) for client in clients]
            curves[labels, divide] = losses
            minima.append((labels, "yes" if divide else "no", *(float(narrow[loss.argmin()]) for loss in losses)))
        start = torch.tensor([2.0, 0.75 * w_true])
        averaging = toy.average_once(clients, start[None])
        rounds = {
            method: toy.train_rounds(clients, start, keep_gamma=method == "fedbn") for method in ("fedavg", "fedbn")
        }
        counted.append((labels, *_count(clients), *(float(losses[-1]) for losses in rounds.values())))
        surface = toy.loss_surface(clients[0], weights, gammas)
        text = "x as it is" if labels == "raw" else "the standardised x"
        pictures.append(
            Picture(
                f"surface_{labels}",
                plot_toy_surface(weights, gammas, surface, averaging, rounds),
                f"Figure 2, labels of {text}: client 1's loss over (w, gamma), where descent from one start ends and "
                "what averaging makes of it; right, averaging every five steps.",
            )
        )
    first = Picture("curves", plot_toy_curves(narrow, curves, scales=scales), "Figure 1: loss of cos(w x) against w.")
    columns = (
        "w",
        *(f"{labels}_{'divided' if d else 'plain'}_client{k + 1}" for labels, d in curves for k in range(2)),
    )
    lines = torch.stack([narrow.double(), *(loss for losses in curves.values() for loss in losses)], dim=1).tolist()
    gain = counted[0]
    return Diagnosis(
        title="Toy: cos(w x) at two clients",
        summary=(
            f"With labels of x as it is, a client's own gamma gives client 1 the lower loss after one average from "
            f"{gain[1]:.0%} of the starts and the higher from {gain[2]:.0%}, by {gain[3]:.3f} in the mean; with labels "
            f"of the standardised x from {counted[1][1]:.0%} and {counted[1][2]:.0%}, by {counted[1][3]:.3f}."
        ),
        settings=settings,
        values={"minima": minima, "averaging": counted},
        sheets=[
            Sheet("minima", "Figure 1: w at the minimum", ("label of", "x divided", "client 1", "client 2"), minima),
            Sheet(
                "averaging",
                "Figure 2: own gamma against the mean gamma at client 1, over a grid of starts; loss after 100 rounds",
                ("label of", "own gamma lower", "higher", "mean gain", "fedavg, 100 rounds", "fedbn, 100 rounds"),
                counted,
            ),
            Sheet("curves", "Figure 1", columns, lines, is_long=True),
        ],
        pictures=[first, *pictures],
        notes=toy.NOTES,
    )


def gram_diagnosis(
    *, draws: int, points: int, dimension: int, correlation: float, alpha: float, seed: int
) -> Diagnosis:
    """G and G* of a few draws, the check against sampling, and the example of equality."""
    found = gram.gram_experiment(
        draws=draws, points=points, dimension=dimension, correlation=correlation, alpha=alpha, seed=seed
    )
    inputs, _ = gram.gaussian_clients(points=points, dimension=dimension, correlation=correlation, seed=seed)
    sampled, error = gram.monte_carlo_gram(inputs[:20], draws=_SAMPLED, alpha=alpha, seed=seed)
    deviations = ((gram.gram_matrix(inputs[:20], alpha=alpha) - sampled).abs() / error).flatten()
    rows = _gram_rows([*found, gram.compare(*gram.equality_example(), alpha=alpha)])
    ratios = [row[3] for row in rows[:-1] if row[3] is not None]
    columns = ("draw", "smallest of G", "of G*", "ratio", "condition of G", "of G*", "interlacing slack")
    spectra = torch.stack([found[0].fedavg.eigenvalues, found[0].fedbn.eigenvalues], dim=1).tolist()
    said = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "not defined"
    return Diagnosis(
        title="Gram matrices of FedAvg and FedBN",
        summary=(
            f"lambda_min(G*) / lambda_min(G): {said} over {draws} draws; interlacing holds in all. Closed form against "
            f"sampling ({_SAMPLED:,} draws): mean deviation {float(deviations.mean()):.2f} standard errors (0.80 "
            f"expected), largest {float(deviations.max()):.1f}."
        ),
        settings={
            "draws": draws,
            "points": points,
            "dimension": dimension,
            "correlation": correlation,
            "alpha": alpha,
            "seed": seed,
        },
        values={
            "draws": [dict(zip(columns, row, strict=True)) for row in rows],
            "closed_form_deviation_in_standard_errors": {
                "mean": float(deviations.mean()),
                "largest": float(deviations.max()),
            },
        },
        sheets=[
            Sheet("gram", "Smallest eigenvalues, condition numbers and interlacing", columns, rows),
            Sheet("spectrum", "Eigenvalues of the first draw", ("fedavg", "fedbn"), spectra, is_long=True),
        ],
        pictures=[
            Picture("gram", plot_gram(found[0]), "The first draw: both matrices and their eigenvalues (log scale).")
        ],
        notes=gram.NOTES,
    )


def synthetic_diagnosis(*, repeats: int, samples: int, correlation: float, shorten: int, seed: int) -> Diagnosis:
    """FedAvg and FedBN on Gaussians in four settings."""
    seeds = range(seed, seed + repeats)
    data = [
        synthetic.draw_data(samples=samples, dimension=_DIMENSION, correlation=correlation, seed=one) for one in seeds
    ]
    cases = [
        synthetic.Case(case.reduction, case.local_epochs, max(1, case.rounds // shorten)) for case in synthetic.CASES
    ]
    curves = _train(cases, torch.stack([one[0] for one in data]), data[0][1], seeds)
    rows = [row for case, found in zip(cases, curves, strict=True) for row in _ends(case, found)]
    columns = ("loss", "E", "rounds", "measured in", "client", "fedavg", "fedbn", "fedavg - fedbn", "spread")
    worst = max(rows, key=lambda row: row[7] / row[5])
    return Diagnosis(
        title="Synthetic: two clients of Gaussians",
        summary=(
            f"The largest gain of FedBN at the end of any setting: {worst[5]:.4f} against {worst[6]:.4f} ({worst[0]}, "
            f"E = {worst[1]}, {worst[3]}, client {worst[4]}; {repeats} repeats)."
        ),
        settings={
            "repeats": repeats,
            "samples": samples,
            "correlation": correlation,
            "shorten": shorten,
            "seed": seed,
            "learning rate": _RATE,
            "hidden": _HIDDEN,
            "dimension": _DIMENSION,
            "alpha": _ALPHA,
        },
        values={"ends": [dict(zip(columns, row, strict=True)) for row in rows]},
        sheets=[
            Sheet(
                "ends",
                "Mean cross-entropy after the last round: mean over repeats, and standard deviation of the difference",
                columns,
                rows,
            ),
            Sheet(
                "curves",
                "All curves",
                ("loss", "E", "round", "measured in", "method", "client", "repeat", "cross-entropy"),
                _lines(cases, curves),
                is_long=True,
            ),
        ],
        pictures=[
            Picture(
                "synthetic",
                plot_synthetic(cases, curves),
                "Mean cross-entropy over rounds, from round 1; lines are means over repeats, bands span them.",
            )
        ],
        notes=synthetic.NOTES,
    )


def _gram_rows(draws: Sequence[gram.GramDraw]) -> list[tuple[Any, ...]]:
    """A row for each draw; the last is the example of equality."""
    rows = [
        (
            str(number),
            draw.fedavg.smallest,
            draw.fedbn.smallest,
            draw.fedbn.smallest / draw.fedavg.smallest if draw.fedavg.smallest > 0 else None,
            draw.fedavg.condition,
            draw.fedbn.condition,
            draw.slack,
        )
        for number, draw in enumerate(draws, start=1)
    ]
    return [*rows[:-1], ("equality example", *rows[-1][1:])]


def _train(cases: Sequence[synthetic.Case], inputs: Tensor, labels: Tensor, seeds: range) -> list[synthetic.Curves]:
    """Train all repeats in every setting, with a bar."""
    networks = [synthetic.draw_network(dimension=_DIMENSION, hidden=_HIDDEN, alpha=_ALPHA, seed=one) for one in seeds]
    stacked = {name: torch.stack([network[name] for network in networks]) for name in networks[0]}
    done, curves = 0, []
    with bar("training", sum(case.rounds * case.local_epochs for case in cases), has_lines=True) as advance:
        for case in cases:

            def on_round(case: synthetic.Case = case) -> None:
                nonlocal done
                done += case.local_epochs
                advance(done, f"{case.reduction}, E = {case.local_epochs}")

            curves.append(synthetic.train(case, inputs, labels, stacked, lr=_RATE, on_round=on_round))
    return curves


def _lines(cases: Sequence[synthetic.Case], curves: Sequence[synthetic.Curves]) -> list[tuple[Any, ...]]:
    """Every point of every curve."""
    return [
        (case.reduction, case.local_epochs, int(round), kind, method, client + 1, repeat, float(value))
        for case, found in zip(cases, curves, strict=True)
        for kind, losses in (("training", found.training), ("evaluation", found.evaluation))
        for repeat, of_repeat in enumerate(losses)
        for method, of_method in zip(synthetic.METHODS, of_repeat, strict=True)
        for client, of_client in enumerate(of_method)
        for round, value in zip(found.rounds, of_client, strict=True)
    ]


def _count(clients: tuple[toy.ToyClient, ...]) -> tuple[float, float, float]:
    """Shares of a grid of starts from which its own gamma gives client 1 the lower and the higher loss; mean gain."""
    starts = torch.cartesian_prod(torch.linspace(0.5, 12, 12), torch.linspace(0.5, 4, 8))
    averaged = toy.average_once(clients, starts, steps=200)
    gain = averaged.loss_shared - averaged.loss_kept
    lower, higher = float((gain > _MARGIN).double().mean()), float((gain < -_MARGIN).double().mean())
    return lower, higher, float(gain.mean())


def _ends(case: synthetic.Case, found: synthetic.Curves) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for kind, losses in (("training", found.training), ("evaluation", found.evaluation)):
        for client, last in enumerate(losses[..., -1].unbind(dim=2)):
            average, own = last.unbind(dim=1)
            gap = average - own
            numbers = (float(average.mean()), float(own.mean()), float(gap.mean()), float(gap.std()))
            rows.append((case.reduction, case.local_epochs, case.rounds, kind, client + 1, *numbers))
    return rows
