"""The one-dimensional example of the FedBN paper: f_w(x) = cos(w x), two clients that differ in the scale of x.

Li et al. 2021 (FedBN), arXiv 2102.07623, figures 1 and 2. The paper gives the model, squared loss, and the range of
figure 2 (w in [0.001, 12], gamma in [0.001, 4]); scales, w_true, noise and sample size are not given. Chosen here:
standard deviations 1 and 2, w_true = 2, noise 0.1, 500 examples a client. Not given either, and decisive: whether the
label depends on x as it is ("raw") or on x divided by its standard deviation ("standardised").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from monai_fedskew.core.ranges import require_number, require_whole

__all__ = [
    "NOTES",
    "Averaging",
    "ToyClient",
    "average_once",
    "descend",
    "draw_clients",
    "expected_loss",
    "loss_curve",
    "loss_surface",
    "train_rounds",
]

Labels = Literal["raw", "standardised"]

NOTES = (
    "Figure 1: dividing by the local standard deviation brings the two minima together only if the label is a function "
    "of the standardised x. If it is a function of x as it is, both clients share their minimum BEFORE the division, "
    "and it is the division that parts them (at w_true times each scale). The text does not say which; both are shown.",
    "Figure 2: cos(gamma w x / s) depends on the product gamma w alone, so each client's minima are a whole curve, and "
    "how much (w_mean, gamma_1) is better than (w_mean, gamma_mean) depends on where descent starts; it is counted "
    "over a grid of starts. With labels of the standardised x the minima agree; what is left to gain is to follow the "
    "wiggles of one's own sample.",
    "A local gamma is one more parameter a client: that FedBN fits better is in part that it can fit more.",
)


@dataclass(frozen=True)
class ToyClient:
    """Examples of one client: x ~ N(0, scale^2) and y, (n,) float64 both."""

    x: Tensor
    y: Tensor
    scale: float

    @property
    def standardised(self) -> Tensor:
        """X divided by its standard deviation, as BatchNorm without affine parameters divides (x has mean 0)."""
        return self.x / self.x.std(correction=0)


@dataclass(frozen=True)
class Averaging:
    """What averaging two clients' minima gives, for each of S starts.

    Args:
        local: (clients, S, 2), where each client's descent ends: w and gamma.
        shared: (S, 2), the mean of both.
        kept: (S, 2), the mean of w with client 1's own gamma.
        loss_shared: (S,), client 1's loss at ``shared``.
        loss_kept: (S,), client 1's loss at ``kept``.
    """

    local: Tensor
    shared: Tensor
    kept: Tensor
    loss_shared: Tensor
    loss_kept: Tensor


def draw_clients(
    scales: Sequence[float] = (1.0, 2.0),
    *,
    labels: Labels = "raw",
    w_true: float = 2.0,
    noise: float = 0.1,
    samples: int = 500,
    seed: int = 0,
) -> tuple[ToyClient, ...]:
    """Draw y = cos(w_true x) + noise, x ~ N(0, scale^2), for each client.

    Args:
        scales: standard deviation of x by client, 1e-6 to 1e6.
        labels: "raw" takes the cosine of w_true x, "standardised" of w_true x / scale.
        w_true: the parameter to be found, -1000 to 1000.
        noise: standard deviation of the noise on y, 0 to 10.
        samples: examples a client, at least 2.
        seed: of the draws.

    Raises:
        ConfigError: a scale or a number that cannot be.
    """
    require_whole("toy", "samples", samples, 2)
    require_number("toy", "noise", noise, least=0, most=10)  # descent diverges on far larger labels
    require_number("toy", "w_true", w_true, least=-1000, most=1000)
    for scale in scales:
        require_number("toy", "scale", scale, least=1e-6, most=1e6)
    generator, clients = torch.Generator().manual_seed(seed), []
    for scale in scales:
        z, error = torch.randn(2, samples, generator=generator, dtype=torch.float64)
        clean = torch.cos(w_true * (z if labels == "standardised" else scale * z))
        clients.append(ToyClient(scale * z, clean + noise * error, scale))
    return tuple(clients)


def loss_curve(client: ToyClient, weights: Tensor, *, divide: bool) -> Tensor:
    """Return the mean of (cos(w x) - y)^2 for each w of ``weights`` (k,).

    Args:
        client: the examples.
        weights: (k,) values of w.
        divide: divide x by the client's standard deviation first.
    """
    x = client.standardised if divide else client.x
    return (torch.cos(weights.double()[:, None] * x) - client.y).square().mean(dim=1)


def expected_loss(weights: Tensor, *, w_true: float, scale: float, noise: float = 0.0) -> Tensor:
    """Return what ``loss_curve`` tends to with raw labels, no division and ever more examples.

    With E cos(a x) = exp(-a^2 scale^2 / 2):
    1 + (e(2w) + e(2 w_true)) / 2 - e(w - w_true) - e(w + w_true) + noise^2, where e(a) = exp(-a^2 scale^2 / 2).

    Example:
        >>> round(abs(float(expected_loss(torch.tensor([2.0]), w_true=2.0, scale=1.0))), 9)
        0.0
    """

    def e(a: Tensor | float) -> Tensor:
        return torch.exp(-((torch.as_tensor(a, dtype=torch.float64) * scale) ** 2) / 2)

    w = weights.double()
    return 1 + (e(2 * w) + e(2 * w_true)) / 2 - e(w - w_true) - e(w + w_true) + noise**2


def loss_surface(client: ToyClient, weights: Tensor, gammas: Tensor) -> Tensor:
    """Return the loss of cos(gamma w x / s), s the client's standard deviation, over a grid (weights, gammas)."""
    products = torch.outer(weights.double(), gammas.double())
    # a function of the product alone: computed on a fine line, read off for the grid
    line = torch.linspace(0, float(products.max()), 4001, dtype=torch.float64)
    losses = torch.cat([loss_curve(client, part, divide=True) for part in torch.chunk(line, 8)])
    at = products / line[-1] * (len(line) - 1)
    low = at.floor().long().clamp(max=len(line) - 2)
    return torch.lerp(losses[low], losses[low + 1], at - low)


