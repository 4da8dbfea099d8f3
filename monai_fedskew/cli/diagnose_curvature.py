"""The second-order diagnosis of a run's models, from sites to tables and figures."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Literal

import torch

from monai_fedskew.analysis.curvature_plots import plot_hessian
from monai_fedskew.analysis.hessian import Diagonal, diagonal, top_eigenpairs, trace
from monai_fedskew.analysis.objective import Objective, mean_loss
from monai_fedskew.analysis.sites import hessian_direction, hessian_norm_difference
from monai_fedskew.cli.diagnose_models import Batches, Counter, RoundModels, draw_batches, enough_memory, objective_of
from monai_fedskew.cli.diagnose_output import Diagnosis, Picture, Sheet
from monai_fedskew.cli.progress import bar
from monai_fedskew.core.seeding import derive
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.client import Client

__all__ = ["Asked", "hessian_diagnosis"]

ALL = "all sites"
_ROUGH = 10  # iterations for a pair that is only taken out of the diagonal's noise
_NOISY = 0.5  # of a diagonal's estimated norm^2, above which it is told
_HESSIAN_NOTES = (
    "Quantities of different networks, data or batch sizes cannot be compared. The paper's figures (FedAvg: lambda_max "
    "297, H_T 6240, H_N 11360, H_D 0.98) are of ResNet-56 on CIFAR-100 with labels that differ between clients.",
    "The estimated diagonal contains the noise of its probes, which makes ||Diag H|| too large and pulls H_D to 0; the "
    "corrected figures take it out. More probes (--probes) and more --deflate make it smaller.",
    "BatchNorm is used with its running statistics, dropout is off, and a normalisation is that of evaluation. The "
    "loss is the task's; terms that a method adds to it are left out.",
    "A small eigenvalue goes with a flat minimum in these coordinates only: with BatchNorm, weights can be rescaled "
    "without changing the network, and the eigenvalues with them. That flatness causes accuracy does not follow.",
)


@dataclass(frozen=True)
class Asked:
    """The options of `fedskew diagnose hessian`, by their names."""

    batches: int
    only: tuple[str, ...]
    iterations: int
    seed: int
    top: int
    probes: int
    deflate: int
    clients: Literal["local", "received"]
    form: Literal["paper", "official"]


def hessian_diagnosis(models: RoundModels, run: str, asked: Asked) -> Diagnosis:
    """Eigenvalues and trace of the received model, H_N and H_D of the sites' models."""
    n = len(models.sources)
    steps = (n + 1) * (asked.top * asked.iterations + asked.probes) + n * (asked.probes + asked.deflate * _ROUGH)
    with ExitStack() as stack, bar("products with the Hessian", steps, has_lines=True) as advance:
        count = Counter(advance)
        opened: dict[str, Client] = {}
        for name in models.sources:
            opened[name] = models.client(name)
            stack.callback(opened[name].close)
        drawn = {name: draw_batches(client, asked.batches) for name, client in opened.items()}
        objectives = {name: objective_of(client, drawn[name], asked.only) for name, client in opened.items()}
        if (joined := _joined(opened, drawn, asked.only)) is not None:
            objectives[ALL] = joined
        values = {name: _spectral(name, objective, asked, count) for name, objective in objectives.items()}
        diagonals = {}
        for name, client in opened.items():
            if asked.clients == "local":
                client.fit(models.cast)
            data = drawn[name] if asked.form == "paper" else [pair for every in drawn.values() for pair in every]
            diagonals[name] = _diagonal(name, objective_of(client, data, asked.only), asked, count)
    pairs, between = _pairs(diagonals, asked.form)
    return Diagnosis(
        title=f"Curvature of {models.method.name}, round {models.round}",
        summary=_summary(between, asked, models.round),
        settings={"run": run, "round": models.round, "method": models.method.name, **asdict(asked)},
        values={"sites": values, "pairs": pairs, **between},
        sheets=_sheets(values, diagonals, pairs, asked),
        pictures=[
            Picture(
                "hessian",
                plot_hessian(values, {(p["site"], p["other"]): p["H_D"] for p in pairs}, sites=list(diagonals)),
                "Left, middle: the received model at each site. Right: cosine of the diagonals of two sites' models.",
            )
        ],
        notes=(*_HESSIAN_NOTES, *_of_noise(diagonals), *_of_all(models, ALL in objectives)),
    )


def _spectral(name: str, objective: Objective, asked: Asked, count: Counter) -> dict[str, Any]:
    """Eigenvalues and trace of one model."""
    if asked.top > objective.size:
        raise ConfigError(f"--top {asked.top}: only {objective.size} parameters are looked at")
    with enough_memory(name):
        count.note = f"{name}, eigenvalues"
        pairs = top_eigenpairs(objective, asked.top, max_iterations=asked.iterations, seed=asked.seed, on_step=count)
        count.note = f"{name}, trace"
        found = trace(objective, known=pairs, max_probes=asked.probes, seed=asked.seed, on_step=count)
    return {
        "loss": mean_loss(objective),
        "examples": sum(len(inputs) for inputs, _ in objective.batches),
        "parameters": objective.size,
        "eigenvalues": [pair.value for pair in pairs],
        "iterations": [pair.iterations for pair in pairs],
        "has_converged": [pair.has_converged for pair in pairs],
        "trace": found.value,
        "trace_standard_error": found.standard_error,
        "trace_probes": found.probes,
    }


