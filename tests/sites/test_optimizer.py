"""Where a round finds the optimizer: the schedule's learning rate, momentum forgotten or kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from monai.handlers import LrScheduleHandler
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from monai_fedskew.errors import ConfigError
from monai_fedskew.sites.optimizer import OptimizerState

STEPS = 4  # optimizer steps an epoch


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def _train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((2, 3), float(step + 1))).pow(2).sum().backward()
        optimizer.step()


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def _adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.1)


@pytest.mark.parametrize("epoch_level", [True, False])
def test_the_learning_rate_of_a_round_is_the_schedules(epoch_level: bool) -> None:
    """A StepLR of step size 3, per epoch or per iteration: 0.1 * 0.5 ** (steps of the schedule // 3)."""
    net = _net()
    optimizer = _sgd(net)
    schedule = StepLR(optimizer, step_size=3, gamma=0.5)
    state = OptimizerState("A", optimizer, [LrScheduleHandler(schedule, print_lr=False, epoch_level=epoch_level)])
    for epochs in (0, 1, 2, 3, 7, 2):  # also back to an earlier round
        state.begin(epochs, STEPS, keep=False)
        made = epochs if epoch_level else epochs * STEPS
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 ** (made // 3))


@pytest.mark.parametrize("make", [_sgd, _adam])
def test_tensors_are_forgotten_or_kept(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """reset leaves no momentum, keep leaves every tensor bit for bit."""
    net = _net()
    optimizer = make(net)
    state = OptimizerState("A", optimizer, [])
    _train(net, optimizer, 3)
    held = state.private()
    assert held
    state.begin(1, STEPS, keep=True)
    again = state.private()
    assert held.keys() == again.keys()
    assert all(torch.equal(held[key], again[key]) for key in held)
    state.begin(1, STEPS, keep=False)
    assert state.private() == {}


@pytest.mark.parametrize("make", [_sgd, _adam])
def test_a_rebuilt_optimizer_goes_on_bit_for_bit(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """private() carried to a new optimizer: the next three steps equal those of the optimizer that was kept."""
    kept = _net()
    optimizer = make(kept)
    _train(kept, optimizer, 3)
    held = OptimizerState("A", optimizer, []).private()
    rebuilt = _net()
    rebuilt.load_state_dict(kept.state_dict())
    fresh = make(rebuilt)
    state = OptimizerState("A", fresh, [])
    state.restore(held)
    assert all(torch.equal(held[key], value) for key, value in state.private().items())
    state.begin(1, STEPS, keep=True)
    _train(kept, optimizer, 3)
    _train(rebuilt, fresh, 3)
    assert all(torch.equal(one, two) for one, two in zip(kept.parameters(), rebuilt.parameters(), strict=True))


def test_what_is_handed_out_is_a_copy() -> None:
    """Training on does not change a state that was taken before."""
    net = _net()
    optimizer = _sgd(net)
    state = OptimizerState("A", optimizer, [])
    _train(net, optimizer, 1)
    held = state.private()
    before = {key: value.clone() for key, value in held.items()}
    _train(net, optimizer, 1)
    assert all(torch.equal(held[key], before[key]) for key in held)


def test_a_schedule_that_looks_at_scores_is_refused() -> None:
    """ReduceLROnPlateau would give each site its own learning rate."""
    optimizer = _sgd(_net())
    handler: Any = LrScheduleHandler(ReduceLROnPlateau(optimizer), print_lr=False, step_transform=lambda engine: 0.0)
    with pytest.raises(ConfigError, match="site A: ReduceLROnPlateau .* use a scheduler that depends on the epoch"):
        OptimizerState("A", optimizer, [handler])
