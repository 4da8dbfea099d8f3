"""Versions of installed packages, for the record."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

__all__ = ["versions"]


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package by name; "unknown" where none of that name is installed.

    >>> versions(["no-such-package"])
    {'no-such-package': 'unknown'}
    """
    return {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # installed under another name, as a nightly build may be
        return "unknown"
