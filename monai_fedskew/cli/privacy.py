"""``fedskew privacy``: what FedRDN's clipping and noise cost, before a study is planned with them."""

import click

__all__ = ["privacy"]

_COUNT = click.IntRange(1, 10**12)
_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6)
_SUBJECTS = (20, 50, 100, 200, 500, 1000)


@click.command()
@click.option("--noise", type=float, required=True, help="As in fedrdn:clip=...,noise=NOISE.")
@click.option(
    "--clip",
    type=click.FloatRange(1e-30, 1e30),
    default=1.0,
    show_default=True,
    help="As in fedrdn:clip=CLIP; the inputs' unit.",
)
@click.option("--delta", type=float, multiple=True, help="Chance that the bound fails; may be repeated.")
@click.option("--releases", type=_COUNT, default=1, show_default=True, help="Runs that draw from the same subjects.")
@click.option(
    "--channels", type=_COUNT, default=1, show_default=True, help="Channels of an image, features of a vector."
)
@click.option("--subjects", type=_COUNT, multiple=True, help="Training subjects of a site; may be repeated.")
def privacy(
    noise: float, clip: float, delta: tuple[float, ...], releases: int, channels: int, subjects: tuple[int, ...]
) -> None:
    """Say what the noise on FedRDN's table costs in privacy and in precision.

    Privacy: epsilon of (epsilon, delta) differential privacy of one subject (all its examples replaced by anything)
    against whoever reads the table. It covers the table only: neither the weights nor the counts.

    Precision: the standard deviation that the noise adds to each mean of a site, beside the clip that bounds its size.
    """
    from rich.console import Console
    from rich.table import Table

    from monai_fedskew.transforms import GaussianRelease, privacy_cost

    cost = Table("delta", "epsilon")
    for value in delta or _DELTAS:
        cost.add_row(f"{value:g}", f"{privacy_cost(noise, value, releases):.2f}")
    release = GaussianRelease(clip, noise)
    precision = Table("Subjects", "Noise on each mean", "In % of clip", "The table")
    for number in subjects or _SUBJECTS:
        deviation = release.deviation(channels, number)
        said = "drowned in noise" if deviation > clip / 2 else "coarse" if deviation > clip / 10 else "usable"
        precision.add_row(f"{number}", f"{deviation:.3g}", f"{100 * deviation / clip:.1f}", said)
    console = Console()
    runs = "once" if releases == 1 else f"{releases} times"
    console.print(f"Privacy of one subject, table drawn {runs} with noise={noise:g}:", highlight=False)
    console.print(cost)
    console.print(f"Precision with clip={clip:g} and channels={channels}, a site at a time:", highlight=False)
    console.print(precision)
