"""Samples dealt to many clients: one pool by labels in unequal shares (Dirichlet) or evenly, or each site's own."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monai_fedskew.core.ranges import require_number, require_whole
from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Partition", "dirichlet_partition", "homogeneous_partition", "parse_partition"]

Rows = NDArray[np.int64]
_DRAWS = 2000


@dataclass(frozen=True)
class Partition:
    """How samples are dealt to clients.

    Args:
        kind: "homogeneous" gives every client the same share of each class of a pool of all sites; "dirichlet" draws
            the shares; "by-site" deals each site's samples evenly to clients of its own, so that a client keeps the
            features of one site.
        clients: number of clients, at least 2; by site those of each site that take part, at least 1.
        alpha: concentration of the Dirichlet distribution, above 0; None for the other kinds.
        parts: by site, the number of parts that each site is cut into, at least ``clients``. With fewer clients than
            parts the other parts are left out: so clients are added one by one to a federation, each as large as
            before (Li et al. 2021, FedBN, ICLR, arXiv 2102.07623, study of heterogeneity). None for the other kinds.

    Raises:
        ConfigError: a value out of range, or one that the kind does not take.

    Example:
        >>> Partition("dirichlet", 3, alpha=0.5).names
        ('client01', 'client02', 'client03')
        >>> Partition("by-site", 2, parts=10).names_at("NYU")
        ('NYU-01', 'NYU-02')
    """

    kind: Literal["homogeneous", "dirichlet", "by-site"]
    clients: int
    alpha: float | None = None
    parts: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        least = 1 if self.kind == "by-site" else 2
        if isinstance(self.clients, bool) or not isinstance(self.clients, int) or self.clients < least:
            raise ConfigError(f"clients={self.clients!r} must be a whole number, at least {least}")
        for name, value, kind in (("alpha", self.alpha, "dirichlet"), ("parts", self.parts, "by-site")):
            if value is not None and self.kind != kind:
                raise ConfigError(f"partition {self.kind}: takes no {name}, got {value!r}")
        if self.kind == "dirichlet":
            require_number("partition dirichlet", "alpha", self.alpha, above=0)
        if self.kind == "by-site":
            require_whole("partition by-site", "parts", 0 if self.parts is None else self.parts, self.clients)

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        if self.parts is not None:
            return f"by-site:parts={self.parts}" + f",clients={self.clients}" * self.leaves_rows_out
        return self.kind if self.alpha is None else f"{self.kind}:alpha={self.alpha:g}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients of a pool; sorted they are in order of their numbers."""
        return tuple(f"client{number}" for number in self._numbers)

    @property
    def leaves_rows_out(self) -> bool:
        """Whether some training rows are at no client."""
        return self.parts is not None and self.clients < self.parts

    def names_at(self, site: str) -> tuple[str, ...]:
        """Names of the clients of one site; sorted they are in order of their numbers."""
        return tuple(f"{site}-{number}" for number in self._numbers)

    def deal(self, labels: ArrayLike, *, seed: int, groups: ArrayLike | None = None) -> tuple[Rows, ...]:
        """Deal samples, by site those of one; see the function of the kind."""
        if self.alpha is None:
            return homogeneous_partition(labels, self.parts or self.clients, seed=seed, groups=groups)[: self.clients]
        return dirichlet_partition(labels, self.clients, self.alpha, seed=seed, groups=groups)

    @property
    def _numbers(self) -> tuple[str, ...]:
        digits = max(2, len(str(self.clients)))
        return tuple(f"{number:0{digits}}" for number in range(1, self.clients + 1))


def parse_partition(text: str, clients: int | None) -> Partition:
    """Read ``homogeneous``, ``dirichlet:alpha=0.5``, ``by-site:parts=5`` or ``by-site:parts=10,clients=2``.

    Args:
        text: what follows ``--partition``.
        clients: what follows ``--clients``.

    Raises:
        ConfigError: none of these, no number of clients or one too many, or a value out of range.

    Example:
        >>> parse_partition("dirichlet:alpha=0.5", 16).clients
        16
        >>> parse_partition("by-site:parts=5", None)
        Partition(kind='by-site', clients=5, alpha=None, parts=5)
    """
    kind, _, argument = text.partition(":")
    if kind == "by-site":
        return _by_site(text, argument, clients)
    if clients is None:
        raise ConfigError(f"--partition {text} needs the number of clients, e.g. --clients 16")
    name, _, value = argument.partition("=")
    if text == "homogeneous":
        return Partition("homogeneous", clients)
    if kind != "dirichlet" or name != "alpha":
        raise ConfigError(
            f"--partition {text!r} must be homogeneous, or dirichlet with its alpha: dirichlet:alpha=0.5, or by-site "
            "with its parts: by-site:parts=5"
        )
    try:
        alpha = float(value)
    except ValueError:
        raise ConfigError(f"--partition {text}: alpha={value!r} must be a number above 0") from None
    return Partition("dirichlet", clients, alpha)


