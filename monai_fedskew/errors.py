"""Errors of the package: each says what happened, where, the value seen and what to do."""

__all__ = ["ConfigError", "DataError", "FedSkewError", "RoundError", "StateError"]


class FedSkewError(Exception):
    """Base of all errors raised on purpose; the command line turns it into exit code 1."""


class ConfigError(FedSkewError, ValueError):
    """A wrong call: unknown method, parameter out of range, pieces that do not fit. Exit code 2."""


class DataError(FedSkewError, ValueError):
    """Input files that cannot be used: absent, truncated, edited, contradictory."""


class StateError(FedSkewError, ValueError):
    """Tensors that do not belong together: keys, shapes or dtypes differ."""


class RoundError(FedSkewError, ValueError):
    """A federated round that cannot be completed: too few sites, zero samples, non-finite updates."""
