"""The loss landscapes of a run's models, from sites to tables and figures."""

from dataclasses import asdict, dataclass

from monai_fedskew.analysis.curvature_plots import plot_landscape
from monai_fedskew.analysis.hessian import top_eigenpairs
from monai_fedskew.analysis.landscape import Landscape, loss_landscape
from monai_fedskew.cli.diagnose_models import Counter, RoundModels, draw_batches, enough_memory, objective_of
from monai_fedskew.cli.diagnose_output import Diagnosis, Picture, Sheet
from monai_fedskew.cli.progress import bar
from monai_fedskew.errors import ConfigError

__all__ = ["Asked", "landscape_diagnosis"]

_LANDSCAPE_NOTES = (
    "The two directions have length 1, so a step is a distance in weight space; networks with larger weights look "
    "flatter for that reason alone. Each site has its own directions.",
    "Training data in evaluation mode, the task's loss alone. Two directions of thousands show little of the whole.",
)


@dataclass(frozen=True)
class Asked:
    """The options of `fedskew diagnose landscape`, by their names."""

    batches: int
    only: tuple[str, ...]
    iterations: int
    seed: int
    sites: tuple[str, ...]
    points: int
    reach: float


@dataclass(frozen=True)
class _Found:
    """One site's landscape, with the eigenvalues along its axes."""

    landscape: Landscape
    eigenvalues: tuple[float, float]


def landscape_diagnosis(models: RoundModels, run: str, asked: Asked) -> Diagnosis:
    """A landscape for each site."""
    for name in asked.sites:
        if name not in models.sources:
            raise ConfigError(f"--site {name}: the run has {', '.join(models.sources)}")
    chosen = [name for name in models.sources if name in asked.sites or not asked.sites]
    steps = 2 * asked.iterations + asked.points
    with bar("landscape", len(chosen) * steps, has_lines=True) as advance:
        found = {name: _of_site(models, name, asked, Counter(advance, done=k * steps)) for k, name in enumerate(chosen)}
    rows = [
        (name, *one.eigenvalues, one.landscape.centre, *(float(end) for end in one.landscape.losses.aminmax()))
        for name, one in found.items()
    ]
    columns = ("site", "eigenvalue 1", "eigenvalue 2", "loss in the middle", "smallest", "largest")
    return Diagnosis(
        title=f"Loss landscape of {models.method.name}, round {models.round}",
        summary=f"Loss over {asked.points} x {asked.points} points, up to {asked.reach:g} along each of the two top "
        "eigenvectors.",
        settings={"run": run, "round": models.round, "method": models.method.name, **asdict(asked)},
        values={
            name: {
                "eigenvalues": one.eigenvalues,
                "axis": one.landscape.steps_along.tolist(),
                "losses": one.landscape.losses.tolist(),
            }
            for name, one in found.items()
        },
        sheets=[Sheet("sites", "Landscapes", columns, rows), *(_grid(name, one) for name, one in found.items())],
        pictures=[_picture(name, one) for name, one in found.items()],
        notes=_LANDSCAPE_NOTES,
    )


def _of_site(models: RoundModels, name: str, asked: Asked, count: Counter) -> _Found:
    client, start = models.client(name), count.done
    try:
        objective = objective_of(client, draw_batches(client, asked.batches), asked.only)
        count.note = f"{name}, eigenvectors"
        with enough_memory(name):
            first, second = top_eigenpairs(
                objective, 2, max_iterations=asked.iterations, seed=asked.seed, on_step=count
            )
        count.note, count.done = f"{name}, grid", start + 2 * asked.iterations
        directions = first.vector, second.vector
        drawn = loss_landscape(objective, *directions, points=asked.points, reach=asked.reach, on_row=count)
    finally:
        client.close()
    if lost := int((~drawn.losses.isfinite()).sum()):
        raise ConfigError(
            f"site {name}: the loss is not finite at {lost} of {drawn.losses.numel()} points up to --reach "
            f"{asked.reach:g}; take a smaller one"
        )
    return _Found(drawn, (first.value, second.value))


def _grid(name: str, found: _Found) -> Sheet:
    along, losses = found.landscape.steps_along.tolist(), found.landscape.losses
    rows = [(up, right, float(losses[a, b])) for a, up in enumerate(along) for b, right in enumerate(along)]
    return Sheet(f"landscape_{name}", name, ("first", "second", "loss"), rows, is_long=True)


def _picture(name: str, found: _Found) -> Picture:
    one, two = found.eigenvalues
    figure = plot_landscape(found.landscape, f"{name}: eigenvalues {one:.4g} and {two:.4g}")
    caption = f"Site {name}: loss on its own training data around the received model."
    return Picture(f"landscape_{name}", figure, caption)
