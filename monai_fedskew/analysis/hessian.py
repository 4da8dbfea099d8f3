"""The Hessian of a loss without writing it down: largest eigenvalues, trace, diagonal.

Mendieta et al. 2022, Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning (FedAlign), arXiv
2111.14213, section 3; the estimators are those of Yao et al. 2020, PyHessian, arXiv 1912.07145. All draws come from a
generator of their own, so that a result is a function of (objective, seed). H_N and H_D over sites: ``sites.py``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from monai_fedskew.analysis.objective import Objective, hessian_vector_product
from monai_fedskew.errors import ConfigError

__all__ = ["Diagonal", "Eigenpair", "Trace", "diagonal", "hessian_vector_product", "top_eigenpairs", "trace"]

_TINY = 1e-6  # keeps a relative change finite where the value is zero
_LEAST_PROBES = 10  # the stop rule of the papers may be met by chance after two
Form = Literal["parameter", "tensor"]
OnStep = Callable[[], None]


@dataclass(frozen=True)
class Eigenpair:
    """An eigenvalue of the Hessian with its sign, and its unit eigenvector (objective.size,).

    ``has_converged`` is False where the iterations ended before the value stood still, as they do where two eigenvalues
    are equal in size and of opposite sign.
    """

    value: float
    vector: Tensor
    iterations: int
    has_converged: bool


@dataclass(frozen=True)
class Trace:
    """An estimate of the Hessian's trace, and the standard error that its probes leave."""

    value: float
    standard_error: float
    probes: int
    has_converged: bool


@dataclass(frozen=True)
class Diagonal:
    """An estimate of the Hessian's diagonal.

    Args:
        values: (objective.size,), or one number a parameter tensor.
        noise: root mean square error of ``values`` as a vector, estimated from the spread of the probes.
        probes: how many there were.
        has_converged: whether the mean stood still before the probes ended.
    """

    values: Tensor
    noise: float
    probes: int
    has_converged: bool

    @property
    def norm(self) -> float:
        """||Diag H|| as it is estimated: the noise of the probes makes it too large."""
        return float(torch.linalg.vector_norm(self.values.double()))

    @property
    def corrected_norm(self) -> float | None:
        """||Diag H|| without what the noise adds, sqrt(norm^2 - noise^2); None where the noise is all there is."""
        rest = self.norm**2 - self.noise**2
        return math.sqrt(rest) if rest > 0 else None


