"""``fedskew diagnose``: what the papers measure beside accuracy, each with plots, numbers and what does not follow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from monai_fedskew.cli import options
from monai_fedskew.cli.diagnose_run import hessian, landscape

__all__ = ["diagnose"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def diagnose() -> None:
    """Measure curvature, Gram matrices and toy problems, as the papers do.

    Each command writes --out: PNG figures, CSV tables, result.json with all numbers, and index.html with all of it.
    """


diagnose.add_command(hessian)
diagnose.add_command(landscape)


def _own_options(command: F) -> F:
    seed = click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of all draws.")
    return seed(options.out(options.force(command)))


@diagnose.command(short_help="cos(w x) at two clients: FedBN, figures 1 and 2.")
@click.option("--scale", "scales", type=(float, float), default=(1.0, 2.0), show_default=True, help="Of x, by client.")
@click.option("--w-true", type=float, default=2.0, show_default=True, help="The parameter to be found.")
@click.option("--noise", type=float, default=0.1, show_default=True, help="On y, standard deviation.")
@click.option("--samples", type=click.IntRange(2), default=500, show_default=True, help="Examples a client.")
@_own_options
def toy(**given: Any) -> None:
    """Draw the loss of cos(w x) at two clients: figures 1 and 2 of the FedBN paper."""
    from monai_fedskew.cli.diagnose_output import claimed, publish
    from monai_fedskew.cli.diagnose_theory import toy_diagnosis

    out, force = given.pop("out"), given.pop("force")
    claimed(out, force=force)
    publish(toy_diagnosis(**given), out)


@diagnose.command(short_help="Gram matrices of FedAvg and FedBN.")
@click.option("--draws", type=click.IntRange(1, 1000), default=5, show_default=True, help="Pairs of clients drawn.")
@click.option("--points", type=click.IntRange(1, 2000), default=50, show_default=True, help="Examples a client.")
@click.option("--dimension", type=click.IntRange(1, 10_000), default=10, show_default=True, help="Of an example.")
@click.option("--correlation", type=float, default=0.5, show_default=True, help="Of client 2's features.")
@click.option("--alpha", type=float, default=1.0, show_default=True, help="Standard deviation of the first weights.")
@_own_options
def gram(**given: Any) -> None:
    """Compare the Gram matrices of FedAvg and FedBN, on which the FedBN paper's rate of convergence rests."""
    from monai_fedskew.cli.diagnose_output import claimed, publish
    from monai_fedskew.cli.diagnose_theory import gram_diagnosis

    out, force = given.pop("out"), given.pop("force")
    claimed(out, force=force)
    publish(gram_diagnosis(**given), out)


@diagnose.command(short_help="FedAvg and FedBN on Gaussians: FedBN, appendix F.")
@click.option("--repeats", type=click.IntRange(2, 100), default=3, show_default=True, help="Draws of data and network.")
@click.option("--samples", type=click.IntRange(2), default=200, show_default=True, help="Of each class at a client.")
@click.option("--correlation", type=float, default=0.9, show_default=True, help="In client 2's second covariance.")
@click.option("--shorten", type=click.IntRange(1), default=1, show_default=True, help="Divide all rounds by this.")
@_own_options
def synthetic(out: Path, force: bool, **given: Any) -> None:
    """Train FedAvg and FedBN on two clients of Gaussians: appendix F of the FedBN paper. A minute or two."""
    from monai_fedskew.cli.diagnose_output import claimed, publish
    from monai_fedskew.cli.diagnose_theory import synthetic_diagnosis

    claimed(out, force=force)
    publish(synthetic_diagnosis(**given), out)
