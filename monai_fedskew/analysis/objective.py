"""What is differentiated twice: a network's mean loss over fixed batches, as a function of some of its parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from monai_fedskew.errors import ConfigError, DataError

__all__ = ["Objective", "evaluating", "hessian_vector_product", "mean_loss"]


@dataclass(frozen=True)
class Objective:
    """The mean loss over all examples of ``batches``; nothing in it is drawn anew, so it is one fixed function.

    L(w) = sum_b n_b l_b(w) / sum_b n_b, with n_b the examples of batch b and l_b its loss. The network is used in
    evaluation mode: dropout off, BatchNorm by its running statistics.

    Args:
        model: the network.
        loss_function: ``(output, targets) -> loss``; a loss of several values is averaged.
        batches: pairs of inputs and targets, (B, ...) each, on the network's device.
        parameters: names as in ``named_parameters``; empty for all that are trained.

    Raises:
        ConfigError: no batch, an unknown name, or nothing to differentiate by.

    Example:
        >>> line = nn.Linear(2, 1, bias=False)
        >>> batch = (torch.eye(2), torch.zeros(2, 1))
        >>> Objective(line, nn.functional.mse_loss, [batch]).size
        2
    """

    model: nn.Module
    loss_function: Callable[[Any, Tensor], Tensor]
    batches: Sequence[tuple[Tensor, Tensor]]
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that there is something to differentiate."""
        known = dict(self.model.named_parameters())
        if not self.batches or not any(len(inputs) for inputs, _ in self.batches):
            raise ConfigError("objective: there is no batch; give at least one with an example")
        for name in self.parameters:
            if name not in known:
                some = ", ".join(list(known)[:5])
                raise ConfigError(f"objective: no parameter {name!r}; the network has {len(known)}: {some}, ...")
            if not known[name].requires_grad:
                raise ConfigError(f"objective: {name} is frozen (requires_grad is False); leave it out or train it")
        if not self.tensors:
            raise ConfigError(f"objective: {type(self.model).__name__} has no parameter that is trained")

    @cached_property
    def tensors(self) -> dict[str, nn.Parameter]:
        """The parameters it is a function of, by name, in the network's order."""
        wanted = frozenset(self.parameters)
        named = self.model.named_parameters()
        return {name: p for name, p in named if p.requires_grad and (not wanted or name in wanted)}

    @property
    def size(self) -> int:
        """How many numbers these parameters hold."""
        return sum(value.numel() for value in self.tensors.values())

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a flat vector (size,) into the shapes of the parameters."""
        pieces = torch.split(vector, [value.numel() for value in self.tensors.values()])
        return {name: piece.view_as(p) for (name, p), piece in zip(self.tensors.items(), pieces, strict=True)}

    def join(self, pieces: Mapping[str, Tensor | None]) -> Tensor:
        """Flatten values by name into one vector (size,); None is zero."""
        values = ((p, pieces[name]) for name, p in self.tensors.items())
        return torch.cat([(torch.zeros_like(p) if value is None else value).reshape(-1) for p, value in values])

    def losses(self) -> Iterator[tuple[Tensor, float]]:
        """Yield each batch's mean loss and its share of the examples."""
        examples = sum(len(inputs) for inputs, _ in self.batches)
        for inputs, targets in self.batches:
            yield self.loss_function(self.model(inputs), targets).mean(), len(inputs) / examples


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and each back into its own afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def mean_loss(objective: Objective) -> float:
    """Return L at the network's present weights.

    Example:
        >>> line = nn.Linear(1, 1, bias=False)
        >>> _ = line.weight.data.fill_(3.0)
        >>> mean_loss(Objective(line, nn.functional.mse_loss, [(torch.ones(1, 1), torch.zeros(1, 1))]))
        9.0
    """
    with evaluating(objective.model):
        return float(sum(share * float(loss) for loss, share in objective.losses()))


def hessian_vector_product(objective: Objective, vector: Tensor) -> Tensor:
    """Compute H v, with H the matrix of second derivatives of L, by differentiating <dL/dw, v> once more.

    Neither the network's weights, modes and gradients nor any random state are changed. Where a network is piecewise
    linear in a parameter (ReLU), second derivatives are those within the piece.

    Args:
        objective: the function.
        vector: (objective.size,), on the parameters' device.

    Returns:
        H v, (objective.size,).

    Raises:
        ConfigError: a layer has no second derivative in torch, or ``vector`` has another size.
        DataError: the product is not finite.

    Example:
        >>> line = nn.Linear(2, 1, bias=False)
        >>> objective = Objective(line, nn.functional.mse_loss, [(torch.eye(2), torch.zeros(2, 1))])
        >>> hessian_vector_product(objective, torch.tensor([1.0, 2.0])).tolist()  # H is 2/2 times the identity
        [1.0, 2.0]
    """
    if vector.shape != (objective.size,):
        raise ConfigError(f"objective: the vector is {tuple(vector.shape)}, the parameters hold {objective.size}")
    tensors, directions = tuple(objective.tensors.values()), objective.split(vector)
    total = torch.zeros_like(vector)
    # fused attention has no second derivative; the plain form has
    with evaluating(objective.model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        for loss, share in objective.losses():
            total += share * objective.join(_one_batch(objective, loss, tensors, directions))
    if not torch.isfinite(total).all():
        raise DataError("the loss has second derivatives that are not finite; look at the weights and the data")
    return total


def _one_batch(
    objective: Objective, loss: Tensor, tensors: tuple[nn.Parameter, ...], directions: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    names = list(directions)
    if not loss.requires_grad:
        return dict.fromkeys(names)
    try:
        slopes = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
        pairs = zip(slopes, directions.values(), strict=True)
        # a slope without a history is constant in the parameters: its second derivative is zero
        terms = [(slope * direction).sum() for slope, direction in pairs if slope is not None and slope.requires_grad]
        if not terms:
            return dict.fromkeys(names)
        curved = torch.autograd.grad(sum(terms[1:], terms[0]), tensors, allow_unused=True)
    except RuntimeError as error:
        if "derivative" not in str(error):
            raise
        raise ConfigError(
            f"{type(objective.model).__name__}: torch cannot differentiate a layer twice ({error}); leave its "
            "parameters out, or use a plain form of the layer"
        ) from error
    return dict(zip(names, curved, strict=True))
