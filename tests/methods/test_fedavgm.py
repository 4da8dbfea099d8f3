import pytest
import torch

from monai_fedskew.core import Update, WeightedMean
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedavgm


def update(site: str, w: float, var: float = 1.0) -> Update:
    """A site's weight and running variance after a round."""
    return Update(site, 1, {"w": torch.tensor([float(w)]), "var": torch.tensor([float(var)])}, 1, 1, 1)


def test_two_steps_by_hand() -> None:
    """lr 0.5, momentum 0.5. Weights 1/4, 3/4 and sites at 5 and 1: d = 2, v = 2, x = 1. Then both at 3: d = 2,
    v = 0.5*2 + 2 = 3, x = 1 + 0.5*3 = 2.5. The running variance is the weighted mean (1*9 + 3*1)/4 = 3 of the round."""
    aggregate, weights = fedavgm(lr=0.5, momentum=0.5).aggregate, {"A": 0.25, "B": 0.75}
    current = {"w": torch.zeros(1), "var": torch.ones(1)}

    sent = [update("A", 5, 9), update("B", 1, 1)]
    memory, first = aggregate.step(aggregate.init(current), current, sent, weights, frozenset({"w"}))
    memory, second = aggregate.step(memory, first, [update("A", 3), update("B", 3)], weights, frozenset({"w"}))

    assert (first["w"].item(), first["var"].item()) == (1.0, 3.0)
    assert (second["w"].item(), second["var"].item()) == (2.5, 1.0)
    assert {key: value.item() for key, value in memory.items()} == {"w": 3.0}


def test_neutral_setting_is_the_mean_itself() -> None:
    """Nothing is remembered, and no bit differs."""
    assert fedavgm(lr=1.0, momentum=0.0).aggregate == WeightedMean()


def test_one_round_is_fedavg_up_to_rounding() -> None:
    """The velocity starts with the first movement, undamped."""
    aggregate = fedavgm().aggregate
    current = {"w": torch.tensor([0.3]), "var": torch.ones(1)}

    _, tensors = aggregate.step({}, current, [update("A", 0.7)], {"A": 1.0}, frozenset({"w"}))

    assert tensors["w"].item() == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0}, "method fedavgm: lr=0 must be a finite number above 0"),
        ({"lr": float("inf")}, "method fedavgm: lr=inf must be"),
        ({"lr": True}, "method fedavgm: lr=True must be"),
        ({"momentum": 1.0}, r"method fedavgm: momentum=1\.0 must be a number of at least 0 and below 1"),
        ({"momentum": -0.1}, r"method fedavgm: momentum=-0\.1 must be"),
        ({"momentum": float("nan")}, "method fedavgm: momentum=nan must be"),
    ],
)
def test_values_out_of_range_are_refused(arguments, message) -> None:
    """The error names parameter, value and range."""
    with pytest.raises(ConfigError, match=message):
        fedavgm(**arguments)
