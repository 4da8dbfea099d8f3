import gc
import weakref

import torch
from torch import nn

from monai_fedskew.networks.tap import StageTap


def small() -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))


def test_a_reading_belongs_to_its_output() -> None:
    """Of three passes the middle one is found; asked again, nothing is."""
    net = small()
    tap = StageTap(net, net[1], lambda inputs, output: (inputs[0].item(), output.item()))
    outputs = [net(torch.full((1,), float(value))) for value in range(3)]

    entering = net[0](torch.ones(1)).item()

    assert tap.take(outputs[1]) == (entering, outputs[1].item())
    assert tap.take(outputs[1]) is None


def test_only_training_passes_of_the_whole_network_are_read() -> None:
    """Not in evaluation mode, not without gradient, not the stage alone."""
    net, seen = small(), []
    StageTap(net, net[1], lambda inputs, output: seen.append(output))

    net[1](torch.ones(1))
    with torch.no_grad():
        net(torch.ones(1))
    net.eval()(torch.ones(1))
    assert seen == []
    net.train()(torch.ones(1))

    assert len(seen) == 1


def test_nothing_is_held_for_outputs_that_are_gone() -> None:
    """A hundred passes that nobody asks about keep at most the last one's reading."""
    net = small()
    tap = StageTap(net, net[1], lambda inputs, output: torch.zeros(10))
    for _ in range(100):
        net(torch.ones(1))

    assert len(tap._held) <= 1


def test_a_network_with_a_tap_is_freed_at_once() -> None:
    """No circle, although hooks lead from the network to the tap."""
    net = small()
    tap = StageTap(net, net[1], lambda inputs, output: None)
    is_alive = weakref.ref(net)
    gc.disable()
    try:
        del net
        assert is_alive() is None
    finally:
        gc.enable()
    assert tap.take(torch.ones(1)) is None
