"""The site's end: what it receives, sends and keeps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from laws import difference
from variants import NumberSite

from monai_fedskew.core.keys import except_prefix
from monai_fedskew.core.messages import Broadcast
from monai_fedskew.core.method import Method
from monai_fedskew.core.state import snapshot
from monai_fedskew.errors import ConfigError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method

SETTINGS = Settings(rounds=3, choose="last")


@pytest.fixture
def client(sources: dict[str, Any]) -> Client:
    """Site A under FedBN."""
    return Client(parse_method("fedbn"), sources["A"], SETTINGS)


def _cast(client: Client, round: int = 1) -> Broadcast:
    return Broadcast(round, snapshot(client.site.model, client.shared))


def test_the_survey_tells_size_and_first_model(client: Client) -> None:
    """36 windows of 9 subjects; batch norm stays, so the four linear entries are shared and all are trained."""
    survey = client.survey()
    assert (survey.site, survey.samples, survey.groups) == ("A", 36, 9)
    assert set(survey.tensors) == {"0.weight", "0.bias", "4.weight", "4.bias"} == survey.parameters


def test_an_update_counts_its_steps_and_tells_its_loss(client: Client) -> None:
    """36 windows in batches of 10 make 4 steps an epoch; samples are windows, not batches."""
    update = client.fit(_cast(client))
    assert (update.round, update.samples, update.groups, update.steps) == (1, 36, 9, 4)
    assert update.metrics["loss"] > 0


def test_a_broadcast_that_lacks_a_key_is_refused(client: Client) -> None:
    """Site, round and key are named, and the network is left as it was."""
    cast = _cast(client)
    tensors = {key: value + 1 for key, value in cast.tensors.items() if key != "4.bias"}
    with pytest.raises(StateError, match=r"site A: broadcast of round 1 lacks 1 keys \(4.bias\)"):
        client.fit(Broadcast(1, tensors))
    assert difference(snapshot(client.site.model, client.shared), cast.tensors) == ""


def test_a_broadcast_of_another_shape_is_refused(client: Client) -> None:
    """Nothing is written."""
    cast = _cast(client)
    tensors = {key: torch.zeros(1) if key == "4.bias" else value + 1 for key, value in cast.tensors.items()}
    with pytest.raises(StateError, match=r"4\.bias.*\(2,\).*\(1,\)"):
        client.evaluate(Broadcast(1, tensors))
    assert difference(snapshot(client.site.model, client.shared), cast.tensors) == ""


def test_private_state_of_another_method_is_refused(client: Client, sources: dict[str, Any]) -> None:
    """SiloBN keeps fewer entries than FedBN."""
    other = Client(parse_method("silobn"), sources["A"], SETTINGS)
    with pytest.raises(StateError, match=r"site A: private state lacks 2 keys \(1.bias, 1.weight\)"):
        client.restore(other.private())


def test_the_optimizer_is_private_when_it_is_kept(sources: dict[str, Any]) -> None:
    """Momentum never leaves the site, and is dropped where every round starts afresh."""
    for kept in ("keep", "reset"):
        client = Client(parse_method("fedavg"), sources["A"], replace(SETTINGS, optimizer_state=kept))
        update = client.fit(_cast(client))
        assert any(key.startswith("optimizer/") for key in client.private()) == (kept == "keep")
        assert not any("momentum" in key for key in update.tensors)


def test_a_score_belongs_to_the_round_that_made_the_model(sources: dict[str, Any]) -> None:
    """The broadcast of round 3 is the aggregate after 2 rounds; the test split is called test."""
    for split, name in (("train", "validation"), ("test", "test")):
        client = Client(parse_method("fedavg"), sources["A"], SETTINGS, split=split)
        score = client.evaluate(_cast(client, round=3))
        assert score is not None
        assert (score.round, score.split) == (2, name)


def test_nothing_to_score_on_is_no_score(sources: dict[str, Any]) -> None:
    """Without validation data evaluate answers None."""
    source = replace(sources["A"], overrides={"validation_fraction": 0.0})
    client = Client(parse_method("fedavg"), source, SETTINGS)
    assert client.evaluate(_cast(client)) is None


def test_a_method_that_shares_nothing_is_refused() -> None:
    """Only the local baseline may."""
    method = Method("mine", share=except_prefix("weight"))
    with pytest.raises(ConfigError, match="site A: method mine shares no entry"):
        Client(method, NumberSite("A", 3, 1.0), SETTINGS)


def test_scoring_changes_nothing(client: Client) -> None:
    """Weights, private state and the training that follows are the same with a score before."""
    cast, private = _cast(client), client.private()
    plain = client.fit(cast)
    client.restore(private)
    client.evaluate(cast)
    assert difference(client.private(), private) == ""
    assert difference(client.fit(cast).tensors, plain.tensors) == ""
