import math
from contextlib import contextmanager

import pytest
import torch
from laws import difference
from torch import nn

from monai_fedskew.core import Broadcast, adapt_network, all_keys, restore, snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS, parse_method
from monai_fedskew.methods.adapted import adapted_network
from monai_fedskew.methods.moon import contrast, moon
from monai_fedskew.networks import ConnectomeMLP
from monai_fedskew.networks.projection import ProjectionHead

LAST = {"choose": "last"}


def pointing(weight: float) -> nn.Module:
    """A network whose projection of the input 1 is (weight, 1)."""
    net = adapt_network(nn.Sequential(nn.Linear(1, 2)), moon(dim=2).parts, 0)
    head = net[0]
    for p in net.parameters():
        nn.init.zeros_(p)
    nn.init.ones_(head.hidden.weight)
    aim(net, weight)
    return net


def aim(net, weight: float) -> None:
    """Point the projection elsewhere, as training or a broadcast would."""
    with torch.no_grad():
        net[0].project.weight.copy_(torch.tensor([[weight], [1.0]]))


def at(view, net, method):
    """A site whose extra passes are restored as a real one's."""

    @contextmanager
    def replay(part):
        modes = [(module, module.training) for module in net.modules()]
        yield
        for module, training in modes:
            module.training = training

    site = view("A", model=net)
    site.replay = replay
    return site, method.parts[0].bind(site)


def receive(net, bound, weight: float, round: int) -> None:
    """The server's model arrives."""
    aim(net, weight)
    bound.receive(Broadcast(round, snapshot(net, net.state_dict())))


def step(net, site, batch=1) -> torch.Tensor:
    """The loss of one batch of ones, the task's part of which is 0."""
    images = torch.ones(batch, 1)
    pred = net.train()(images)
    return site.stages["add"]({"image": images, "pred": pred, "loss": 0 * pred.sum()})


def test_contrast_by_hand() -> None:
    """cos(z, z_g) = 0.6, cos(z, z_p) = 0.8, tau = 0.5: log(1 + e^((0.8 - 0.6) / 0.5)) = log(1 + e^0.4) = 0.9130;
    averaged over a batch with its mirror, log(1 + e^-0.4) = 0.5130: 0.7130."""
    z, received, previous = torch.tensor([[[2.0, 0.0]], [[0.6, 0.8]], [[0.8, 0.6]]])

    assert contrast(z, received, previous, 0.5).item() == pytest.approx(0.9130, abs=1e-4)
    both = contrast(z.expand(2, 2), torch.cat([received, previous]), torch.cat([previous, received]), 0.5)
    assert both.item() == pytest.approx(0.7130, abs=1e-4)


def test_previous_is_the_own_local_model_and_received_the_aggregate(view) -> None:
    """Case 11: local weights 5 and 1 after round 1, aggregate 3, evaluated, then round 2 begins. Site 0: z = z_g =
    (3, 1), z_p = (5, 1), cosines 1 and 16 / sqrt(10 * 26) = 0.9923: log(1 + e^(-0.0077 / 0.5)) = 0.6855. Site 1:
    z_p = (1, 1), cosine 4 / sqrt(10 * 2) = 0.8944: log(1 + e^-0.2111) = 0.5931. Were the previous model the aggregate,
    both were log 2 = 0.6931."""
    for local, cosine, expected in ((5.0, 16 / math.sqrt(260), 0.6855), (1.0, 4 / math.sqrt(20), 0.5931)):
        net = pointing(0.0)
        site, bound = at(view, net, moon(dim=2))
        receive(net, bound, 0.0, 1)
        aim(net, local)
        bound.end_round()
        receive(net, bound, 3.0, 2)  # to be evaluated
        receive(net, bound, 3.0, 2)  # to be trained

        loss = step(net, site).item()

        assert loss == pytest.approx(math.log(1 + math.exp((cosine - 1) / 0.5)), abs=1e-6)
        assert loss == pytest.approx(expected, abs=1e-4)
        assert bound.private()["0.project.weight"].tolist() == [[local], [1.0]]


