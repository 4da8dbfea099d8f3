import pytest
import torch

from monai_fedskew.core import Update
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedadagrad


def two_steps(aggregate):
    """Model and memory after movements of 4 and 12 from 0."""
    memory, w, seen = {}, torch.zeros(1), []
    for movement in (4, 12):
        sent = Update("A", 1, {"w": w + movement}, 1, 1, 1)
        memory, tensors = aggregate.step(memory, {"w": w}, [sent], {"A": 1.0}, frozenset({"w"}))
        w = tensors["w"]
        seen.append(w.item())
    return memory, seen


def test_two_steps_by_hand() -> None:
    """lr 1, tau 3, so v = 9 at first, and m = d. d = 4: v = 9 + 16 = 25, x = 4/(5 + 3) = 0.5. d = 12: v = 25 + 144 =
    169, x = 0.5 + 12/(13 + 3) = 1.25."""
    memory, seen = two_steps(fedadagrad(lr=1, tau=3).aggregate)

    assert seen == [0.5, 1.25]
    assert {key: value.item() for key, value in memory.items()} == {"v/w": 169.0}


def test_with_momentum_by_hand() -> None:
    """beta1 0.5: m = 2, x = 2/8 = 0.25; m = (2 + 12)/2 = 7, x = 0.25 + 7/16 = 0.6875."""
    memory, seen = two_steps(fedadagrad(lr=1, tau=3, beta1=0.5).aggregate)

    assert seen == [0.25, 0.6875]
    assert memory["m/w"].item() == 7.0


@pytest.mark.parametrize("name", ["lr", "tau", "beta1"])
def test_values_out_of_range_are_refused(name) -> None:
    """The error names parameter and value."""
    with pytest.raises(ConfigError, match=f"method fedadagrad: {name}=-1 must be"):
        fedadagrad(**{name: -1})
