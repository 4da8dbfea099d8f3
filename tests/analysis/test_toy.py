import math

import pytest
import torch

from monai_fedskew.analysis import toy
from monai_fedskew.errors import ConfigError


def test_the_loss_tends_to_its_closed_form() -> None:
    """With E cos(a x) = exp(-a^2 s^2 / 2): at w = 0, s = 1, w_true = 2 it is 1.5 + e^-8 / 2 - 2 e^-2."""
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0])
    by_hand = 1.5 + math.exp(-8) / 2 - 2 * math.exp(-2)
    exact = toy.expected_loss(weights, w_true=2.0, scale=1.0, noise=0.1)
    assert float(exact[0]) == pytest.approx(by_hand + 0.01)
    client = toy.draw_clients((1.0,), samples=40_000)[0]
    torch.testing.assert_close(toy.loss_curve(client, weights, divide=False), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("labels", "divide", "minima"),
    [
        ("raw", False, (2.0, 2.0)),
        ("raw", True, (2.0, 4.0)),
        ("standardised", False, (2.0, 1.0)),
        ("standardised", True, (2.0, 2.0)),
    ],
)
def test_division_helps_only_where_labels_are_of_the_standardised_x(
    labels: toy.Labels, divide: bool, minima: tuple[float, float]
) -> None:
    """Scales 1 and 2, w_true 2: raw labels put the minimum at w_true, or w_true s after division; else w_true / s."""
    weights = torch.linspace(0, 6, 121)
    clients = toy.draw_clients(labels=labels)
    found = [float(weights[toy.loss_curve(client, weights, divide=divide).argmin()]) for client in clients]
    assert found == pytest.approx(minima, abs=0.11)


def test_the_surface_is_the_curve_of_the_product() -> None:
    """Read off a fine line: within its rounding of the loss computed at each product."""
    client = toy.draw_clients(samples=100)[1]
    weights, gammas = torch.tensor([0.5, 2.0, 12.0]), torch.tensor([0.1, 1.0, 4.0])
    exact = toy.loss_curve(client, torch.outer(weights, gammas).flatten(), divide=True).view(3, 3)
    torch.testing.assert_close(toy.loss_surface(client, weights, gammas), exact, rtol=0, atol=2e-3)


def test_a_step_of_descent_by_hand() -> None:
    """Where x = y = 1, at w = 2 and gamma = 0.5 the slope of the product is 2 (cos 1 - 1)(-sin 1)."""
    client = toy.ToyClient(torch.tensor([-1.0, 1.0]).double(), torch.ones(2).double(), 1.0)  # even: as one example
    slope = 2 * (math.cos(1) - 1) * -math.sin(1)
    found = toy.descend(client, torch.tensor([[2.0, 0.5]]), lr=0.1, steps=1)[0]
    assert found.tolist() == pytest.approx([2 - 0.1 * slope * 0.5, 0.5 - 0.1 * slope * 2])


def test_keeping_gamma_fits_both_clients_of_raw_labels_and_averaging_it_does_not() -> None:
    """FedBN reaches the noise (0.01), FedAvg stays far above; with standardised labels both reach it."""
    start = torch.tensor([2.0, 1.5])
    for labels, limit in (("raw", 0.3), ("standardised", 0.0)):
        clients = toy.draw_clients(labels=labels, samples=200)
        shared, kept = (
            float(toy.train_rounds(clients, start, rounds=40, keep_gamma=keep)[-1]) for keep in (False, True)
        )
        assert kept < 0.012
        assert shared > limit
        assert labels == "raw" or shared < 0.012


def test_one_average_marks_what_figure_two_marks() -> None:
    """The shared point is the mean of both ends, the kept one has client 1's gamma, and its loss is lower."""
    found = toy.average_once(toy.draw_clients(samples=200), torch.tensor([[2.0, 1.5]]))
    torch.testing.assert_close(found.shared, found.local.mean(dim=0))
    torch.testing.assert_close(found.kept[:, 1], found.local[0, :, 1])
    assert float(found.loss_kept) < float(found.loss_shared)


@pytest.mark.parametrize("wrong", [0.0, math.inf, math.nan, 1e300])
def test_a_scale_that_cannot_be_is_refused(wrong: float) -> None:
    """Zero, what is not finite, and what overflows; the scale of the second client too."""
    with pytest.raises(ConfigError, match=r"toy: scale=.* must be a number of at least 1e-06 and at most"):
        toy.draw_clients((1.0, wrong))


@pytest.mark.parametrize(("name", "wrong"), [("noise", -1.0), ("noise", math.inf), ("w_true", math.nan)])
def test_numbers_that_cannot_be_are_refused(name: str, wrong: float) -> None:
    """By name and value."""
    with pytest.raises(ConfigError, match=f"toy: {name}={wrong} must be a number"):
        toy.draw_clients(noise=wrong if name == "noise" else 0.1, w_true=wrong if name == "w_true" else 2.0)


def test_the_largest_noise_keeps_descent_finite() -> None:
    """Four samples with noise 10 and the farthest w_true: the slopes are largest, and all ends are finite numbers."""
    for seed in range(5):
        clients = toy.draw_clients((1e-6, 1e6), w_true=1000.0, noise=10.0, samples=4, seed=seed)
        start = torch.tensor([2.0, 750.0])
        assert toy.average_once(clients, start[None]).local.isfinite().all()
        assert toy.train_rounds(clients, start, keep_gamma=True).isfinite().all()
