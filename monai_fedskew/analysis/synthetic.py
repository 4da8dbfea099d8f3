"""The synthetic experiment of the FedBN paper: two clients of Gaussians, FedAvg against FedBN.

Li et al. 2021 (FedBN), arXiv 2102.07623, appendix F: pairs of classes N(-1, S) and N(+1, S) in d = 10; client 1 has
S = I, client 2 a mixture of I and a covariance with non-zero entries beside the diagonal; two layers of 100 hidden
units, W, b ~ N(0, alpha^2) with alpha = 10, cross-entropy, SGD at 1e-5, 600 steps. Not given, chosen here: 200 examples
a class, correlation 0.9, equal halves of the mixture, full batches, BatchNorm before the ReLU, the output layer as
torch initialises it, and where the loss is measured (both ways below).

All repeats, methods and clients are trained at once as one stack of tensors; that this equals the package's own
simulator is a test (tests/analysis/test_synthetic.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from monai_fedskew.analysis.gram import correlated_root
from monai_fedskew.errors import ConfigError

__all__ = ["CASES", "METHODS", "NOTES", "Case", "Curves", "draw_data", "draw_network", "train"]

METHODS = ("fedavg", "fedbn")
_MARKS = 60  # rounds at which losses are kept, about
Network = dict[str, Tensor]

NOTES = (
    "Taken literally (mean cross-entropy, learning rate 1e-5, 600 steps) the network hardly moves, and FedAvg and "
    "FedBN cannot be told apart. Only with the sum over examples in place of the mean does it train.",
    "Even then the curves lie close together where clients average after every step. The claim of figure 9, that FedBN "
    "converges much faster, does not follow from the text alone; judge by the gap beside the spread over repeats.",
    "Training mode uses each client's batch statistics, which FedAvg does not average away; in evaluation mode, with "
    "the averaged running statistics, FedAvg's loss contains their mismatch as well.",
)


@dataclass(frozen=True)
class Case:
    """One setting: the reduction of cross-entropy over examples, local epochs between averages, rounds."""

    reduction: Literal["mean", "sum"]
    local_epochs: int
    rounds: int


CASES = (Case("mean", 1, 600), Case("mean", 8, 75), Case("sum", 1, 600), Case("sum", 8, 300))


@dataclass(frozen=True)
class Curves:
    """Mean cross-entropy by repeat, method, client and mark, (repeats, 2, clients, marks), at about 60 rounds.

    Args:
        rounds: (marks,), which rounds; the first is 0, before training.
        training: what the last step of the round saw, before it moved: each client's own model and batch statistics.
        evaluation: of the averaged model, by running statistics.
    """

    rounds: Tensor
    training: Tensor
    evaluation: Tensor


def draw_data(
    *, samples: int = 200, dimension: int = 10, correlation: float = 0.9, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw both clients' examples.

    Args:
        samples: of each class at each client, even and at least 2.
        dimension: of an example.
        correlation: beside the diagonal of client 2's second covariance.
        seed: of the draws.

    Returns:
        Inputs (2, 2 samples, dimension) float32 and labels (2 samples,) int64.

    Raises:
        ConfigError: an odd number of samples, or a covariance that is not positive definite.
    """
    if samples < 2 or samples % 2:
        raise ConfigError(f"synthetic: samples={samples} must be even and at least 2; half of them are correlated")
    generator = torch.Generator().manual_seed(seed)
    root = correlated_root(dimension, correlation).float()
    labels = torch.arange(2).repeat_interleave(samples)
    noise = torch.randn(2, 2 * samples, dimension, generator=generator)
    is_mixed = torch.arange(2 * samples) % 2 == 1  # every second example of client 2
    noise[1] = torch.where(is_mixed[:, None], noise[1] @ root.T, noise[1])
    return noise + (2.0 * labels - 1)[:, None], labels


