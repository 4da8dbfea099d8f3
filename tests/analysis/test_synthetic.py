from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from monai.data import DataLoader
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from torch import Tensor, nn

from monai_fedskew.analysis import synthetic
from monai_fedskew.analysis.plots import plot_synthetic
from monai_fedskew.core.part import Part, adapt_network
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method
from monai_fedskew.sites.site import Site

ROUNDS, EPOCHS, LR = 3, 2, 1e-3


def _network(state: synthetic.Network) -> nn.Sequential:
    hidden, dimension = state["first.weight"].shape
    layers = {
        "first": nn.Linear(dimension, hidden),
        "norm": nn.BatchNorm1d(hidden),
        "relu": nn.ReLU(),
        "last": nn.Linear(hidden, 2),
    }
    network = nn.Sequential(OrderedDict(layers))
    network.load_state_dict(state, strict=False)
    return network


class _Source:
    """One client's examples as a site of the package."""

    def __init__(self, name: str, inputs: Tensor, labels: Tensor, state: synthetic.Network) -> None:
        self.name, self.state = name, state
        self.data = [{"image": x, "label": y} for x, y in zip(inputs, labels, strict=True)]

    def open(
        self,
        parts: Sequence[Part] = (),
        *,
        seed: int = 0,
        split: Literal["train", "test"] = "train",
        output: Path | None = None,
    ) -> Site:
        network = adapt_network(_network(self.state), parts, seed)
        loader = DataLoader(self.data, batch_size=len(self.data))
        common: dict[str, Any] = {"device": torch.device("cpu"), "network": network, "decollate": False}
        trainer = SupervisedTrainer(
            max_epochs=1,
            train_data_loader=loader,
            optimizer=torch.optim.SGD(network.parameters(), LR),
            loss_function=nn.CrossEntropyLoss(reduction="sum"),
            **common,
        )
        return Site(self.name, trainer, SupervisedEvaluator(val_data_loader=loader, **common))


@pytest.mark.parametrize("method", synthetic.METHODS)
def test_the_stack_trains_as_the_simulator_does(method: str) -> None:
    """Three rounds of two full-batch epochs: both clients' losses in evaluation agree with the package's own."""
    inputs, labels = synthetic.draw_data(samples=10, dimension=3, seed=1)
    state = synthetic.draw_network(dimension=3, hidden=5, seed=2)
    sites = {name: _Source(name, x, labels, state) for name, x in zip("AB", inputs, strict=True)}
    settings = Settings(rounds=ROUNDS, local_epochs=EPOCHS, weights="equal", choose="last")

    outcome = simulate(parse_method(method), sites, settings)
    curves = synthetic.train(
        synthetic.Case("sum", EPOCHS, ROUNDS), inputs[None], labels, {k: v[None] for k, v in state.items()}, lr=LR
    )

    found = curves.evaluation[0, synthetic.METHODS.index(method), :, -1]
    for loss, (name, x) in zip(found, zip("AB", inputs, strict=True), strict=True):
        network = _network(state).eval()
        own = {k.removeprefix("model/"): v for k, v in outcome.private[name].items() if k.startswith("model/")}
        network.load_state_dict({**outcome.cast.tensors, **own})
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(network(x), labels)
        assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    assert float(found[0]) != pytest.approx(float(curves.evaluation[0, 0, 0, 0]), rel=1e-2)  # it did train


def test_one_mark_is_the_loss_of_the_network_as_drawn() -> None:
    """Column 0: the same for both methods, in training by batch statistics."""
    inputs, labels = synthetic.draw_data(samples=10, seed=1)
    state = synthetic.draw_network(seed=2)
    curves = synthetic.train(synthetic.Case("mean", 1, 1), inputs[None], labels, {k: v[None] for k, v in state.items()})

    with torch.no_grad():
        wanted = [nn.functional.cross_entropy(_network(state).train()(x), labels) for x in inputs]
    torch.testing.assert_close(curves.training[0, :, :, 0], torch.stack(wanted).expand(2, 2))
    assert curves.rounds.tolist() == [0, 1]
    torch.testing.assert_close(curves.training[..., 1], curves.training[..., 0])  # what the first step saw


def test_data_are_as_described() -> None:
    """Means of -1 and +1; client 1 uncorrelated, every second example of client 2 correlated by 0.9."""
    inputs, labels = synthetic.draw_data(samples=4000, correlation=0.9)
    for client in inputs:
        assert float(client[labels == 0].mean()) == pytest.approx(-1, abs=0.05)
        assert float(client[labels == 1].mean()) == pytest.approx(1, abs=0.05)
    of_class = inputs[:, labels == 1]
    first, plain, mixed = (torch.corrcoef(x.T)[0, 1] for x in (of_class[0], of_class[1, ::2], of_class[1, 1::2]))
    assert float(first) == pytest.approx(0, abs=0.06)
    assert float(plain) == pytest.approx(0, abs=0.08)
    assert float(mixed) == pytest.approx(0.9, abs=0.02)


def test_an_odd_number_of_examples_is_refused() -> None:
    """Half of them are correlated."""
    with pytest.raises(ConfigError, match="samples=3 must be even"):
        synthetic.draw_data(samples=3)


def test_the_figure_has_a_row_a_case() -> None:
    """Three panels each: training, evaluation, difference."""
    inputs, labels = synthetic.draw_data(samples=4)
    stacked = {k: torch.stack([v, v]) for k, v in synthetic.draw_network(hidden=4).items()}
    cases = [synthetic.Case("mean", 1, 3), synthetic.Case("sum", 2, 3)]
    curves = [synthetic.train(case, torch.stack([inputs, inputs]), labels, stacked) for case in cases]
    figure = plot_synthetic(cases, curves)
    assert len(figure.axes) == 6
    assert "sum loss, E = 2: fedavg - fedbn, averaged" in {ax.get_title() for ax in figure.axes}
