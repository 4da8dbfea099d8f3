import pytest
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.engines import SupervisedTrainer
from torch import nn

from monai_fedskew.core import all_keys, no_keys
from monai_fedskew.errors import ConfigError
from monai_fedskew.handlers.proximal import ProximalDistance, ProximalTerm


def trainer(handler, *, epochs, steps=1):
    """One weight w from 3, pulled to 0 by the loss w^2 / 2, in steps of 0.1; and the losses it saw."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 3.0)
    engine = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=epochs,
        train_data_loader=DataLoader([{"image": torch.ones(1), "label": torch.zeros(1)}] * steps, batch_size=1),
        network=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        loss_function=lambda pred, label: (pred - label).square().mean() / 2,
        train_handlers=[handler],
        decollate=False,
    )
    losses = []
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(engine.state.output["loss"].item()))
    engine.run()
    return net.weight.item(), losses


def test_two_steps_by_hand() -> None:
    """mu = 2, w_g = 3. Step 1: loss 9/2, w = 3 - 0.1*3 = 2.7. Step 2: 2.7^2/2 + 2/2*(2.7-3)^2 = 3.735, gradient
    2.7 + 2*(2.7-3) = 2.1, w = 2.7 - 0.21 = 2.49."""
    weight, losses = trainer(ProximalTerm(mu=2.0), epochs=1, steps=2)

    assert losses == pytest.approx([4.5, 3.735])
    assert weight == pytest.approx(2.49)


@pytest.mark.parametrize(("every", "second"), [(1, 2.7**2 / 2), (2, 3.735)])
def test_anchor_is_taken_every_few_epochs(every, second) -> None:
    """With every=1 the second epoch starts at its own anchor; with every=2 it is still held to 3."""
    _, losses = trainer(ProximalTerm(mu=2.0, every=every), epochs=2)

    assert losses[1] == pytest.approx(second)


def test_official_leaves_out_first_round_and_first_steps() -> None:
    """Two epochs of two steps, mu = 2, every=1: only the last step has the term mu/2 |w - w_g| = |w - w_g|.
    w: 3, 2.7, 2.43 = w_g, 2.187; term 2.43 - 2.187 = 0.243."""
    _, losses = trainer(ProximalTerm(mu=2.0, variant="official"), epochs=2, steps=2)

    plain = [w * w / 2 for w in (3.0, 2.7, 2.43, 2.187)]
    assert losses == pytest.approx([*plain[:3], plain[3] + 0.243])


def test_mu_zero_is_the_plain_trainer() -> None:
    """Bit for bit, and no handler is registered."""

    class Nothing:
        def attach(self, engine) -> None:
            pass

    assert trainer(ProximalTerm(mu=0.0), epochs=2, steps=3) == trainer(Nothing(), epochs=2, steps=3)


def test_filter_leaves_private_entries_free() -> None:
    """A filter that shares nothing trained leaves the loss as it is."""
    _, held = trainer(ProximalTerm(mu=2.0, share=all_keys()), epochs=1, steps=2)
    _, free = trainer(ProximalTerm(mu=2.0, share=no_keys()), epochs=1, steps=2)

    assert held == pytest.approx([4.5, 3.735])
    assert free == pytest.approx([4.5, 2.7**2 / 2])


def test_distance_keeps_a_copy_of_the_anchor() -> None:
    """Case 10: given the live parameters themselves, the distance still grows."""
    weight = nn.Parameter(torch.ones(2))
    distance = ProximalDistance(1.0, "paper", [(weight, weight)])
    nn.init.constant_(weight, 3.0)

    assert distance().item() == pytest.approx(4.0)  # 1/2 * 2 * (3-1)^2


def test_backward_twice_gives_the_gradient_twice() -> None:
    """The graph can be kept, as second passes of other methods need."""
    weight = nn.Parameter(torch.tensor([3.0]))
    term = ProximalDistance(0.5, "paper", [(weight, torch.tensor([1.0]))])()

    term.backward(retain_graph=True)
    term.backward()

    assert weight.grad.tolist() == [2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mu": -0.1}, "mu=-0.1 must be a finite number of at least 0"),
        ({"variant": "mine"}, "variant='mine' must be one of paper, official"),
        ({"every": 0}, "every=0 must be 1 or more local epochs"),
    ],
)
def test_wrong_values_are_refused(arguments, message) -> None:
    """When the handler is made."""
    with pytest.raises(ConfigError, match=f"ProximalTerm: {message}"):
        ProximalTerm(**arguments)


def test_an_engine_without_loss_is_refused() -> None:
    """It belongs on a MONAI trainer."""
    with pytest.raises(ConfigError, match="ProximalTerm: Engine has no loss event; attach it to a MONAI trainer"):
        ProximalTerm().attach(Engine(lambda engine, batch: None))
