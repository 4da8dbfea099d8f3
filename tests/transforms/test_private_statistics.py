import math
import sys

import pytest
import torch

from monai_fedskew.errors import ConfigError
from monai_fedskew.transforms import GaussianRelease, measure, privacy_cost

TINY = 1e-12  # noise too small to see


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers around 0.5 with std 1."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def test_two_windows_of_one_subject_count_as_one_by_hand() -> None:
    """Subject 0: 1, 3 -> m 2, q 5; subject 1: 6 -> m 6, q 36; mean 4, q 20.5, std sqrt(20.5 - 16) = 2.1213."""
    batches = [torch.tensor([[1.0], [3.0], [6.0]])]
    exact = measure(batches, site="A", ddof=0)

    sent = GaussianRelease(100.0, TINY)(batches, torch.tensor([0, 0, 1]), exact)

    assert sent.mean == pytest.approx((4.0,))
    assert sent.std == pytest.approx((math.sqrt(4.5),))


def test_a_subject_is_held_to_the_clip_by_hand() -> None:
    """Clip 1; subject 0: (m, q) = (0, 0); 1: (3, 9), rms sqrt(45) = 6.7082 -> (0.44721, 1.34164).

    Mean over both: (0.22361, 0.67082). Std: sqrt(0.67082 - 0.05) = 0.78792.
    """
    batches = [torch.tensor([[0.0], [3.0]])]

    sent = GaussianRelease(1.0, TINY)(batches, torch.tensor([0, 1]), measure(batches, site="A", ddof=0))

    assert sent.mean == pytest.approx((0.22361,), abs=1e-5)
    assert sent.std == pytest.approx((0.78792,), abs=1e-5)


@pytest.mark.parametrize("mode", ["image", "pooled"])
@pytest.mark.parametrize("shape", [(12, 3), (12, 3, 4, 5)])
def test_without_clipping_and_noise_it_is_the_exact_table(mode, shape) -> None:
    """Equal numbers of examples a subject, a bound nobody reaches, hardly any noise: what ``measure`` says."""
    values = rows(*shape)
    exact = measure([values], site="A", std_mode=mode)

    sent = GaussianRelease(50.0, TINY)([values[:5], values[5:]], torch.arange(12) % 4, exact)

    assert sent.mean == pytest.approx(exact.mean, abs=1e-8)
    assert sent.std == pytest.approx(exact.std, abs=1e-8)
    assert (sent.std_mode, sent.ddof, sent.samples) == (exact.std_mode, exact.ddof, exact.samples)


@pytest.mark.parametrize("mode", ["image", "pooled"])
def test_replacing_one_subject_moves_the_numbers_by_at_most_the_sensitivity(mode) -> None:
    """Opposite ends: the moments before noise differ by at most Delta = 2 clip sqrt(2C) / n.

    Ten subjects, C = 2, clip 1: Delta = 2 * 1 * 2 / 10 = 0.4; flat images of opposite sign attain it.
    """
    release, subjects = GaussianRelease(1.0, TINY), torch.arange(10)
    first, second = rows(10, 2, 6), rows(10, 2, 6)
    first[0], second[0] = 1e6, -1e6
    moved = []
    for values in (first, second):
        sent = release([values], subjects, measure([values], site="A", std_mode=mode, ddof=0))
        mean, std = torch.tensor([sent.mean, sent.std], dtype=torch.float64)
        moved.append(torch.cat([mean, std.square() + mean.square() if mode == "pooled" else std]))

    change = float((moved[0] - moved[1]).norm())

    assert release.deviation(channels=2, subjects=10) / TINY == pytest.approx(0.4)
    assert change == pytest.approx(0.4) if mode == "image" else 0 < change < 0.4  # pooled: squares are equal


@pytest.mark.parametrize("mode", ["image", "pooled"])
def test_noise_has_the_promised_size(mode) -> None:
    """1000 means, C = 1000, 50 subjects: what was added has mean 0 and the std within five standard errors each."""
    values = rows(50, 1000, 4)
    exact = measure([values], site="A", std_mode=mode)
    release, plain = GaussianRelease(3.0, 0.5), GaussianRelease(3.0, TINY)

    with pytest.warns(UserWarning, match="the table says little"):
        noisy = release([values], torch.arange(50), exact)
    added = torch.tensor(noisy.mean) - torch.tensor(plain([values], torch.arange(50), exact).mean)

    expected = 0.5 * 2 * 3.0 * math.sqrt(2000) / 50
    assert float(added.std()) == pytest.approx(expected, rel=0.12)  # 1000 means: 5 / sqrt(2000)
    assert abs(float(added.mean())) < 5 * expected / math.sqrt(1000)
    assert all(std > 0 for std in noisy.std)


def test_a_std_below_its_noise_is_floored() -> None:
    """A constant channel under noise keeps a positive std: of at least the root of the variance's noise, 0.02."""
    batches = [torch.full((100, 2), 0.1)]
    with pytest.warns(UserWarning, match="std is 0"):
        exact = measure(batches, site="A", ddof=0)

    sent = GaussianRelease(1.0, 0.01)(batches, torch.arange(100), exact)

    assert GaussianRelease(1.0, 0.01).deviation(2, 100) == pytest.approx(0.0004)
    assert all(std >= 0.02 for std in sent.std)


def test_no_seed_repeats_the_noise() -> None:
    """A server that knows the seed of a run must not be able to subtract what was added."""
    batches = [rows(40, 2)]
    exact = measure(batches, site="A")
    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        draws.append(GaussianRelease(2.0, 1.0)(batches, torch.arange(40), exact).mean)

    assert draws[0] != draws[1]


def test_cost_is_that_of_the_accountant() -> None:
    """Above the exact value of the Gaussian mechanism (4.377 for noise 1, delta 1e-5) by less than a tenth."""
    assert 4.377 < privacy_cost(1.0, 1e-5) < 1.1 * 4.377
    assert privacy_cost(1.0, 1e-5, releases=4) == pytest.approx(privacy_cost(0.5, 1e-5), rel=1e-6)
    assert 0 <= privacy_cost(1000.0, 1e-2) < 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianRelease(0.0, 1.0), r"clip=0\.0 must be a finite number above 0"),
        (lambda: GaussianRelease(1.0, math.nan), "noise=nan must be a finite number above 0"),
        (lambda: privacy_cost(-1.0, 1e-5), r"privacy cost: noise=-1\.0 must be"),
        (lambda: privacy_cost(1e-300, 1e-5), "noise=1e-300 must lie between 1e-06 and 1e"),
        (lambda: privacy_cost(1e300, 1e-5), r"noise=1e\+300 must lie between"),
        (lambda: privacy_cost(1.0, 1.0), r"delta=1\.0 must be a number above 0 and below 1"),
        (lambda: privacy_cost(1.0, 1e-5, 0), "releases=0 must be a whole number, 1 or more"),
    ],
)
def test_values_out_of_range_are_refused(call, message) -> None:
    """The error names the parameter and the value."""
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_missing_accountant_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `privacy` is optional; only its cost needs it."""
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(ConfigError, match=r"pip install 'monai-fedskew\[privacy\]'"):
        privacy_cost(1.0, 1e-5)
