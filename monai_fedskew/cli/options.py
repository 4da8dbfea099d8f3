"""Options shared by commands, each spelled once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from monai_fedskew.errors import ConfigError

if TYPE_CHECKING:
    from monai_fedskew.data.partition import Partition
    from monai_fedskew.federation.settings import Settings

__all__ = [
    "choose",
    "clients",
    "data",
    "fraction",
    "force",
    "local_epochs",
    "method",
    "min_sites",
    "optimizer_state",
    "out",
    "overrides",
    "partition",
    "partition_of",
    "partition_options",
    "prepared_as",
    "resume",
    "rounds",
    "run_options",
    "seed",
    "settings_of",
    "settings_options",
    "threads",
    "weights",
]

F = TypeVar("F", bound=Callable[..., Any])

data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder with one prepared folder per site, as `fedskew abide prepare` or `images prepare` writes it.",
)
out = click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write; must not exist.")
force = click.option("--force", is_flag=True, help="Replace an existing --out.")
resume = click.option("--resume", is_flag=True, help="Go on where --out stopped, bit for bit.")
method = click.option(
    "--method", required=True, help="For example fedbn, or fedrdn+fedbn+fedprox:mu=0.2; see `fedskew methods`."
)
seed = click.option("--seed", type=int, default=0, show_default=True, help="Seed; also picks the subject fold.")
prepared_as = click.option(
    "--prepared-as", metavar="NAME", help="The name its data were prepared under, where that is another."
)
rounds = click.option("--rounds", type=click.IntRange(1), help="Communication rounds.")
local_epochs = click.option("--local-epochs", type=click.IntRange(1), help="Epochs a site trains in each round. [1]")
fraction = click.option("--fraction", type=click.FloatRange(0, 1, min_open=True), help="Share of sites a round. [1]")
weights = click.option(
    "--weights",
    type=click.Choice(["samples", "groups", "equal"]),
    help="Weigh sites by training samples, by subjects (groups), or equally. [samples]",
)
choose = click.option(
    "--choose", type=click.Choice(["best", "last"]), help="Final model: best on validation data, or the last. [best]"
)
optimizer_state = click.option(
    "--optimizer-state",
    type=click.Choice(["reset", "keep"]),
    help="Start every round with a fresh optimizer, or keep its state at the site. [reset]",
)
min_sites = click.option("--min-sites", type=click.IntRange(1), help="Stop when fewer sites finish a round. [1]")
partition = click.option(
    "--partition",
    metavar="HOW",
    help="Pool the sites' rows and deal them to --clients: homogeneous, or dirichlet:alpha=0.5 for label skew. Or deal "
    "each site's own rows: by-site:parts=5, or by-site:parts=10,clients=2 for two of ten parts of each site.",
)
clients = click.option("--clients", type=click.IntRange(2), help="Number of clients of --partition.")
threads = click.option("--threads", type=click.IntRange(1, 1024), help="Torch threads; fixes results bit for bit. [1]")
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="ID=VALUE",
    help="Override a value of the bundle's configuration, e.g. --set batch_size=32. Repeatable.",
)


def settings_options(command: F) -> F:
    """Add the options that are Settings, but for the seed."""
    for option in (threads, min_sites, optimizer_state, choose, weights, fraction, local_epochs, rounds):
        command = option(command)
    return command


def partition_options(command: F) -> F:
    """Add the options that deal the sites' rows to clients; only the simulator can, as data stay at their sites."""
    return partition(clients(command))


def run_options(command: F) -> F:
    """Add the options of how a federation runs where the bundle is at hand: Settings, and overrides of the bundle."""
    return settings_options(overrides(command))


def settings_of(given: Mapping[str, Any]) -> "Settings":
    """Turn what was given for ``seed`` and ``settings_options`` into Settings.

    Raises:
        ConfigError: no rounds, or settings that cannot be.
    """
    from monai_fedskew.federation.settings import Settings

    if given["rounds"] is None:
        raise ConfigError("--rounds is missing; give the number of communication rounds, e.g. --rounds 20")
    return Settings(**{name: value for name, value in given.items() if value is not None})


def partition_of(partition: str | None, clients: int | None) -> "Partition | None":
    """Turn what was given for ``partition_options`` into a Partition; None where nothing was.

    Raises:
        ConfigError: one of the two without the other, or a partition that cannot be.
    """
    from monai_fedskew.data.partition import parse_partition

    if partition is None and clients is not None:
        raise ConfigError(f"--clients {clients} needs --partition, e.g. --partition dirichlet:alpha=0.5")
    return None if partition is None else parse_partition(partition, clients)
