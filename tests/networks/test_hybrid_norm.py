import pytest
import torch
from torch import nn

from monai_fedskew.core.aggregate import weighted_mean
from monai_fedskew.networks.hybrid_norm import HybridNorm


def layer(mean: float = 0.0, variance: float = 1.0, *, measured: int = 1) -> HybridNorm:
    """A layer of one channel with these global statistics and nothing added to the variance."""
    new = HybridNorm(1, eps=0.0)
    for buffer, value in ((new.mean, mean), (new.center, mean), (new.spread, variance), (new.measured, measured)):
        buffer.fill_(value)
    return new


def numbers(*values: float) -> torch.Tensor:
    """A batch of one channel."""
    return torch.tensor(values).view(-1, 1)


def test_training_mixes_by_hand() -> None:
    """m = 0, v = 1, batch (2, 6): m_B = 4, v_B = 4; a = 1/2: mean 2, variance 2.5; (2, 6) -> (0, 4 / sqrt(2.5))."""
    out = layer()(numbers(2, 6))

    assert out.flatten().tolist() == pytest.approx([0.0, 4 / 2.5**0.5])


def test_the_factor_goes_from_global_to_batch_statistics() -> None:
    """a -> 0 is m and v alone, a -> 1 the batch alone; it is trained by the loss."""
    for logit, expected in ((-50.0, [2.0, 6.0]), (50.0, [-1.0, 1.0])):
        norm = layer()
        nn.init.constant_(norm.mix, logit)
        assert norm(numbers(2, 6)).flatten().tolist() == pytest.approx(expected)
    norm = layer()
    norm(numbers(2, 6)).square().sum().backward()
    assert norm.mix.grad.item() != 0


def test_evaluation_uses_global_statistics_alone() -> None:
    """m = 1, v = 4: (2, 6) -> (1/2, 5/2)."""
    assert layer(1, 4).eval()(numbers(2, 6)).flatten().tolist() == [0.5, 2.5]


def test_before_the_first_measurement_there_is_nothing_to_mix() -> None:
    """Mean 0 and variance 1 of a fresh layer are nobody's: the batch alone is used, as by batch norm."""
    batch = torch.randn(8, 3, 4, 4)

    torch.testing.assert_close(HybridNorm(3)(batch), nn.BatchNorm2d(3)(batch))


def test_plain_mean_over_sites_gives_statistics_of_all_by_hand() -> None:
    """Sites (m, v) = (0, 1) and (4, 3), weights 1/4 and 3/4: m = 3, v = 1/4 (1 + 9) + 3/4 (3 + 1) = 5.5.

    The mean of variances, as FedAvg takes it, is 2.5.
    """
    sites = [layer(1.0, 2.0), layer(1.0, 2.0)]
    for site, (mean, variance) in zip(sites, ((0.0, 1.0), (4.0, 3.0)), strict=True):
        site.observe(torch.tensor([mean]), torch.tensor([variance]), 1.0)

    together = layer()
    together.load_state_dict(weighted_mean([site.state_dict() for site in sites], [0.25, 0.75]))

    assert together.mean.item() == 3.0
    assert together.variance().item() == 5.5
    assert together.measured.item() == 2


def test_momentum_by_hand() -> None:
    """m, v = 1, 4; new ones 5, 2 at momentum 1/4: m = 2; squares about 1 are 1/4 (2 + 16) + 3/4 4 = 7.5, v = 6.5."""
    norm = layer(1.0, 4.0)

    norm.observe(torch.tensor([5.0]), torch.tensor([2.0]), 0.25)

    assert norm.mean.item() == 2.0
    assert norm.variance().item() == 6.5


def test_the_first_measurement_is_taken_whole() -> None:
    """Momentum smooths over measurements, and there is none to keep."""
    norm = layer(measured=0)

    norm.observe(torch.tensor([5.0]), torch.tensor([2.0]), 0.25)

    assert (norm.mean.item(), norm.variance().item()) == (5.0, 2.0)


def test_digits_hold_far_from_zero() -> None:
    """Mean 10000, variance 1 in float32: squares about 0 would have lost the variance."""
    norm = layer(9999.0, 1.0)

    norm.observe(torch.tensor([10000.0]), torch.tensor([1.0]), 1.0)

    assert norm.variance().item() == 1.0


@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 5), (2, 3, 5, 5), (2, 3, 4, 4, 4)])
def test_vectors_and_images(shape) -> None:
    """The same as batch norm where the batch is all there is, in training and evaluation, for any number of axes."""
    batch = torch.randn(shape, dtype=torch.float64)
    norm = HybridNorm(3).double()
    norm.observe(*norm.batch(batch), 1.0)
    nn.init.normal_(norm.mix)

    expected = nn.functional.batch_norm(batch, None, None, training=True)
    torch.testing.assert_close(norm(batch), expected)
    torch.testing.assert_close(norm.eval()(batch), expected)
    torch.testing.assert_close(torch.jit.script(norm)(batch), expected)


def test_a_single_vector_trains() -> None:
    """The batch's variance is 0, that of all sites is not; batch norm refuses such a batch."""
    norm = layer(1.0, 2.0)

    out = norm(numbers(3))
    out.sum().backward()

    assert out.item() == pytest.approx(1.0)  # mean (1 + 3) / 2 = 2, variance (2 + 0) / 2 = 1
    assert torch.isfinite(norm.mix.grad)


def test_takes_what_a_batch_norm_has() -> None:
    """Affine pair, running statistics, eps, dtype; a fresh one counts as not measured."""
    trained = nn.BatchNorm1d(2, eps=0.5).double()
    nn.init.normal_(trained.weight)
    trained(torch.randn(9, 2, dtype=torch.float64))
    batch = torch.randn(4, 2, dtype=torch.float64)

    norm = HybridNorm.like(trained)

    torch.testing.assert_close(norm.eval()(batch), trained.eval()(batch))
    assert norm.measured == 1
    assert HybridNorm.like(nn.BatchNorm1d(2)).measured == 0
    assert list(HybridNorm.like(nn.BatchNorm1d(2, affine=False)).state_dict()) == [
        "mix",
        "mean",
        "spread",
        "center",
        "measured",
    ]


def test_half_precision_statistics_are_kept_in_full() -> None:
    """A batch in bfloat16, as under autocast, is summed up in the layer's own precision."""
    norm = layer()
    batch = torch.randn(64, 1).bfloat16()

    mean, _ = norm.batch(batch)

    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean, batch.float().mean(0))