def test_in_the_first_round_both_references_are_the_received_model(view) -> None:
    """Case 11: previous = initial model: whatever z, log 2 without a gradient; "official" has no term."""
    net = pointing(0.0)
    site, bound = at(view, net, moon(mu=3, dim=2))
    receive(net, bound, 0.0, 1)
    aim(net, 2.0)

    loss = step(net, site)
    loss.backward()

    assert loss.item() == pytest.approx(3 * math.log(2))
    assert not any(p.grad.any() for p in net.parameters())
    site, bound = at(view, net, moon(mu=3, dim=2, variant="official"))
    receive(net, bound, 0.0, 1)
    assert step(net, site).item() == 0.0


def test_gradient_flows_through_the_live_model_only(view) -> None:
    """It turns z = (3, 1) away from z_p = (1, 1), up; the classifier, which the term does not see, has none."""
    net = pointing(0.0)
    site, bound = at(view, net, moon(dim=2))
    aim(net, 1.0)
    bound.end_round()
    receive(net, bound, 3.0, 2)

    loss = step(net, site)
    loss.backward()

    assert net[0].project.weight.grad[0, 0] < 0
    assert net[0].classify.weight.grad.abs().sum() == 0


def test_passes_of_other_parts_are_not_taken_for_the_batch(view) -> None:
    """Of two training passes the first counts; a batch that never passed is an error, not another batch's term."""
    net = pointing(0.0)
    site, bound = at(view, net, moon(dim=2))
    aim(net, 1.0)
    bound.end_round()
    receive(net, bound, 3.0, 2)
    with torch.no_grad():
        net(torch.ones(1, 1))
    images = torch.ones(1, 1)
    pred = net(images)
    net(-torch.ones(1, 1))
    output = {"image": images, "pred": pred, "loss": 0 * pred.sum()}

    assert site.stages["add"](output).item() == pytest.approx(0.5931, abs=1e-4)
    with pytest.raises(RoundError, match="site A: moon saw no projections of a batch of 1"):
        site.stages["add"](output)
    net(torch.ones(2, 1))
    with pytest.raises(RoundError, match="moon saw 2 projections of a batch of 1"):
        site.stages["add"](output)


def test_a_layer_held_twice_is_one_layer(view) -> None:
    """Nothing was trained, so both references are alike and the term is log 2, whatever names the layer goes by."""
    layer = nn.Linear(1, 1)
    net = adapt_network(nn.Sequential(layer, layer, nn.Linear(1, 2)), moon(dim=2).parts, 0)
    site, bound = at(view, net, moon(dim=2))
    bound.receive(Broadcast(1, {}))
    bound.end_round()
    bound.receive(Broadcast(2, {}))

    assert step(net, site).item() == pytest.approx(math.log(2))
    assert net[0] is net[1] is layer


def test_mu_zero_attaches_nothing(view) -> None:
    """No term, no copy of any model."""
    net = pointing(0.0)

    site, bound = at(view, net, moon(mu=0, dim=2))
    bound.end_round()

    assert (site.stages, bound.private()) == ({}, {})
    assert not net[0].project._forward_hooks


def test_a_network_that_was_not_adapted_is_refused(view) -> None:
    """A part bound by hand says what is missing."""
    with pytest.raises(ConfigError, match="site A: moon finds no projection head"):
        moon().parts[0].bind(view("A"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("moon:mu=-1", r"method moon: mu=-1\.0 must be a finite number of at least 0"),
        ("moon:tau=0", r"method moon: tau=0\.0 must be a finite number above 0"),
        ("moon:tau=inf", "method moon: tau=inf must be a finite number above 0"),
        ("moon:dim=1", "method moon: dim=1 must be a whole number, 2 or more"),
        ("moon:dim=1.5", "method moon: dim='1.5' must be int"),
        ("moon:variant=mine", "method moon: variant='mine' must be one of paper, official"),
    ],
)
def test_wrong_text_is_refused(text, message) -> None:
    """The error names method, parameter, value and what is allowed."""
    with pytest.raises(ConfigError, match=message):
        parse_method(text)


@pytest.mark.parametrize("arguments", [{"mu": True}, {"tau": "1"}, {"dim": True}, {"variant": "mine"}])
def test_wrong_values_in_python_are_refused(arguments) -> None:
    """The factory checks for itself."""
    with pytest.raises(ConfigError, match=f"method moon: {next(iter(arguments))}="):
        METHODS["moon"](**arguments)


def test_all_entries_are_shared() -> None:
    """MOON changes training, not what leaves the site."""
    assert moon().share == all_keys()


