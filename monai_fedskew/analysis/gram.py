"""The Gram matrices that decide convergence in FedBN's analysis, in closed form.

Li et al. 2021 (FedBN), arXiv 2102.07623, section 4 and appendix B: G for FedAvg, and for FedBN the same matrix without
the entries between examples of different clients. Everything here is float64.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from monai_fedskew.errors import ConfigError

__all__ = [
    "NOTES",
    "GramDraw",
    "Spectrum",
    "block_masked",
    "equality_example",
    "gaussian_clients",
    "gram_experiment",
    "gram_matrix",
    "interlacing_slack",
    "monte_carlo_gram",
    "spectrum",
]

NOTES = (
    "In general only lambda_min(G*) >= lambda_min(G) follows (Cauchy interlacing), not the strict > of the paper's "
    "text: unit vectors at angles 0.5 and -0.5 (client 1) and pi (client 2), none parallel to another, have equality.",
    "The bound on the rate also needs a step size below about 1/||Lambda||, and lambda_max(G*) <= lambda_max(G), too: "
    "the condition numbers compare both ends.",
    "G is the limit of infinite width and drops the factors 1/(||v||_Sp ||v||_Sq) of the finite-width matrix "
    "(equations 7 and 9); the other term, V, is not masked by client, as the directions v are shared. With alpha > 1 G "
    "dominates.",
    "A faster bound is not a faster run: see `fedskew diagnose synthetic`.",
)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a symmetric matrix in ascending order, (n,)."""

    eigenvalues: Tensor

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue."""
        return float(self.eigenvalues[0])

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(self.eigenvalues[-1])

    @property
    def condition(self) -> float:
        """Largest over smallest; infinite where the smallest is not above 0."""
        return self.largest / self.smallest if self.smallest > 0 else math.inf


@dataclass(frozen=True)
class GramDraw:
    """One draw of clients: both matrices, both spectra, and how far interlacing is from being broken."""

    gram: Tensor
    masked: Tensor
    clients: Tensor
    fedavg: Spectrum
    fedbn: Spectrum
    slack: float


def gram_matrix(inputs: Tensor, *, alpha: float = 1.0) -> Tensor:
    """Compute G_pq = E_v s(v.x_p) s(v.x_q) with s = ReLU and v ~ N(0, alpha^2 I), without sampling.

    G_pq = alpha^2 ||x_p|| ||x_q|| (sin t + (pi - t) cos t) / (2 pi), t the angle between x_p and x_q: the arc-cosine
    kernel of order 1 (Cho and Saul 2009).

    Args:
        inputs: (n, d), no row zero.
        alpha: standard deviation of the weights, above 0.

    Returns:
        (n, n) float64.

    Raises:
        ConfigError: a shape, a row or an alpha that cannot be.

    Example:
        >>> gram_matrix(torch.eye(2)).mul(2 * math.pi).round(decimals=4).tolist()  # pi on the diagonal, 1 beside
        [[3.1416, 1.0], [1.0, 3.1416]]
    """
    rows = _checked(inputs, alpha)
    norms = rows.norm(dim=1)
    cosine = ((rows @ rows.T) / torch.outer(norms, norms)).clamp(-1, 1).fill_diagonal_(1.0)
    angle = cosine.arccos()
    kernel = angle.sin() + (math.pi - angle) * cosine
    return alpha**2 * torch.outer(norms, norms) * kernel / (2 * math.pi)


def block_masked(gram: Tensor, clients: Tensor) -> Tensor:
    """Return G*: the entries between examples of different clients are zero, since FedBN's scales are per client.

    Args:
        gram: (n, n).
        clients: (n,) integers, whose example each is.

    Example:
        >>> block_masked(torch.ones(3, 3), torch.tensor([0, 0, 1])).tolist()
        [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if clients.shape != gram.shape[:1]:
        raise ConfigError(f"gram: {tuple(clients.shape)} clients for a matrix {tuple(gram.shape)}; one an example")
    return gram * (clients[:, None] == clients[None, :])


def spectrum(matrix: Tensor) -> Spectrum:
    """Return the eigenvalues of a symmetric matrix.

    Example:
        >>> spectrum(torch.diag(torch.tensor([4.0, 1.0]))).condition
        4.0
    """
    return Spectrum(torch.linalg.eigvalsh(matrix.double()))


def interlacing_slack(gram: Tensor, clients: Tensor) -> float:
    """Return how far Cauchy interlacing is from being broken, over all clients and eigenvalues; rounding aside >= 0.

    Each client's block G_i (n_i of n examples) has lambda_j(G) <= lambda_j(G_i) <= lambda_(j + n - n_i)(G), ascending.
    """
    full, slack = spectrum(gram).eigenvalues, math.inf
    for client in sorted(set(clients.tolist())):
        index = (clients == client).nonzero()[:, 0]
        block = spectrum(gram[index][:, index]).eigenvalues
        size, missing = len(block), len(full) - len(block)
        gaps = torch.cat([block - full[:size], full[missing:] - block])
        slack = min(slack, float(gaps.min()))
    return slack


def monte_carlo_gram(
    inputs: Tensor, *, draws: int = 100_000, alpha: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Estimate ``gram_matrix`` by its definition, drawing v: the check of the closed form.

    Args:
        inputs: (n, d), no row zero.
        draws: how many v, at least 2.
        alpha: standard deviation of the weights.
        seed: of the draws.

    Returns:
        Mean and standard error of each entry, (n, n) float64 both.
    """
    rows = _checked(inputs, alpha)
    generator = torch.Generator().manual_seed(seed)
    total, squares = torch.zeros(2, len(rows), len(rows), dtype=torch.float64)
    for start in range(0, draws, 10_000):
        count = min(10_000, draws - start)
        weights = alpha * torch.randn(count, rows.shape[1], generator=generator, dtype=torch.float64)
        active = (weights @ rows.T).relu()
        total += active.T @ active
        squares += active.square().T @ active.square()
    mean = total / draws
    return mean, ((squares / draws - mean.square()) / (draws - 1)).clamp(min=0).sqrt()


def gaussian_clients(
    *, points: int = 50, dimension: int = 10, correlation: float = 0.5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw the inputs of two clients: N(0, I), and N(0, S) with S_ij = correlation beside the diagonal.

    Returns:
        Inputs (2 points, dimension) float64 and clients (2 points,).

    Raises:
        ConfigError: S would not be positive definite.
    """
    root = correlated_root(dimension, correlation)
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, points, dimension, generator=generator, dtype=torch.float64)
    return torch.cat([first, second @ root.T]), torch.arange(2).repeat_interleave(points)


def correlated_root(dimension: int, correlation: float) -> Tensor:
    """Return the Cholesky root of a covariance of ones with ``correlation`` beside the diagonal.

    Raises:
        ConfigError: the covariance is not positive definite.
    """
    least = -1 / (dimension - 1) if dimension > 1 else -1.0
    if not least < correlation < 1:
        raise ConfigError(f"correlation={correlation} must lie between {least:.3g} and 1 in {dimension} dimensions")
    covariance = torch.full((dimension, dimension), correlation, dtype=torch.float64).fill_diagonal_(1.0)
    root: Tensor = torch.linalg.cholesky(covariance)
    return root


def equality_example() -> tuple[Tensor, Tensor]:
    """Return inputs (3, 2) and clients for which lambda_min(G*) equals lambda_min(G), no two inputs being parallel.

    Client 1 has two unit vectors at angles +0.5 and -0.5, client 2 one at pi: on their axis of symmetry, and far off.
    The vector (1, -1, 0) belongs to the smallest eigenvalue of client 1's block and is orthogonal to the column between
    the clients, hence belongs to the same eigenvalue of G, which has none below.
    """
    angles = torch.tensor([0.5, -0.5, math.pi], dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin()], dim=1), torch.tensor([0, 0, 1])


