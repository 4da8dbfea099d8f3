import math

import pytest
import torch

from monai_fedskew.analysis import gram
from monai_fedskew.errors import ConfigError


def test_three_entries_by_hand() -> None:
    """Orthogonal unit vectors: t = pi/2, G = (1 + 0) / (2 pi). Parallel: t = 0, G = ||x|| ||y|| / 2. Opposite: 0."""
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [-1.0, 0.0]])
    found = gram.gram_matrix(inputs, alpha=2.0)
    assert found[0].tolist() == pytest.approx([4 * 0.5, 4 / (2 * math.pi), 4 * 1.5, 0.0], abs=1e-12)


def test_the_closed_form_is_what_sampling_gives() -> None:
    """Against 200,000 draws of v: deviations look like standard normal ones."""
    inputs, _ = gram.gaussian_clients(points=6, dimension=4, correlation=0.5, seed=1)
    mean, error = gram.monte_carlo_gram(inputs, draws=200_000, alpha=1.5, seed=2)
    deviations = (gram.gram_matrix(inputs, alpha=1.5) - mean) / error
    assert float(deviations.abs().max()) < 4
    assert float(deviations.square().mean()) < 3


def test_g_of_fedbn_is_block_diagonal_and_interlaces() -> None:
    """lambda_min(G*) is the smallest over clients and at least lambda_min(G); lambda_max the other way round."""
    for draw in gram.gram_experiment(draws=3, points=20):
        first = draw.clients == 0
        assert float(draw.masked[first][:, ~first].abs().max()) == 0.0
        blocks = [gram.spectrum(draw.gram[m][:, m]) for m in (first, ~first)]
        assert draw.fedbn.smallest == pytest.approx(min(block.smallest for block in blocks))
        assert draw.fedavg.smallest < draw.fedbn.smallest < draw.fedbn.largest < draw.fedavg.largest
        assert draw.fedbn.condition < draw.fedavg.condition
        assert draw.slack > -1e-9


def test_interlacing_can_be_seen_to_fail() -> None:
    """The check is not vacuous: it is negative for blocks that are none of the matrix, as of a matrix not symmetric."""
    matrix = torch.tensor([[1.0, 5.0], [0.0, 1.0]])  # eigvalsh reads the lower half: G is taken as diag(1, 1)
    assert gram.interlacing_slack(matrix, torch.tensor([0, 1])) == 0.0
    assert gram.interlacing_slack(torch.tensor([[1.0, 0.0], [5.0, 1.0]]), torch.tensor([0, 1])) == pytest.approx(5.0)


def test_equality_is_possible_without_parallel_inputs() -> None:
    """The strict inequality of the paper is not general; by hand lambda_min = 1/2 - k(1), k the kernel at angle 1.

    k(1) = (sin 1 + (pi - 1) cos 1) / (2 pi) = 0.3181, so 0.1819.
    """
    inputs, clients = gram.equality_example()
    found = gram.compare(inputs, clients)
    kernel = (math.sin(1) + (math.pi - 1) * math.cos(1)) / (2 * math.pi)
    assert found.fedavg.smallest == pytest.approx(0.5 - kernel)
    assert found.fedbn.smallest == pytest.approx(found.fedavg.smallest, abs=1e-12)


def test_what_cannot_be_is_refused() -> None:
    """A zero row, a shape, an alpha, a correlation, and clients that are not one an example."""
    with pytest.raises(ConfigError, match="input 1 is zero"):
        gram.gram_matrix(torch.tensor([[1.0], [0.0]]))
    with pytest.raises(ConfigError, match=r"inputs are \(3,\)"):
        gram.gram_matrix(torch.ones(3))
    with pytest.raises(ConfigError, match="alpha=0 must be"):
        gram.gram_matrix(torch.ones(2, 2), alpha=0)
    with pytest.raises(ConfigError, match=r"correlation=-0.2 must lie between -0.111 and 1 in 10 dimensions"):
        gram.gaussian_clients(correlation=-0.2)
    with pytest.raises(ConfigError, match="one an example"):
        gram.block_masked(torch.ones(2, 2), torch.zeros(3))
    assert gram.spectrum(torch.zeros(2, 2)).condition == math.inf