def descend(client: ToyClient, points: Tensor, *, lr: float = 0.02, steps: int = 400) -> Tensor:
    """Follow the gradient of the client's loss over (w, gamma); return where it ends.

    Args:
        client: the examples.
        points: (S, 2) starts, w and gamma.
        lr: of gradient descent.
        steps: how many.

    Returns:
        (S, 2) float64.
    """
    w, gamma = points.double().unbind(dim=1)
    x, y = client.standardised, client.y
    for _ in range(steps):
        angle = (gamma * w)[:, None] * x
        slope = (2 * (angle.cos() - y) * -angle.sin() * x).mean(dim=1)  # of the product gamma w
        w, gamma = w - lr * slope * gamma, gamma - lr * slope * w
    return torch.stack([w, gamma], dim=1)


def average_once(clients: Sequence[ToyClient], starts: Tensor, *, steps: int = 400) -> Averaging:
    """Let the clients descend from each of ``starts`` (S, 2) and average: everything, or w alone with gamma kept."""
    local = torch.stack([descend(client, starts, steps=steps) for client in clients])
    shared = local.mean(dim=0)
    kept = torch.stack([shared[:, 0], local[0, :, 1]], dim=1)
    return Averaging(local, shared, kept, _loss(clients[0], shared), _loss(clients[0], kept))


def train_rounds(
    clients: Sequence[ToyClient], start: Tensor, *, rounds: int = 100, steps: int = 5, keep_gamma: bool
) -> Tensor:
    """Average after every few steps, many times; return the mean loss over clients after each round, (rounds,).

    Args:
        clients: who takes part.
        start: (2,) w and gamma of all.
        rounds: how many times they average.
        steps: of descent between.
        keep_gamma: each client keeps its gamma, as in FedBN; else it is averaged, as in FedAvg.
    """
    points, losses = start.double().repeat(len(clients), 1), []
    for _ in range(rounds):
        moved = [descend(client, point[None], steps=steps) for client, point in zip(clients, points, strict=True)]
        own = torch.cat(moved)
        points = own.mean(dim=0).repeat(len(clients), 1)
        if keep_gamma:
            points[:, 1] = own[:, 1]
        losses.append(torch.cat([_loss(c, p[None]) for c, p in zip(clients, points, strict=True)]).mean())
    return torch.stack(losses)


def _loss(client: ToyClient, points: Tensor) -> Tensor:
    return loss_curve(client, points.prod(dim=1), divide=True)
