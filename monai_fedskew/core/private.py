"""Where a site's private state is kept between rounds: the key it is filed under, and what a store must do."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from monai_fedskew.core.state import State
from monai_fedskew.errors import ConfigError

__all__ = ["StateKey", "Store"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # with fullmatch: `$` would let a newline pass
_HASH = re.compile(r"[0-9a-f]{64}")
_CHARACTERS = 100  # file systems allow 255 bytes, of which temporary names need some


@dataclass(frozen=True)
class StateKey:
    """Whose private state it is, and of which network.

    The names become folders and come from a server: only what can neither leave a folder nor hide in it is taken.

    Args:
        study: name of the study; letters, digits and ``. _ -``, the first a letter or digit, at most 100.
        run: id of this run of the study; the same rule.
        site: name of the site; the same rule.
        network: sha256 in lower-case hex over names, dtypes and shapes of the adapted network.

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
        for field in ("study", "run", "site"):
            value = getattr(self, field)
            if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > _CHARACTERS:
                shown = repr(value)
                raise ConfigError(
                    f"{field}={shown if len(shown) <= 60 else shown[:57] + '...'}: a name has letters a-z, digits and "
                    f". _ - only, starts with a letter or digit and has at most {_CHARACTERS} characters; rename it"
                )
        if not isinstance(self.network, str) or not _HASH.fullmatch(self.network):
            raise ConfigError(f"network={self.network!r:.60} must be a sha256 in lower-case hex, 64 digits")


class Store(Protocol):
    """Keeps private state by key and round; nothing in it ever leaves the site."""

    def read(self, key: StateKey, round: int) -> State:
        """Return the private state of exactly this round.

        Raises:
            StateError: there is none, or it was written by another network.
        """

    def write(self, key: StateKey, round: int, state: State, *, keep: Collection[int]) -> None:
        """Keep the state of a round, wholly or not at all; other rounds of the run that are not in ``keep`` go."""
