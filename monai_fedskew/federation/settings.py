"""How a federation runs, whatever the method and the engine."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from monai_fedskew.errors import ConfigError

__all__ = ["Settings", "Weighing"]

_THREADS = 1024  # torch ends the process at numbers that no machine has, and a site's come from the server
Weighing = Literal["samples", "groups", "equal"]


@dataclass(frozen=True)
class Settings:
    """Settings of a run; the same on all engines and recorded in run.json.

    Args:
        rounds: communication rounds, at least 1.
        local_epochs: epochs a site trains in each round, at least 1 (E in the papers).
        seed: seed of everything random, at most 63 bits.
        weights: how updates are weighed: by training "samples" (windows, images), by "groups" (subjects) or "equal".
        fraction: share of the sites sampled in each round, in (0, 1].
        optimizer_state: "reset" starts each round with a fresh optimizer, "keep" carries its tensors at the site.
        min_sites: fewer accepted updates than this stop the run, at least 1.
        non_finite: "exclude" leaves out an update with NaN or infinity, "error" stops the run.
        choose: which model is final: the "best" mean validation score over sites, or the "last".
        threads: torch threads, 1 to 1024; bit-equality holds between runs with the same number.

    Raises:
        ConfigError: a value out of range.
    """

    rounds: int
    local_epochs: int = 1
    seed: int = 0
    weights: Weighing = "samples"
    fraction: float = 1.0
    optimizer_state: Literal["reset", "keep"] = "reset"
    min_sites: int = 1
    non_finite: Literal["exclude", "error"] = "exclude"
    choose: Literal["best", "last"] = "best"
    threads: int = 1

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("rounds", "local_epochs", "min_sites", "threads", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or (value < 1 and name != "seed"):
                least = "" if name == "seed" else ", at least 1"
                raise ConfigError(f"{name}={value!r} must be a whole number{least}")
        if abs(self.seed) >= 2**63:
            raise ConfigError(f"seed={self.seed} must have at most 63 bits, which is what engines can send")
        if self.threads > _THREADS:
            raise ConfigError(f"threads={self.threads} must be at most {_THREADS}")
        if not isinstance(self.fraction, int | float):
            raise ConfigError(f"fraction={self.fraction!r} must be a number above 0 and at most 1")
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name}={getattr(self, name)!r} must be one of {', '.join(get_args(kind))}")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction={self.fraction} must be above 0 and at most 1")

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return asdict(self)