def dirichlet_partition(
    labels: ArrayLike,
    n_clients: int,
    alpha: float,
    *,
    seed: int,
    groups: ArrayLike | None = None,
    min_samples: int = 10,
) -> tuple[Rows, ...]:
    """Deal samples with label skew: for each class the clients' shares are drawn from Dir(alpha).

    For each class c: p ~ Dir(alpha, ..., alpha); p_k = 0 for a client that already holds N / K samples or more; p is
    renormalised and the shuffled samples of c are cut in these proportions. All classes are drawn again until every
    client has ``min_samples``, at most 2000 times.

    Paper: Mendieta et al. 2022, Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning (FedAlign),
    arXiv 2111.14213, section 4.1; the rule of N / K and the smallest client are those of its public code.

    Args:
        labels: class of each sample, shape (n,).
        n_clients: number of clients K.
        alpha: concentration, above 0: small is skewed, large approaches equal shares.
        seed: of the draws.
        groups: subject of each sample, shape (n,); whole subjects are dealt out. None deals single samples.
        min_samples: fewest samples of a client, at least 1.

    Returns:
        The sample numbers of each client, ascending; each sample is at exactly one client.

    Raises:
        ConfigError: an argument out of range, or no draw gave every client ``min_samples``.
        DataError: a subject with two labels, or too few samples or subjects.

    Example:
        >>> parts = dirichlet_partition([0, 1] * 50, 4, 0.5, seed=0)
        >>> sum(len(part) for part in parts), min(len(part) for part in parts) >= 10
        (100, True)
    """
    require_number("partition dirichlet", "alpha", alpha, above=0)
    if min_samples < 1:
        raise ConfigError(f"min_samples={min_samples} must be at least 1")
    units = _Units.of(labels, groups, n_clients)
    rng, total = np.random.default_rng(seed), int(units.sizes.sum())
    if total < min_samples * n_clients:
        raise DataError(f"{total} samples do not give {n_clients} clients {min_samples} each; use fewer clients")
    for _ in range(_DRAWS):
        owners = _dirichlet_owners(units, n_clients, alpha, rng)
        if owners is not None and np.bincount(owners, units.sizes, minlength=n_clients).min() >= min_samples:
            return units.rows(owners, n_clients)
    raise ConfigError(
        f"partition dirichlet: none of {_DRAWS} draws with alpha={alpha:g} gave each of {n_clients} clients "
        f"{min_samples} of {total} samples ({len(units.sizes)} to deal); use a larger alpha or fewer clients"
    )


def homogeneous_partition(
    labels: ArrayLike, n_clients: int, *, seed: int, groups: ArrayLike | None = None, min_samples: int = 1
) -> tuple[Rows, ...]:
    """Deal samples evenly: each class is shuffled and dealt in turn, so that clients differ by at most one of it.

    Args:
        labels: class of each sample, shape (n,).
        n_clients: number of clients.
        seed: of the shuffle.
        groups: subject of each sample, shape (n,); whole subjects are dealt out. None deals single samples.
        min_samples: fewest samples of a client; 0 allows clients without any.

    Returns:
        The sample numbers of each client, ascending; each sample is at exactly one client.

    Raises:
        ConfigError: fewer than 1 client.
        DataError: a subject with two labels, or too few samples or subjects.

    Example:
        >>> [len(part) for part in homogeneous_partition([0, 1, 1, 0, 1], 2, seed=0)]
        [3, 2]
    """
    units = _Units.of(labels, groups, n_clients if min_samples else 0)
    if n_clients < 1:
        raise ConfigError(f"clients={n_clients} must be at least 1")
    rng = np.random.default_rng(seed)
    owners, dealt = np.zeros(len(units.sizes), np.int64), 0
    for members in units.by_class():
        owners[rng.permutation(members)] = (dealt + np.arange(len(members))) % n_clients
        dealt += len(members)  # the next class begins where this one ended, so that sizes stay even, too
    smallest = int(np.bincount(owners, units.sizes, minlength=n_clients).min()) if len(owners) else 0
    if smallest < min_samples:
        raise DataError(f"a client of {n_clients} would get {smallest} samples, fewer than {min_samples}")
    return units.rows(owners, n_clients)


