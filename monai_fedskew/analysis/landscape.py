"""The loss around a network's weights, in the plane of two directions.

Mendieta et al. 2022 (FedAlign), arXiv 2111.14213, figure 2: a grid of 41 x 41 along the two top eigenvectors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from monai_fedskew.analysis.objective import Objective, mean_loss
from monai_fedskew.core.ranges import require_number
from monai_fedskew.errors import ConfigError

__all__ = ["Landscape", "loss_landscape"]


@dataclass(frozen=True)
class Landscape:
    """Loss over a square of weights.

    Args:
        steps_along: (n,), from -reach to reach; 0 is the network as it is.
        losses: (n, n) float64; row a, column b is L(w + steps_along[a] * first + steps_along[b] * second).
    """

    steps_along: Tensor
    losses: Tensor

    @property
    def centre(self) -> float:
        """The loss of the network as it is."""
        middle = len(self.steps_along) // 2
        return float(self.losses[middle, middle])


def loss_landscape(
    objective: Objective,
    first: Tensor,
    second: Tensor,
    *,
    points: int = 41,
    reach: float = 1.0,
    on_row: Callable[[], None] | None = None,
) -> Landscape:
    """Compute the loss on a grid around the network's weights; they are put back bit for bit, whatever happens.

    Args:
        objective: the function.
        first: direction (objective.size,), taken as it is: a unit eigenvector makes steps of length.
        second: the other direction.
        points: along each axis, odd, so that the network as it is lies in the middle.
        reach: half the side of the square, finite and above 0.
        on_row: called after each row of the grid.

    Raises:
        ConfigError: an even or too small number of points, a reach that is not finite and above 0.

    Example:
        >>> from torch import nn
        >>> line = nn.Linear(2, 1, bias=False)
        >>> _ = line.weight.data.zero_()
        >>> objective = Objective(line, nn.functional.mse_loss, [(torch.eye(2), torch.zeros(2, 1))])
        >>> one, two = torch.eye(2)
        >>> loss_landscape(objective, one, two, points=3).losses.tolist()  # (a^2 + b^2) / 2
        [[1.0, 0.5, 1.0], [0.5, 0.0, 0.5], [1.0, 0.5, 1.0]]
    """
    if points < 3 or points % 2 == 0:
        raise ConfigError(f"landscape: points={points} must be odd and at least 3, so that 0 lies in the middle")
    require_number("landscape", "reach", reach, above=0)
    along = torch.linspace(-reach, reach, points, dtype=torch.float64)
    along[points // 2] = 0.0
    losses = torch.empty(points, points, dtype=torch.float64)
    held = {name: value.detach().clone() for name, value in objective.tensors.items()}
    try:
        for a, up in enumerate(along.tolist()):
            for b, right in enumerate(along.tolist()):
                _move(objective, held, up * first + right * second)
                losses[a, b] = mean_loss(objective)
            if on_row is not None:
                on_row()
    finally:
        _move(objective, held, None)
    return Landscape(along, losses)


@torch.no_grad()
def _move(objective: Objective, held: dict[str, Tensor], by: Tensor | None) -> None:
    """Set the weights to those held, plus ``by``; always from the copy, so that no rounding adds up."""
    pieces = {} if by is None else objective.split(by)
    for name, value in objective.tensors.items():
        value.copy_(held[name] + pieces[name] if name in pieces else held[name])