def draw_network(*, dimension: int = 10, hidden: int = 100, alpha: float = 10.0, seed: int = 0) -> Network:
    """Draw the network that all clients start from: the entries of Linear - BatchNorm - ReLU - Linear.

    Args:
        dimension: of an example.
        hidden: width.
        alpha: standard deviation of the first layer's weights and biases.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    bound = 1 / math.sqrt(hidden)
    uniform = [torch.rand(shape, generator=generator) * 2 * bound - bound for shape in ((2, hidden), (2,))]
    return {
        "first.weight": alpha * torch.randn(hidden, dimension, generator=generator),
        "first.bias": alpha * torch.randn(hidden, generator=generator),
        "norm.weight": torch.ones(hidden),
        "norm.bias": torch.zeros(hidden),
        "last.weight": uniform[0],
        "last.bias": uniform[1],
        "norm.running_mean": torch.zeros(hidden),
        "norm.running_var": torch.ones(hidden),
    }


def train(
    case: Case,
    inputs: Tensor,
    labels: Tensor,
    networks: Network,
    *,
    lr: float = 1e-5,
    on_round: Callable[[], None] | None = None,
) -> Curves:
    """Train FedAvg and FedBN side by side, every repeat at once, by full-batch gradient descent.

    Args:
        case: reduction, local epochs, rounds.
        inputs: (repeats, clients, n, d).
        labels: (n,), the same for all.
        networks: what ``draw_network`` returns, stacked along a first dimension of repeats.
        lr: learning rate.
        on_round: called after each round.
    """
    repeats, clients = inputs.shape[:2]
    grid = (repeats, len(METHODS), clients)
    x = inputs[:, None].expand(*grid, *inputs.shape[2:]).flatten(0, 2).mT.contiguous()  # (networks, d, n)
    stack = {
        name: value[:, None, None].expand(*grid, *value.shape[1:]).flatten(0, 2).clone()
        for name, value in networks.items()
    }
    signs, rate = 2.0 * labels - 1, lr * (len(labels) if case.reduction == "sum" else 1)
    every = max(1, case.rounds // _MARKS)
    untouched = {name: value.clone() for name, value in stack.items()}
    rounds, evaluation = [0], [_losses(stack, x, signs)]
    training = [_losses(untouched, x, signs, is_training=True)]
    for round in range(1, case.rounds + 1):
        for _ in range(case.local_epochs):
            losses = _step(stack, x, signs, rate)
        _average(stack, grid)
        if round % every == 0 or round == case.rounds:
            rounds.append(round)
            training.append(losses)
            evaluation.append(_losses(stack, x, signs))
        if on_round is not None:
            on_round()
    stacked = (torch.stack(marks, dim=-1).view(*grid, -1) for marks in (training, evaluation))
    return Curves(torch.tensor(rounds), *stacked)


def _step(stack: Network, x: Tensor, signs: Tensor, lr: float) -> Tensor:
    """Make one step of every network in place; return the losses from before it, by batch statistics."""
    trained = [name for name in stack if "running" not in name]
    for name in trained:
        stack[name].requires_grad_(True)
    losses = _losses(stack, x, signs, is_training=True)
    slopes = torch.autograd.grad(losses.sum(), [stack[name] for name in trained])
    for name, slope in zip(trained, slopes, strict=True):
        stack[name] = stack[name].detach().sub_(slope, alpha=lr)
    return losses.detach()


def _losses(stack: Network, x: Tensor, signs: Tensor, *, is_training: bool = False) -> Tensor:
    """Return the mean cross-entropy of each network; in training the running statistics move."""
    hidden = torch.baddbmm(stack["first.bias"].unsqueeze(-1), stack["first.weight"], x)  # (networks, hidden, n)
    channels = hidden.view(1, -1, hidden.shape[-1])  # each network's units are channels of one BatchNorm
    norm = {name: value.view(-1) for name, value in stack.items() if name.startswith("norm.")}
    normal = torch.nn.functional.batch_norm(
        channels,
        norm["norm.running_mean"],
        norm["norm.running_var"],
        norm["norm.weight"],
        norm["norm.bias"],
        training=is_training,
    )
    active = normal.view_as(hidden).relu_()
    logits = torch.baddbmm(stack["last.bias"].unsqueeze(-1), stack["last.weight"], active)
    return torch.nn.functional.softplus((logits[:, 0] - logits[:, 1]) * signs).mean(dim=-1)


def _average(stack: Network, grid: tuple[int, int, int]) -> None:
    """Average over clients: all entries for the first method, all but BatchNorm's for the second."""
    for name, value in stack.items():
        own = value.view(*grid, *value.shape[1:])
        mean = own.mean(dim=2, keepdim=True).expand_as(own)
        keep = own if name.startswith("norm.") else mean
        stack[name] = torch.cat([mean[:, :1], keep[:, 1:]], dim=1).flatten(0, 2)
