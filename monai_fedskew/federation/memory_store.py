"""A Store in memory: private state that lives as long as its process, for the simulator."""

from collections.abc import Collection

from monai_fedskew.core.private import StateKey
from monai_fedskew.core.state import State
from monai_fedskew.errors import StateError

__all__ = ["MemoryStore"]


class MemoryStore:
    """Keeps private state by site and round, of one run of one study; see Store.

    >>> store, key = MemoryStore(), StateKey("study", "run", "NYU", "0" * 64)
    >>> store.write(key, 1, {}, keep=())
    >>> store.write(key, 2, {}, keep=(1,))
    >>> sorted(store.states["NYU"])
    [1, 2]
    """

    def __init__(self) -> None:
        self.states: dict[str, dict[int, State]] = {}

    def read(self, key: StateKey, round: int) -> State:
        """Return the private state of a round; StateError if there is none."""
        try:
            return self.states[key.site][round]
        except KeyError:
            raise StateError(f"site {key.site}: no private state of round {round}") from None

    def write(self, key: StateKey, round: int, state: State, *, keep: Collection[int]) -> None:
        """Keep the private state of a round; other rounds that are not in ``keep`` go."""
        held = self.states.get(key.site, {})
        self.states[key.site] = {old: value for old, value in held.items() if old in keep} | {round: state}
