"""Runs of single methods, held against what they must come to."""

import itertools
from typing import Any

import pytest
import torch
from laws import assert_same, difference, method

from monai_fedskew.core.seeding import derive
from monai_fedskew.core.state import restore
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.sampling import sample_sites
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings


def test_fedprox_with_mu_is_not_fedavg(sources: dict[str, Any]) -> None:
    """The term is not silently zero."""
    settings = Settings(rounds=2)
    plain, prox = (simulate(method(text), sources, settings).last for text in ("fedavg", "fedprox:mu=0.5"))
    assert difference(plain, prox) != ""


def test_order_of_composition_does_not_matter(sources: dict[str, Any]) -> None:
    """All orders of fedrdn, fedbn and fedprox give the same bits."""
    settings = Settings(rounds=2)
    pieces = ("fedrdn", "fedbn", "fedprox:mu=0.2")
    first, *others = (simulate(method("+".join(o)), sources, settings) for o in itertools.permutations(pieces))
    for other in others:
        assert_same(first, other)


def test_one_site_with_fedrdn_is_per_site_normalisation(sources: dict[str, Any]) -> None:
    """With one site to draw from, the draw is always its own pair."""
    settings = Settings(rounds=2)
    first, second = (simulate(method(text), {"B": sources["B"]}, settings) for text in ("fedrdn", "sitenorm"))
    assert difference(first.cast.tensors, second.cast.tensors) == ""


@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
def test_one_site_with_fedavg_is_a_plain_training_loop(optimizer_state: Any, sources: dict[str, Any]) -> None:
    """Momentum, a StepLR and dropout: a loop written by hand gives the same weights (to float rounding)."""
    settings = Settings(rounds=4, local_epochs=2, optimizer_state=optimizer_state, choose="last")
    federated = simulate(method("fedavg"), {"B": sources["B"]}, settings)
    site = sources["B"].open()
    network = site.model
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for round in range(1, 5):
        torch.manual_seed(derive(0, "B", round))
        if optimizer_state == "reset":
            optimizer.state.clear()
        for epoch in range(2):
            optimizer.param_groups[0]["lr"] = 0.05 * 0.7 ** (((round - 1) * 2 + epoch) // 3)
            for batch in site.trainer.data_loader:
                network.train()
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(batch["image"]), batch["label"]).backward()
                optimizer.step()
    for key, value in network.state_dict().items():
        torch.testing.assert_close(value, federated.cast.tensors[key], rtol=0, atol=1e-6)


def test_evaluation_uses_the_sites_own_norm_state(sources: dict[str, Any]) -> None:
    """FedBN's score is that of the shared weights with the site's own batch norm, recomputed by hand (case 34)."""
    outcome = simulate(method("fedbn"), sources, Settings(rounds=2, choose="last"))
    for name, source in sources.items():
        site = source.open()
        restore(site.model, outcome.cast.tensors)
        own = {key.removeprefix("model/"): value for key, value in outcome.private[name].items()}
        restore(site.model, own)
        site.model.eval()
        batch = next(iter(site.evaluator.data_loader))
        accuracy = (site.model(batch["image"]).argmax(1) == batch["label"]).float().mean().item()
        score = next(s for s in outcome.history.scores if (s.site, s.round, s.split) == (name, 2, "validation"))
        assert score.metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    means = [outcome.private[name]["model/1.running_mean"] for name in sources]
    assert not torch.equal(means[0], means[1])


def test_norm_state_lives_on_over_rounds(sources: dict[str, Any]) -> None:
    """After r rounds a site has counted r times its steps, kept or rebuilt (case 34)."""
    for max_alive in (None, 1):
        seen: list[int] = []
        for rounds in (1, 2, 3):
            outcome = simulate(method("fedbn"), sources, Settings(rounds=rounds, choose="last"), max_alive=max_alive)
            seen.append(int(outcome.private["A"]["model/1.num_batches_tracked"]))
        assert seen == [seen[0], 2 * seen[0], 3 * seen[0]]


def test_a_late_site_is_surveyed_before_its_first_round(sources: dict[str, Any]) -> None:
    """A hospital that joins after round 1 enters the table of statistics and the next round."""
    settings = Settings(rounds=2, choose="last")
    built = method("fedrdn+fedbn")
    clients = {name: Client(built, sources[name], settings) for name in ("A", "B")}
    server = Server(built, settings)
    server.open([client.survey() for client in clients.values()])
    server.absorb([client.fit(server.cast()) for client in clients.values()])
    clients["C"] = Client(built, sources["C"], settings)
    server.open([clients["C"].survey()])
    assert server.sites == ("A", "B", "C")
    assert server.absorb([client.fit(server.cast()) for client in clients.values()]) == ()
    assert {key.split("/")[0] for key in server.cast().aux["fedrdn"]} == {"A", "B", "C"}


def test_sampling_takes_a_share_of_the_sites_and_spares_the_rest(sources: dict[str, Any]) -> None:
    """With fraction 0.5 two of four sites train, the others keep their private state."""
    outcome = simulate(method("fedbn"), sources, Settings(rounds=1, fraction=0.5, choose="last"))
    chosen = sample_sites(sources, 0.5, seed=0, round=1)
    assert len(chosen) == 2
    kinds = {event.site: event.kind for event in outcome.history.events}
    assert kinds == {site: "trained" if site in chosen else "not_sampled" for site in sources}
    for site in sources:
        assert int(outcome.private[site]["model/1.num_batches_tracked"]) == (0 if site not in chosen else 4)
