"""``fedskew diagnose hessian|landscape``: curvature of a run's models on each site's own training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from monai_fedskew.cli import options

__all__ = ["hessian", "landscape"]

F = TypeVar("F", bound=Callable[..., Any])


def _run_options(command: F) -> F:
    for option in (
        click.argument("run", type=click.Path(path_type=Path)),
        click.option("--round", "which", type=click.Choice(["last", "best"]), default="last", show_default=True,
                     help="Which round's model: the last, or the best on validation data."),
        click.option("--data", type=click.Path(path_type=Path), help="Prepared sites, where they moved since the run."),
        click.option("--batches", type=click.IntRange(1), default=10, show_default=True, help="Batches at each site."),
        click.option("--only", multiple=True, metavar="NAME",
                     help="Only parameters whose names begin so. Repeatable.  [all]"),
        click.option("--iterations", type=click.IntRange(1), default=100, show_default=True,
                     help="Power iterations for an eigenvalue, at most."),
        click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of all draws."),
        options.force,
        options.out,
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(short_help="Eigenvalues, trace, H_N and H_D of a RUN's models.")
@_run_options
@click.option("--top", type=click.IntRange(1, 100), default=2, show_default=True, help="Eigenvalues of each site.")
@click.option("--probes", type=click.IntRange(2), default=100, show_default=True, help="Random vectors, at most.")
@click.option("--deflate", type=click.IntRange(0, 1000), default=20, show_default=True,
              help="Eigenpairs taken out of the diagonal's noise; 0 as in the papers.")  # fmt: skip
@click.option("--clients", type=click.Choice(["local", "received"]), default="local", show_default=True,
              help="H_N and H_D of each site's model after its next local epochs, or as it is received.")  # fmt: skip
@click.option("--form", type=click.Choice(["paper", "official"]), default="paper", show_default=True,
              help="paper: one entry a parameter, own data, pairs of two sites. official: one entry a tensor, all "
              "sites' data, pairs with itself too, as the public code.")  # fmt: skip
def hessian(run: Path, which: Literal["last", "best"], data: Path | None, out: Path, force: bool, **given: Any) -> None:
    """Eigenvalues, trace, H_N and H_D of a RUN: the second-order analysis of the FedAlign paper.

    RUN is what `fedskew simulate --out` wrote. Eigenvalues and trace are of the model as each site receives it, with
    the site's own private state; H_N and H_D compare the sites' models after the local epochs of the next round. The
    loss is the task's alone, in evaluation mode, on training data. Nothing in RUN is changed.
    """
    from monai_fedskew.cli.diagnose_curvature import Asked, hessian_diagnosis
    from monai_fedskew.cli.diagnose_models import open_round
    from monai_fedskew.cli.diagnose_output import claimed, publish

    claimed(out, force=force)
    models = open_round(run, which=which, data=data)
    publish(hessian_diagnosis(models, str(run), Asked(**given)), out)


@click.command(short_help="Loss around a RUN's model along two eigenvectors.")
@_run_options
@click.option("--site", "sites", multiple=True, help="Only these sites. Repeatable.  [all]")
@click.option("--points", type=click.IntRange(3), default=41, show_default=True, help="Along each axis; odd.")
@click.option("--reach", type=float, default=1.0, show_default=True,
              help="Half the side of the square, in units of length in weight space.")  # fmt: skip
def landscape(
    run: Path, which: Literal["last", "best"], data: Path | None, out: Path, force: bool, **given: Any
) -> None:
    """Loss around a RUN's model in the plane of its two top eigenvectors: figure 2 of the FedAlign paper.

    RUN is what `fedskew simulate --out` wrote; the model is the one each site receives, with its own private state.
    """
    from monai_fedskew.cli.diagnose_landscape import Asked, landscape_diagnosis
    from monai_fedskew.cli.diagnose_models import open_round
    from monai_fedskew.cli.diagnose_output import claimed, publish
    from monai_fedskew.core.ranges import require_number
    from monai_fedskew.errors import ConfigError

    require_number("diagnose landscape", "--reach", given["reach"], least=1e-6, most=1e6)
    if given["points"] % 2 == 0:
        raise ConfigError(f"--points {given['points']} must be odd, so that the model as it is lies in the middle")
    claimed(out, force=force)
    models = open_round(run, which=which, data=data)
    publish(landscape_diagnosis(models, str(run), Asked(**given)), out)
