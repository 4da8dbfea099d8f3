import pytest
import torch

from monai_fedskew.core import Update
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedadam


def moved_by(current, movement: float, dtype=torch.float32) -> Update:
    """The update of a site that went that far, with a running variance of 2 and a counter."""
    w = current["w"] + movement
    return Update("A", 1, {"w": w.to(dtype), "var": torch.tensor([2.0]), "n": torch.tensor(7)}, 1, 1, 1)


def start(dtype=torch.float32):
    """A weight at 0 with what batch norm keeps."""
    return {"w": torch.zeros(1, dtype=dtype), "var": torch.ones(1), "n": torch.tensor(1)}


def test_two_steps_by_hand() -> None:
    """lr 1, both betas 0.5, tau 1, so v = 1 at first. d = 7: m = 3.5, v = (1 + 49)/2 = 25, x = 3.5/(5 + 1).
    d = 35: m = (3.5 + 35)/2 = 19.25, v = (25 + 1225)/2 = 625, x += 19.25/(25 + 1): 0.583333 + 0.740385 = 1.323718."""
    aggregate, current = fedadam(lr=1, beta1=0.5, beta2=0.5, tau=1).aggregate, start()

    memory, current = aggregate.step({}, current, [moved_by(current, 7)], {"A": 1.0}, frozenset({"w"}))
    first = current["w"].item()
    memory, current = aggregate.step(memory, current, [moved_by(current, 35)], {"A": 1.0}, frozenset({"w"}))

    assert (first, current["w"].item()) == (pytest.approx(0.583333, abs=1e-6), pytest.approx(1.323718, abs=1e-6))
    assert {key: value.item() for key, value in memory.items()} == {"m/w": pytest.approx(19.25), "v/w": 625.0}


def test_batch_norm_stays_out_of_the_optimizer() -> None:
    """Running statistics are the mean and counters the maximum of the sites, and the memory holds parameters only."""
    aggregate, current = fedadam().aggregate, start()

    memory, tensors = aggregate.step({}, current, [moved_by(current, 1)], {"A": 1.0}, frozenset({"w"}))

    assert (tensors["var"].item(), tensors["n"].item(), tensors["n"].dtype) == (2.0, 7, torch.int64)
    assert set(memory) == {"m/w", "v/w"}


def test_what_stands_still_stays() -> None:
    """A parameter no site moved, a frozen one say, keeps its bits: m is 0."""
    aggregate, current = fedadam().aggregate, {**start(), "w": torch.tensor([0.1])}

    _, tensors = aggregate.step({}, current, [moved_by(current, 0)], {"A": 1.0}, frozenset({"w"}))

    assert torch.equal(tensors["w"], current["w"])


@pytest.mark.parametrize(
    ("dtype", "kept"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]
)
def test_types(dtype, kept) -> None:
    """Parameters keep their type; the moments are float32 at least."""
    aggregate, current = fedadam().aggregate, start(dtype)

    memory, tensors = aggregate.step({}, current, [moved_by(current, 1, dtype)], {"A": 1.0}, frozenset({"w"}))

    assert tensors["w"].dtype == dtype
    assert {value.dtype for value in memory.values()} == {kept}


def test_inputs_are_not_changed() -> None:
    """The step is pure: memory and model of the round before can be gone back to."""
    aggregate, current = fedadam().aggregate, start()
    memory, current = aggregate.step({}, current, [moved_by(current, 1)], {"A": 1.0}, frozenset({"w"}))
    before = [{key: value.clone() for key, value in state.items()} for state in (memory, current)]

    aggregate.step(memory, current, [moved_by(current, 3)], {"A": 1.0}, frozenset({"w"}))

    for state, copy in zip((memory, current), before, strict=True):
        assert all(torch.equal(state[key], copy[key]) for key in copy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1}, "method fedadam: lr=-1 must be a finite number above 0"),
        ({"tau": 0}, "method fedadam: tau=0 must be a finite number above 0"),
        ({"beta1": 1}, "method fedadam: beta1=1 must be a number of at least 0 and below 1"),
        ({"beta2": "0.9"}, "method fedadam: beta2='0.9' must be"),
    ],
)
def test_values_out_of_range_are_refused(arguments, message) -> None:
    """The error names parameter, value and range."""
    with pytest.raises(ConfigError, match=message):
        fedadam(**arguments)