def _diagonal(name: str, objective: Objective, asked: Asked, count: Counter) -> Diagonal:
    """Estimate one model's diagonal, with probes of the site's own."""
    count.note, k = f"{name}, diagonal", min(asked.deflate, objective.size)
    with enough_memory(name):
        known = top_eigenpairs(objective, k, max_iterations=_ROUGH, seed=asked.seed, on_step=count) if k else ()
        return diagonal(
            objective,
            form="parameter" if asked.form == "paper" else "tensor",
            known=known,
            max_probes=asked.probes,
            seed=derive(asked.seed, name, part="diagonal") % 2**31,
            on_step=count,
        )


def _sheets(
    values: Mapping[str, Mapping[str, Any]],
    diagonals: Mapping[str, Diagonal],
    pairs: list[dict[str, Any]],
    asked: Asked,
) -> list[Sheet]:
    eigen = [f"eigenvalue {k + 1}" for k in range(asked.top)]
    rows = [
        (
            *(name, one["loss"], one["examples"], *one["eigenvalues"], one["trace"], one["trace_standard_error"]),
            "yes" if all(one["has_converged"]) else "not all",
        )
        for name, one in values.items()
    ]
    columns = ("model at", "loss", "examples", *eigen, "trace H_T", "its error", "eigenvalues converged")
    estimates = [(name, d.norm, d.corrected_norm, d.noise, d.probes) for name, d in diagonals.items()]
    sheets = [
        Sheet("sites", "The received model on training data", columns, rows),
        Sheet(
            "diagonals",
            f"Norms of the diagonals of the {asked.clients} models",
            ("site", "norm", "corrected", "noise", "probes"),
            estimates,
        ),
    ]
    if pairs:
        sheets.append(Sheet("pairs", "Pairs of sites", tuple(pairs[0]), [tuple(pair.values()) for pair in pairs]))
    return sheets


def _joined(opened: Mapping[str, Client], drawn: Mapping[str, Batches], only: tuple[str, ...]) -> Objective | None:
    """The loss over all sites' batches, where all sites hold one and the same model and loss."""
    clients = list(opened.values())
    losses: list[dict[str, torch.Tensor]] = [
        getattr(client.site.loss_function, "state_dict", dict)() for client in clients
    ]
    is_one = all(
        losses[0].keys() == other.keys() and all(torch.equal(losses[0][key], other[key]) for key in other)
        for other in losses[1:]
    )
    if len(clients) < 2 or not is_one or any(client.kept for client in clients):
        return None
    return objective_of(clients[0], [pair for batches in drawn.values() for pair in batches], only)


def _pairs(
    diagonals: Mapping[str, Diagonal], form: Literal["paper", "official"]
) -> tuple[list[dict[str, Any]], dict[str, float | None]]:
    found = []
    for (name, one), (other, two) in combinations(diagonals.items(), 2):
        measured = {
            f"{key}{' corrected' if corrected else ''}": function([one, two], corrected=corrected)
            for corrected in (False, True)
            for key, function in (("H_N", hessian_norm_difference), ("H_D", hessian_direction))
        }
        found.append({"site": name, "other": other, **measured})
    if not found:
        return [], {}
    every, itself = list(diagonals.values()), form == "official"
    return found, {
        "H_N": hessian_norm_difference(every, include_self=itself),
        "H_D": hessian_direction(every, include_self=itself),
        "H_N_corrected": hessian_norm_difference(every, include_self=itself, corrected=True),
        "H_D_corrected": hessian_direction(every, include_self=itself, corrected=True),
    }


def _summary(between: Mapping[str, float | None], asked: Asked, round: int) -> str:
    if not between:
        return "One site trains, so there are no pairs of sites and neither H_N nor H_D."
    when = (
        f"after the local epochs of round {round + 1}"
        if asked.clients == "local"
        else f"as received after round {round}"
    )
    told = {key: "no value (noise)" if value is None else f"{value:.4g}" for key, value in between.items()}
    return (
        f"Over pairs of the sites' models {when}, {asked.form} form: H_N {told['H_N']} (corrected for noise "
        f"{told['H_N_corrected']}), H_D {told['H_D']} (corrected {told['H_D_corrected']})."
    )


def _of_noise(diagonals: Mapping[str, Diagonal]) -> list[str]:
    shares = {name: (d.noise / d.norm) ** 2 for name, d in diagonals.items() if d.norm}
    noisy = [f"{name} {share:.0%}" for name, share in shares.items() if share > _NOISY]
    told = f"Of the squared norm of the diagonal, noise makes up: {', '.join(noisy)}. The plain H_N and H_D say little."
    return [told] if noisy else []


def _of_all(models: RoundModels, is_there: bool) -> list[str]:
    if is_there or len(models.sources) < 2:
        return []
    return [
        f"There is no row for all sites together: with {models.method.name} each site has its own model or loss, so "
        "there is no one network whose lambda_max and H_T could be taken over all data, as in the paper's table 1."
    ]