def top_eigenpairs(
    objective: Objective,
    k: int = 1,
    *,
    max_iterations: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[Eigenpair, ...]:
    """Find the k eigenvalues largest in size, by power iteration with deflation.

    v <- H v / ||H v||, lambda = <v, H v>; further ones in the space orthogonal to those found. Negative eigenvalues
    are kept with their sign, which the paper's log parser drops. Stops when lambda moves by less than ``tolerance`` of
    its size.

    Args:
        objective: the function.
        k: how many, 1 to the number of parameters.
        max_iterations: at most so many products with H for each, at least 1.
        tolerance: relative, above 0.
        seed: of the first vectors.
        on_step: called after each product with H.

    Raises:
        ConfigError: k out of range, and what ``hessian_vector_product`` raises.

    Example:
        >>> from torch import nn
        >>> line = nn.Linear(2, 1, bias=False)
        >>> inputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> objective = Objective(line, nn.functional.mse_loss, [(inputs, torch.zeros(2, 1))])
        >>> [round(pair.value, 2) for pair in top_eigenpairs(objective, 2)]  # H = diag(4, 1)
        [4.0, 1.0]
    """
    if not 1 <= k <= objective.size:
        raise ConfigError(f"eigenvalues: k={k} must lie between 1 and the {objective.size} parameters")
    generator = torch.Generator().manual_seed(seed)
    found: list[Eigenpair] = []
    for _ in range(k):
        like = next(iter(objective.tensors.values()))
        start = torch.randn(objective.size, generator=generator).to(like)
        known = [pair.vector for pair in found]
        found.append(_iterate(objective, start, known, max_iterations, tolerance, on_step))
    return tuple(found)


def trace(
    objective: Objective,
    *,
    known: Sequence[Eigenpair] = (),
    max_probes: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Trace:
    """Estimate the trace by Hutchinson's method: the mean of <v, H v> over v with entries +1 and -1.

    Stops when the mean moves by less than ``tolerance`` of its size, after ten probes at the earliest.

    Args:
        objective: the function.
        known: eigenpairs of the same objective, whose part is counted exactly: less noise; none is the plain estimator.
        max_probes: at least 2.
        tolerance: relative; 0 uses all probes.
        seed: of the probes.
        on_step: called after each product with H.

    Raises:
        ConfigError: fewer than two probes, and what ``hessian_vector_product`` raises.
    """

    def sample(signs: Tensor, product: Tensor) -> Tensor:
        return torch.dot(signs, _take_out(product, signs, known)).reshape(1)

    sums = _probe(objective, max_probes, tolerance, seed, sample, on_step)
    exact = sum(pair.value for pair in known)
    return Trace(exact + float(sums.mean), sums.noise, sums.count, sums.stands_still)


def diagonal(
    objective: Objective,
    *,
    form: Form = "parameter",
    known: Sequence[Eigenpair] = (),
    max_probes: int = 100,
    tolerance: float = 1e-3,
    seed: int = 0,
    on_step: OnStep | None = None,
) -> Diagonal:
    """Estimate the diagonal by Hutchinson's method: the mean of v * H v, entry by entry.

    The variance of an entry is the sum of the squares of its row beside the diagonal, divided by the probes: where
    parameters are strongly coupled the estimate is mostly noise, which ``Diagonal.noise`` tells. ``known`` lowers it:
    with A the sum of lambda u u^T over some pairs, diag(H) is the exact diagonal of A plus the estimate for H - A,
    which is right in the mean for any A, converged or not.

    Args:
        objective: the function.
        form: "parameter" is the paper's Diag(H), one number a parameter. "tensor" is what the public code computes in
            its place: the sum of v * H v over each parameter tensor, one number a tensor (its trace, in the mean).
        known: eigenpairs of the same objective to take out; none is the plain estimator.
        max_probes: at least 2.
        tolerance: stop when the mean moves by less than this share of its norm, after ten probes at the earliest; 0
            uses all.
        seed: of the probes. Give each site its own: ``corrected`` H_N and H_D rest on independent probes.
        on_step: called after each product with H.

    Raises:
        ConfigError: fewer than two probes, and what ``hessian_vector_product`` raises.
    """
    sizes = [value.numel() for value in objective.tensors.values()]

    def reduce(entries: Tensor) -> Tensor:
        if form == "parameter":
            return entries
        return torch.stack([piece.sum() for piece in torch.split(entries, sizes)])

    def sample(signs: Tensor, product: Tensor) -> Tensor:
        return reduce(signs * _take_out(product, signs, known))

    sums = _probe(objective, max_probes, tolerance, seed, sample, on_step)
    exact = [reduce(pair.value * pair.vector.square()) for pair in known]
    return Diagonal(sum(exact, sums.mean), sums.noise, sums.count, sums.stands_still)


class _Sums:
    """Running mean of vectors, and how far it may be off."""

    def __init__(self) -> None:
        self.count, self.squares, self.stands_still = 0, 0.0, False
        self.total = torch.zeros(0)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def noise(self) -> float:
        """Root mean square error of the mean: sqrt((mean of ||s||^2 - ||mean||^2) / (count - 1))."""
        spread = self.squares / self.count - float(self.mean.double().square().sum())
        return math.sqrt(max(spread, 0.0) / (self.count - 1))

    def add(self, sample: Tensor, tolerance: float) -> None:
        before = self.mean if self.count else torch.zeros_like(sample)
        self.total = self.total + sample if self.count else sample
        self.count += 1
        self.squares += float(sample.double().square().sum())
        moved = float(torch.linalg.vector_norm(self.mean - before))
        size = float(torch.linalg.vector_norm(before))
        self.stands_still = self.count >= _LEAST_PROBES and moved < tolerance * (size + _TINY)


def _probe(
    objective: Objective,
    max_probes: int,
    tolerance: float,
    seed: int,
    sample: Callable[[Tensor, Tensor], Tensor],
    on_step: OnStep | None,
) -> _Sums:
    if max_probes < 2:
        raise ConfigError(f"Hutchinson: max_probes={max_probes} must be at least 2, else no error can be told")
    generator, sums = torch.Generator().manual_seed(seed), _Sums()
    like = next(iter(objective.tensors.values()))
    while sums.count < max_probes and not sums.stands_still:
        signs = torch.randint(0, 2, (objective.size,), generator=generator).mul_(2).sub_(1).to(like)
        sums.add(sample(signs, hessian_vector_product(objective, signs)), tolerance)
        if on_step is not None:
            on_step()
    return sums


def _iterate(
    objective: Objective,
    start: Tensor,
    known: list[Tensor],
    max_iterations: int,
    tolerance: float,
    on_step: OnStep | None,
) -> Eigenpair:
    vector, value = _unit(_without(start, known)), math.inf
    for iteration in range(1, max_iterations + 1):
        product = _without(hessian_vector_product(objective, vector), known)
        if on_step is not None:
            on_step()
        before, value = value, float(torch.dot(vector, product))
        if float(torch.linalg.vector_norm(product)) == 0.0:  # all that is left of H is zero
            return Eigenpair(0.0, vector, iteration, True)
        if abs(value - before) < tolerance * (abs(before) + _TINY):
            return Eigenpair(value, _unit(product), iteration, True)
        vector = _unit(product)
    return Eigenpair(value, vector, max_iterations, False)


def _take_out(product: Tensor, signs: Tensor, known: Sequence[Eigenpair]) -> Tensor:
    """Turn H v into (H - A) v, A the sum of lambda u u^T over the known pairs."""
    for pair in known:
        product = product - pair.value * torch.dot(pair.vector, signs) * pair.vector
    return product


def _without(vector: Tensor, known: list[Tensor]) -> Tensor:
    for other in known:
        vector = vector - torch.dot(vector, other) * other
    return vector


def _unit(vector: Tensor) -> Tensor:
    unit: Tensor = vector / torch.linalg.vector_norm(vector)
    return unit
