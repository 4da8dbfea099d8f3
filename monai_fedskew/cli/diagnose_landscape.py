"""The loss landscapes of a run's models, from sites to tables and figures."""

from collections.abc import Mapping
from typing import Any

from monai_fedskew.analysis.curvature_plots import plot_landscape
from monai_fedskew.analysis.hessian import top_eigenpairs
from monai_fedskew.analysis.landscape import loss_landscape
from monai_fedskew.cli.diagnose_models import Counter, RoundModels, draw_batches, enough_memory, objective_of
from monai_fedskew.cli.diagnose_output import Diagnosis, Picture, Sheet
from monai_fedskew.cli.progress import bar
from monai_fedskew.errors import ConfigError

__all__ = ["landscape_diagnosis"]

_LANDSCAPE_NOTES = (
    "The two directions have length 1, so a step is a distance in weight space; networks with larger weights look "
    "flatter for that reason alone. Each site has its own directions.",
    "Training data in evaluation mode, the task's loss alone. Two directions of thousands show little of the whole.",
)


def landscape_diagnosis(
    models: RoundModels,
    settings: Mapping[str, Any],
    *,
    batches: int,
    only: tuple[str, ...],
    iterations: int,
    seed: int,
    sites: tuple[str, ...],
    points: int,
    reach: float,
) -> Diagnosis:
    """A landscape for each site."""
    for name in sites:
        if name not in models.sources:
            raise ConfigError(f"--site {name}: the run has {', '.join(models.sources)}")
    chosen = [name for name in models.sources if name in sites or not sites]
    values, rows, sheets, pictures = {}, [], [], []
    with bar("landscape", len(chosen) * (2 * iterations + points), has_lines=True) as advance:
        for number, name in enumerate(chosen):
            count = Counter(advance, done=number * (2 * iterations + points))
            client = models.client(name)
            objective = objective_of(client, draw_batches(client, batches), only)
            count.note = f"{name}, eigenvectors"
            with enough_memory(name):
                first, second = top_eigenpairs(objective, 2, max_iterations=iterations, seed=seed, on_step=count)
            count.note, count.done = f"{name}, grid", number * (2 * iterations + points) + 2 * iterations
            found = loss_landscape(objective, first.vector, second.vector, points=points, reach=reach, on_row=count)
            client.close()
            along = found.steps_along.tolist()
            grid = [
                (up, right, float(found.losses[a, b])) for a, up in enumerate(along) for b, right in enumerate(along)
            ]
            rows.append((name, first.value, second.value, found.centre, float(found.losses.min()),
                         float(found.losses.max())))  # fmt: skip
            sheets.append(Sheet(f"landscape_{name}", name, ("first", "second", "loss"), grid, is_long=True))
            pictures.append(
                Picture(
                    f"landscape_{name}",
                    plot_landscape(found, f"{name}: eigenvalues {first.value:.3g} and {second.value:.3g}"),
                    f"Site {name}: loss on its own training data around the received model.",
                )
            )
            values[name] = {"eigenvalues": [first.value, second.value], "axis": along, "losses": found.losses.tolist()}
    columns = ("site", "eigenvalue 1", "eigenvalue 2", "loss in the middle", "smallest", "largest")
    full = {
        **settings,
        "method": models.method.name,
        "batches": batches,
        "only": only,
        "iterations": iterations,
        "points": points,
        "reach": reach,
        "seed": seed,
    }
    return Diagnosis(
        title=f"Loss landscape of {models.method.name}, round {models.round}",
        summary=f"Loss over {points} x {points} points, up to {reach:g} along each of the two top eigenvectors.",
        settings=full,
        values=values,
        sheets=[Sheet("sites", "Landscapes", columns, rows), *sheets],
        pictures=pictures,
        notes=_LANDSCAPE_NOTES,
    )