def gram_experiment(
    *,
    draws: int = 5,
    points: int = 50,
    dimension: int = 10,
    correlation: float = 0.5,
    alpha: float = 1.0,
    seed: int = 0,
) -> list[GramDraw]:
    """Compare G and G* of ``draws`` draws of two Gaussian clients; arguments as above."""
    found = []
    for draw in range(draws):
        inputs, clients = gaussian_clients(
            points=points, dimension=dimension, correlation=correlation, seed=seed + draw
        )
        found.append(compare(inputs, clients, alpha=alpha))
    return found


def compare(inputs: Tensor, clients: Tensor, *, alpha: float = 1.0) -> GramDraw:
    """Compute both matrices of given inputs and what is to be said of them."""
    gram = gram_matrix(inputs, alpha=alpha)
    masked = block_masked(gram, clients)
    return GramDraw(gram, masked, clients, spectrum(gram), spectrum(masked), interlacing_slack(gram, clients))


def _checked(inputs: Tensor, alpha: float) -> Tensor:
    if inputs.ndim != 2 or not len(inputs):
        raise ConfigError(f"gram: inputs are {tuple(inputs.shape)}; give (examples, features)")
    if not (math.isfinite(alpha) and alpha > 0):
        raise ConfigError(f"gram: alpha={alpha} must be a finite number above 0")
    rows = inputs.double()
    zero = (rows.norm(dim=1) == 0).nonzero()
    if len(zero):
        raise ConfigError(f"gram: input {int(zero[0])} is zero; the angle to it is not defined")
    return rows
