"""Where a site's private state is kept between rounds: the key it is filed under, and what a store must do."""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from monai_fedskew.core.state import State, describe
from monai_fedskew.errors import ConfigError

__all__ = ["StateKey", "Store", "fingerprint", "require_folder_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # with fullmatch: `$` would let a newline pass
_HASH = re.compile(r"[0-9a-f]{64}")
_CHARACTERS = 100  # file systems allow 255 bytes, of which temporary names need some


def require_folder_name(what: str, name: object) -> str:
    """Return a name that comes from a server or the command line if it can become a folder, and no other.

    Raises:
        ConfigError: it has other characters than letters a-z, digits and ``. _ -``, or more than 100.

    >>> require_folder_name("study", "abide-2026")
    'abide-2026'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _CHARACTERS:
        raise ConfigError(
            f"{what}={_short(name)}: a name has letters a-z, digits and . _ - only, starts with a letter or digit and "
            f"has at most {_CHARACTERS} characters; rename it"
        )
    return name


@dataclass(frozen=True)
class StateKey:
    """Whose private state it is, and of which network.

    Args:
        study: name of the study; see ``require_folder_name``.
        run: id of this run of the study; the same rule.
        site: name of the site as its manifest has it: any letters, but nothing that leaves a folder or hides in it.
        network: ``fingerprint`` of the adapted network.

    Raises:
        ConfigError: a name that breaks the rule; field and value are named.

    >>> StateKey("abide", "2026-01-31", "NYU", "0" * 64).site
    'NYU'
    """

    study: str
    run: str
    site: str
    network: str

    def __post_init__(self) -> None:
        """Check the names."""
        require_folder_name("study", self.study)
        require_folder_name("run", self.run)
        site = self.site
        if not isinstance(site, str) or not site or site[0] == "." or not site.isprintable() or set(site) & set("/\\"):
            raise ConfigError(f"site={_short(site)}: cannot be the name of a folder; rename the site")
        if not isinstance(self.network, str) or not _HASH.fullmatch(self.network):
            raise ConfigError(f"network={_short(self.network)} must be a sha256 in lower-case hex, 64 digits")


def fingerprint(model: nn.Module) -> str:
    """Return a sha256 over names, dtypes and shapes of a network's entries, 64 digits in lower-case hex.

    >>> fingerprint(nn.Linear(1, 2)) == fingerprint(nn.Linear(1, 2)) != fingerprint(nn.Linear(2, 1))
    True
    """
    kinds = {key: describe(value) for key, value in model.state_dict().items()}
    return hashlib.sha256(json.dumps(kinds, sort_keys=True).encode()).hexdigest()


class Store(Protocol):
    """Keeps private state by key and round; nothing in it ever leaves the site."""

    def read(self, key: StateKey, round: int) -> State:
        """Return the private state of exactly this round.

        Raises:
            StateError: there is none, or it was written by another network.
        """

    def write(self, key: StateKey, round: int, state: State, *, keep: Collection[int]) -> None:
        """Keep the state of a round, wholly or not at all; other rounds of the run that are not in ``keep`` go."""


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