def _by_site(text: str, argument: str, clients: int | None) -> Partition:
    """Read what follows ``by-site:``; clients of each site are said there, as ``--clients`` counts all of them."""
    if clients is not None:
        raise ConfigError(f"--partition {text} takes no --clients; say by-site:parts=10,clients=2 for two of each site")
    given = [item.partition("=")[::2] for item in argument.split(",")]
    known = {name: int(value) for name, value in given if value.isdecimal()}
    if "parts" not in known or len(known) < len(given) or not known.keys() <= {"parts", "clients"}:
        raise ConfigError(f"--partition {text!r} must be by-site:parts=5, or by-site:parts=10,clients=2")
    return Partition("by-site", known.get("clients", known["parts"]), parts=known["parts"])


@dataclass(frozen=True)
class _Units:
    """What is dealt out whole: samples, or subjects with all their samples."""

    labels: NDArray[np.int64]
    sizes: NDArray[np.int64]
    of_sample: NDArray[np.int64]

    @staticmethod
    def of(labels: ArrayLike, groups: ArrayLike | None, fewest: int) -> "_Units":
        values = np.asarray(labels)
        if values.ndim != 1:
            raise ConfigError(f"labels of shape {values.shape}: one class a sample is needed")
        if groups is None:
            of_sample, names = np.arange(len(values)), "samples"
        else:
            named = np.asarray(groups)
            if named.shape != values.shape:
                raise ConfigError(f"{len(named)} groups but {len(values)} labels; give one of each a sample")
            of_sample, names = np.unique(named, return_inverse=True)[1], "subjects"
        count = int(of_sample.max()) + 1 if len(of_sample) else 0
        if count < fewest:
            raise DataError(f"{count} {names} cannot be dealt to {fewest} clients; use fewer clients")
        classes = np.unique(values, return_inverse=True)[1]
        lowest, highest = np.full(count, len(values), np.int64), np.zeros(count, np.int64)
        np.minimum.at(lowest, of_sample, classes)
        np.maximum.at(highest, of_sample, classes)
        if (lowest != highest).any():
            sample = int(np.flatnonzero((lowest != highest)[of_sample])[0])
            whose = "?" if groups is None else np.asarray(groups)[sample]
            raise DataError(f"subject {whose}: has samples of two classes; a subject has one label to be dealt by")
        return _Units(highest, np.bincount(of_sample, minlength=count), of_sample)

    def by_class(self) -> Iterator[NDArray[np.int64]]:
        for label in np.unique(self.labels):
            yield np.flatnonzero(self.labels == label)

    def rows(self, owners: NDArray[np.int64], n_clients: int) -> tuple[Rows, ...]:
        owner = owners[self.of_sample]
        return tuple(np.flatnonzero(owner == client) for client in range(n_clients))


def _dirichlet_owners(
    units: _Units, n_clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """One draw: the client of each unit; None where the draw leaves a class to nobody."""
    owners, held = np.zeros(len(units.sizes), np.int64), np.zeros(n_clients, np.int64)
    limit = units.sizes.sum() / n_clients
    for members in units.by_class():
        shuffled = rng.permutation(members)
        shares = rng.dirichlet(np.full(n_clients, alpha)) * (held < limit)
        if not 0 < shares.sum() < math.inf:  # a small alpha may give all to clients that are full
            return None
        sizes = units.sizes[shuffled]
        cuts = np.rint(np.cumsum(shares / shares.sum())[:-1] * sizes.sum())
        ends = np.searchsorted(np.cumsum(sizes), cuts, side="right")
        owners[shuffled] = np.searchsorted(ends, np.arange(len(shuffled)), side="right")
        held += np.bincount(owners[shuffled], sizes, minlength=n_clients).astype(np.int64)
    return owners
