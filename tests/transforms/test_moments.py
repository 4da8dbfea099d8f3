import pytest
import torch

from monai_fedskew.transforms.moments import CHUNK, row_moments, run_moments


@pytest.mark.parametrize("n", [1, 5, CHUNK, 2 * CHUNK + 3])
def test_runs_of_any_length(n) -> None:
    """Mean and squares as over all at once, around a large offset."""
    values = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + 1e6

    count, mean, squares = run_moments(values)

    assert count == n
    assert mean == pytest.approx(float(values.mean()), rel=1e-12)
    assert squares == pytest.approx(float((values - values.mean()).square().sum()), rel=1e-6)


def test_only_what_is_kept_counts() -> None:
    """Pieces of which nothing is kept are left out; all of them, and nothing is there."""
    values, keep = torch.arange(2.0 * CHUNK), torch.zeros(2 * CHUNK, dtype=torch.bool)
    assert run_moments(values, keep) == (0, 0.0, 0.0)

    keep[[CHUNK + 1, CHUNK + 3]] = True

    assert run_moments(values, keep) == (2, CHUNK + 2.0, 2.0)


@pytest.mark.parametrize("offset", [0.0, 3.0, 1e6])
def test_values_of_zero_may_be_left_out(offset) -> None:
    """As if they were not there, whether the rest is spread out or lies close together."""
    values = torch.randn(2 * CHUNK, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + offset
    with_zeros = torch.stack([values, torch.zeros(2 * CHUNK)]).T.reshape(-1)

    assert run_moments(with_zeros, is_nonzero_only=True) == pytest.approx(run_moments(values), rel=1e-9)
    assert run_moments(torch.zeros(5), is_nonzero_only=True) == (0, 0.0, 0.0)


def test_rows_are_runs() -> None:
    """Many rows at once, or one by one."""
    rows = torch.randn(7, CHUNK // 3, generator=torch.Generator().manual_seed(0))

    mean, squares = row_moments(rows)

    for k, row in enumerate(rows):
        assert (float(mean[k]), float(squares[k])) == pytest.approx(run_moments(row)[1:], rel=1e-12)


def test_a_constant_run_has_squares_of_exactly_zero() -> None:
    """Over several pieces."""
    assert run_moments(torch.full((2 * CHUNK + 1,), 0.1, dtype=torch.float64)) == (2 * CHUNK + 1, 0.1, 0.0)
