"""Which site a process is, when one process trains one site."""

import os
from collections.abc import Sequence

from monai_fedskew.errors import ConfigError

__all__ = ["site_of_rank"]


def site_of_rank(sites: Sequence[str]) -> str:
    """Return the site of this process under torchrun: rank k is site k.

    Args:
        sites: one name a process, sorted, so that rank 0 is the first by name.

    Raises:
        ConfigError: not started by torchrun, or with another number of processes than there are sites.

    Example:
        >>> import os
        >>> os.environ |= {"RANK": "1", "WORLD_SIZE": "2"}
        >>> site_of_rank(["EAST", "WEST"])
        'WEST'
        >>> del os.environ["RANK"], os.environ["WORLD_SIZE"]
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ConfigError(
            f"no RANK in the environment; start one process a site: torchrun --nproc-per-node {len(sites)}"
        )
    processes = int(os.environ["WORLD_SIZE"])
    if processes != len(sites):
        raise ConfigError(
            f"{processes} processes for {len(sites)} sites ({', '.join(sites)}); start torchrun --nproc-per-node "
            f"{len(sites)}, or name the sites: --sites \"['A','B']\""
        )
    if list(sites) != sorted(sites):
        raise ConfigError(f"sites {', '.join(sites)} must be sorted: the first by name gives the first weights")
    return sites[int(os.environ["RANK"])]
