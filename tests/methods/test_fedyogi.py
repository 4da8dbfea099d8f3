import math

import pytest
import torch

from monai_fedskew.core import Update
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedyogi


def test_two_steps_by_hand() -> None:
    """lr 1, both betas 0.5, tau 1, so v = 1 at first. d = 4: m = 2, v = 1 + 16/2 = 9, x = 2/(3 + 1) = 0.5.
    d = 2: m = (2 + 2)/2 = 2, v = 9 - 4/2 = 7 since 9 > 4, x = 0.5 + 2/(sqrt(7) + 1)."""
    aggregate, w = fedyogi(lr=1, beta1=0.5, beta2=0.5, tau=1).aggregate, torch.zeros(1)
    memory, found = {}, []
    for movement in (4, 2):
        sent = Update("A", 1, {"w": w + movement}, 1, 1, 1)
        memory, tensors = aggregate.step(memory, {"w": w}, [sent], {"A": 1.0}, frozenset({"w"}))
        w = tensors["w"]
        found.append((memory["v/w"].item(), w.item()))

    assert found == [(9.0, 0.5), (7.0, pytest.approx(0.5 + 2 / (math.sqrt(7) + 1)))]


@pytest.mark.parametrize("name", ["lr", "tau", "beta1", "beta2"])
def test_values_out_of_range_are_refused(name) -> None:
    """The error names parameter and value."""
    with pytest.raises(ConfigError, match=f"method fedyogi: {name}=-1 must be"):
        fedyogi(**{name: -1})
