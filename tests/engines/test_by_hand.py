"""One-site federations against loops written by hand: nothing of the package makes a step here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import method
from torch import Tensor, nn

from monai_fedskew.core.seeding import derive
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.settings import Settings

ROUNDS, EPOCHS = 4, 2
SETTINGS = Settings(rounds=ROUNDS, local_epochs=EPOCHS, optimizer_state="keep", choose="last")


def _by_hand(
    source: Any,
    *,
    normalise: Callable[[Tensor], Tensor] = lambda images: images,
    term: Callable[[nn.Module, list[Tensor]], Tensor] = lambda network, start: torch.zeros(()),
) -> dict[str, Tensor]:
    """Train the tiny bundle's network: SGD with momentum, a StepLR of step 3 and gamma 0.7, cross-entropy."""
    site = source.open()
    network = site.model
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for round in range(1, ROUNDS + 1):
        torch.manual_seed(derive(0, "B", round))
        start = [parameter.detach().clone() for parameter in network.parameters()]
        for epoch in range(EPOCHS):
            optimizer.param_groups[0]["lr"] = 0.05 * 0.7 ** (((round - 1) * EPOCHS + epoch) // 3)
            for batch in site.trainer.data_loader:
                network.train()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(network(normalise(batch["image"])), batch["label"])
                (loss + term(network, start)).backward()
                optimizer.step()
    return dict(network.state_dict())


def _assert_close(found: dict[str, Tensor], federated: Any) -> None:
    assert found.keys() == federated.cast.tensors.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, federated.cast.tensors[key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mu", [0.2, 5.0])
def test_fedprox_adds_half_mu_times_the_squared_distance(mu: float, sources: dict[str, Any]) -> None:
    """Task loss + mu/2 ||w - w_g||^2 over all parameters, w_g the round's first weights."""

    def term(network: nn.Module, start: list[Tensor]) -> Tensor:
        pairs = zip(network.parameters(), start, strict=True)
        return mu / 2 * sum(((w - w_g) ** 2).sum() for w, w_g in pairs)

    found = _by_hand(sources["B"], term=term)
    _assert_close(found, simulate(method(f"fedprox:mu={mu}"), {"B": sources["B"]}, SETTINGS))
    plain = simulate(method("fedavg"), {"B": sources["B"]}, SETTINGS)
    assert not torch.allclose(found["0.weight"], plain.cast.tensors["0.weight"], atol=1e-4)


def test_sitenorm_subtracts_the_mean_and_divides_by_the_std(sources: dict[str, Any]) -> None:
    """Vectors: each feature by mean and std (n - 1) over the site's training rows, in training."""
    data = sources["B"].open().trainer.data_loader.dataset
    images = data.__getitems__(range(len(data)))["image"].double()
    mean, std = images.mean(0).float(), images.std(0, correction=1).float()
    found = _by_hand(sources["B"], normalise=lambda batch: (batch - mean) / std)
    _assert_close(found, simulate(method("sitenorm"), {"B": sources["B"]}, SETTINGS))


def test_sitenorm_scores_normalised_inputs(sources: dict[str, Any]) -> None:
    """The recorded accuracy is that of (x - mean) / std, and of nothing else."""
    outcome = simulate(method("sitenorm"), {"B": sources["B"]}, SETTINGS)
    site = sources["B"].open()
    data = site.trainer.data_loader.dataset
    images = data.__getitems__(range(len(data)))["image"].double()
    mean, std = images.mean(0).float(), images.std(0, correction=1).float()
    site.model.load_state_dict(outcome.cast.tensors)
    site.model.eval()
    batch = next(iter(site.evaluator.data_loader))
    right = site.model((batch["image"] - mean) / std).argmax(1) == batch["label"]
    score = next(s for s in outcome.history.scores if (s.round, s.split) == (ROUNDS, "validation"))
    assert score.metrics["accuracy"] == pytest.approx(right.float().mean().item(), abs=1e-6)
