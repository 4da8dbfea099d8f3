"""Randomness as a pure function of (seed, site, round, part): no stream depends on what ran before it."""

import hashlib

__all__ = ["derive"]


def derive(seed: int, site: str = "", round: int = 0, part: str = "") -> int:
    """Derive a 62-bit seed, the same on every machine and Python version.

    Args:
        seed: the seed of the run.
        site: name of the site, empty for the server.
        round: number of the round, from 1; 0 before the first.
        part: name of the part or purpose that draws.

    >>> derive(0, "NYU", 1) == derive(0, "NYU", 1), derive(0, "NYU", 1) == derive(0, "NYU", 2)
    (True, False)
    """
    text = f"{seed}|{site}|{round}|{part}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2