def test_the_term_begins_in_the_second_round(sources) -> None:
    """On a real bundle: round 1 is that of mu = 0 bit for bit, round 2 is not; both variants make the same steps."""
    runs = {
        (text, rounds): simulate(parse_method(text), sources, Settings(rounds=rounds, **LAST)).last
        for text in ("moon", "moon:variant=official", "moon:mu=0")
        for rounds in (1, 2)
    }

    for rounds in (1, 2):
        assert difference(runs["moon", rounds], runs["moon:variant=official", rounds]) == ""
    assert difference(runs["moon", 1], runs["moon:mu=0", 1]) == ""
    assert difference(runs["moon", 2], runs["moon:mu=0", 2]) != ""


def test_extra_passes_leave_no_trace(sources) -> None:
    """A term of weight 1e-30 changes no bit: not the dropout of the batches after, not the running statistics."""
    settings = Settings(rounds=3, **LAST)

    tiny, none = (simulate(parse_method(text), sources, settings) for text in ("moon:mu=1e-30", "moon:mu=0"))

    assert difference(tiny.last, none.last) == ""


def test_previous_outlives_evaluation_and_rounds_without_the_site(sources) -> None:
    """Case 11: private state is the network as training left it, whatever is received and scored afterwards."""
    client = Client(parse_method("moon+fedbn"), sources["A"], Settings(rounds=3))
    tensors = client.survey().tensors
    update = client.fit(Broadcast(1, tensors))
    trained = {**update.tensors, **snapshot(client.site.model, client.kept)}

    for round in (2, 3):
        client.evaluate(Broadcast(round, {key: torch.zeros_like(value) for key, value in tensors.items()}))

    kept = {k.removeprefix("part.moon/"): v for k, v in client.private().items() if k.startswith("part.moon/")}
    assert difference(kept, trained) == ""


def test_the_received_model_has_the_sites_own_norms(sources) -> None:
    """With FedBN z_g is that of the broadcast and the private norms at the start of the round, recomputed by hand."""
    client = Client(parse_method("moon:mu=2+fedbn"), sources["A"], Settings(rounds=2))
    site, model = client.site, client.site.model
    tensors = client.fit(Broadcast(1, client.survey().tensors)).tensors
    cast = Broadcast(2, {k: v * 0.9 if v.is_floating_point() else v for k, v in tensors.items()})
    previous, norms = client.bound["moon"].private(), snapshot(model, client.kept)
    client._receive(cast)
    images = next(iter(site.examples()))[:10]
    pred = model.train()(images)
    found = site._seams.chains["add"]["moon"]({"image": images, "pred": pred, "loss": torch.tensor(0.0)})

    head = next(m for m in model.modules() if isinstance(m, ProjectionHead))
    projections: list[torch.Tensor] = []
    head.project.register_forward_hook(lambda module, args, out: projections.append(out))
    for state in ({**cast.tensors, **norms}, previous):
        restore(model, state)
        model.eval()(images)
    site.seed(0, 2)
    restore(model, {**cast.tensors, **norms})
    model.train()(images)
    z_g, z_p, z = projections
    assert found.item() == pytest.approx(2 * contrast(z, z_g, z_p, 0.5).item(), abs=1e-6)


def test_an_exported_network_is_rebuilt_with_its_head() -> None:
    """What inference.yaml names builds the keys the weights were saved under, and takes them."""
    trained = adapt_network(ConnectomeMLP(6, 4), parse_method("moon:dim=8+fedbn").parts, 0)

    rebuilt = adapted_network(ConnectomeMLP(6, 4), "moon:dim=8+fedbn", 0)
    rebuilt.load_state_dict(trained.state_dict())

    vectors = torch.randn(3, 6)
    assert torch.equal(rebuilt.eval()(vectors), trained.eval()(vectors))


def test_a_previous_model_of_another_network_is_refused(view) -> None:
    """A store of another study cannot slip in."""
    _, bound = at(view, pointing(0.0), moon(dim=2))

    with pytest.raises(StateError, match="site A: previous model of moon: no key matches"):
        bound.restore({"weight": torch.zeros(1)})


def test_half_precision_projections_are_compared_in_float32() -> None:
    """Under automatic mixed precision the cosines keep their digits."""
    z, received, previous = torch.tensor([[[2.0, 0.0]], [[0.6, 0.8]], [[0.8, 0.6]]]).half()

    assert contrast(z, received, previous, 0.5).dtype == torch.float32
