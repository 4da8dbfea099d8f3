from dataclasses import replace

import pytest
import torch
from torch import nn

from monai_fedskew.core import Broadcast, Survey, Update, WeightedMean, parse, snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS, fednova

HALF = {"A": 0.5, "B": 0.5}
W = frozenset({"w"})


def scalar() -> nn.Linear:
    """A network of one weight, at 0."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    return net


def trained(view, gradients, *, site="A", mu=0.0, start=0.0, schedule=None, **options):
    """A site's weight and report after one step a gradient; the proximal term, if any, is added to each."""
    at = view(site, model=scalar())
    nn.init.constant_(at.model.weight, start)
    at.optimizer = torch.optim.SGD(at.model.parameters(), **{"lr": 0.1, **options})
    bound = fednova(mu).parts[0].bind(at)
    bound.receive(Broadcast(2, snapshot(at.model, ["weight"])))
    for step, gradient in enumerate(gradients):
        if schedule:
            at.optimizer.param_groups[0]["lr"] = schedule[step]
        at.optimizer.zero_grad()
        loss = gradient * at.model.weight.sum()
        (at.stages["add"]({"loss": loss}) if mu else loss).backward()
        at.stages["clip"]()
        at.optimizer.step()
    return at.model.weight.item(), bound.end_round()


def update(site: str, w: float, a: float, tau: float | None = None, **others: torch.Tensor) -> Update:
    """What the server gets of a site."""
    told = {"a": a, "tau": a if tau is None else tau}
    aux = {"fednova": {key: torch.tensor(value, dtype=torch.float64) for key, value in told.items()}}
    return Update(site, 1, {"w": torch.tensor([w], dtype=torch.float64), **others}, 1, 1, 1, aux)


def averaged(aggregate, updates, current=None, memory=None):
    """The next memory and model from 0."""
    zero = {key: torch.zeros_like(value) for key, value in updates[0].tensors.items()}
    return aggregate.step(memory or {}, zero if current is None else current, updates, HALF, W)


def test_case_by_hand(view) -> None:
    """Case 12: lr 0.1, gradient +1 once at A, -1 four times at B: movements -0.1 and +0.4, a = 0.1 and 0.4, together
    0.5*0.1 + 0.5*0.4 = 0.25 (tau_eff 2.5), directions -1 and +1: 0 + 0.25*(0.5 - 0.5) = 0. FedAvg: (-0.1 + 0.4)/2 =
    0.15."""
    (w_a, told_a), (w_b, told_b) = trained(view, [1.0]), trained(view, [-1.0] * 4)

    sent = [update("A", w_a, told_a["a"].item()), update("B", w_b, told_b["a"].item())]
    nova, mean = (averaged(aggregate, sent)[1]["w"].item() for aggregate in (fednova().aggregate, WeightedMean()))

    assert (told_a["a"].item(), told_b["a"].item()) == (pytest.approx(0.1), pytest.approx(0.4))
    assert nova == pytest.approx(0.0, abs=1e-15)
    assert mean == pytest.approx(0.15)


def test_momentum_by_hand(view) -> None:
    """lr 0.1, momentum 0.5, three steps: c = 1, 1.5, 1.75, so a = 0.1*4.25; the closed form: (3 - 0.5*(1 - 0.125)/0.5)
    /0.5 = 4.25. Nesterov: 1 + 0.5 c = 1.5, 1.75, 1.875, so 0.1*5.125."""
    plain = trained(view, [1.0] * 3, momentum=0.5)[1]
    nesterov = trained(view, [1.0] * 3, momentum=0.5, nesterov=True)[1]

    assert (plain["a"].item(), plain["tau"].item()) == (pytest.approx(0.425), pytest.approx(0.425))
    assert nesterov["a"].item() == pytest.approx(0.5125)


def test_proximal_term_by_hand(view) -> None:
    """lr 0.1, mu 1, gradient 1: A makes 1 step to -0.1; B makes 3: -0.1, -0.19, -0.271, so a = 0.1 and 0.271, tau = 0.1
    and 0.3. Both directions are 1, so x = -(0.5*0.1 + 0.5*0.3) = -0.2."""
    (w_a, a), (w_b, b) = trained(view, [1.0], mu=1.0), trained(view, [1.0] * 3, mu=1.0)

    sent = [update("A", w_a, a["a"].item(), a["tau"].item()), update("B", w_b, b["a"].item(), b["tau"].item())]

    assert (w_b, b["a"].item(), b["tau"].item()) == (pytest.approx(-0.271), pytest.approx(0.271), pytest.approx(0.3))
    assert averaged(fednova(1.0).aggregate, sent)[1]["w"].item() == pytest.approx(-0.2)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("schedule", [None, [0.1, 0.1, 0.05, 0.0, 0.01]])
def test_a_is_the_way_of_the_real_optimizer(view, mu, options, schedule) -> None:
    """Against a gradient of 1 torch's own SGD goes exactly a, with momentum, proximal term and falling rates."""
    w, told = trained(view, [1.0] * 5, mu=mu, start=2.0, schedule=schedule, **options)

    assert told["a"].item() == pytest.approx(2.0 - w, rel=1e-12)
    assert (told["tau"].item() > told["a"].item()) == (mu > 0)


def test_equal_steps_are_fedavg_bit_for_bit() -> None:
    """The weighted mean itself, not a sum of differences."""
    w, y = torch.randn(500), [torch.randn(500) for _ in range(2)]
    sent = [replace(update(site, 0.0, 0.3), tensors={"w": value}) for site, value in zip("AB", y, strict=True)]

    out = fednova().aggregate.step({}, {"w": w}, sent, {"A": 0.3, "B": 0.7}, W)[1]

    assert torch.equal(out["w"], WeightedMean().step({}, {"w": w}, sent, {"A": 0.3, "B": 0.7}, W)[1]["w"])


def test_buffers_are_averaged_and_counters_take_the_maximum() -> None:
    """Only parameters are normalised: with a = 1 and 3, the variance is (2 + 6)/2 = 4."""
    sent = [
        update("A", 1.0, 1.0, var=torch.tensor(2.0), n=torch.tensor(3)),
        update("B", 1.0, 3.0, var=torch.tensor(6.0), n=torch.tensor(9)),
    ]

    out = averaged(fednova().aggregate, sent)[1]

    assert (out["var"].item(), out["n"].item(), out["n"].dtype) == (4.0, 9, torch.int64)
    assert out["w"].item() == pytest.approx(2 * (0.5 / 1 + 0.5 / 3))  # t = 2


def test_server_momentum_by_hand() -> None:
    """gmf 0.5, one movement of 1 a round: v = 1, x = 1; v = 0.5 + 1, x = 2.5."""
    aggregate = fednova(gmf=0.5).aggregate

    memory, first = averaged(aggregate, [update("A", 1.0, 0.2), update("B", 1.0, 0.2)])
    memory, second = averaged(aggregate, [update("A", 2.0, 0.2), update("B", 2.0, 0.2)], first, memory)

    assert (first["w"].item(), second["w"].item(), memory["w"].item()) == (1.0, 2.5, 1.5)


def test_momentum_buffers_start_at_zero_in_every_round(view) -> None:
    """What the run keeps of the optimizer is forgotten, since a counts from an empty buffer."""
    site = view("A", model=scalar())
    site.optimizer = torch.optim.SGD(site.model.parameters(), lr=0.1, momentum=0.9)
    bound = fednova().parts[0].bind(site)
    for _ in range(2):
        bound.receive(Broadcast(1, snapshot(site.model, ["weight"])))
        assert not site.optimizer.state
        site.model.weight.sum().backward()
        site.stages["clip"]()
        site.optimizer.step()
        assert site.optimizer.state
        bound.receive(Broadcast(2, snapshot(site.model, ["weight"])))
        assert not site.optimizer.state


def test_groups_may_differ_in_a_fixed_proportion(view) -> None:
    """A head with ten times the rate: a is told in the mean rate, and cancels between sites."""
    site = view("A", model=nn.Linear(1, 1))
    groups = [{"params": [site.model.weight], "lr": 0.1}, {"params": [site.model.bias], "lr": 1.0}]
    site.optimizer = torch.optim.SGD(groups)
    bound = fednova().parts[0].bind(site)
    bound.receive(Broadcast(1, snapshot(site.model, ["weight", "bias"])))
    for factor in (1.0, 0.5):
        for group, lr in zip(site.optimizer.param_groups, (0.1, 1.0), strict=True):
            group["lr"] = lr * factor
        site.stages["clip"]()
    assert bound.end_round()["a"].item() == pytest.approx(0.55 + 0.275)

    site.stages["clip"]()
    site.optimizer.param_groups[0]["lr"] = 0.2
    with pytest.raises(RoundError, match=r"site A: the learning rates .* must keep their proportions within a round"):
        site.stages["clip"]()


def test_groups_must_be_alike_with_a_proximal_term(view) -> None:
    """(1 - lr mu) is another factor in each group."""
    site = view("A", model=nn.Linear(1, 1))
    groups = [{"params": [site.model.weight], "lr": 0.1}, {"params": [site.model.bias], "lr": 1.0}]
    site.optimizer = torch.optim.SGD(groups)
    fednova(mu=0.1).parts[0].bind(site)

    with pytest.raises(RoundError, match="must be equal with mu > 0"):
        site.stages["clip"]()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torch.optim.Adam, r"site A: fednova needs torch\.optim\.SGD, not Adam: it counts"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), r"without dampening \(here 0\.1\)"),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), r"without maximize \(here True\)"),
        (
            lambda p: torch.optim.SGD([{"params": p[:1], "momentum": 0.1}, {"params": p[1:], "momentum": 0.9}], lr=0.1),
            r"site A: fednova needs one momentum in all parameter groups, not momentum=0\.1 .* momentum=0\.9",
        ),
    ],
)
def test_other_optimizers_are_refused(view, build, message) -> None:
    """What a cannot be computed for is named, at bind."""
    site = view("A", model=nn.Linear(1, 1))
    site.optimizer = build(list(site.model.parameters()))

    with pytest.raises(ConfigError, match=message):
        fednova().parts[0].bind(site)


def test_a_round_that_goes_nowhere_is_an_error(view) -> None:
    """A learning rate of 0, or mu times it beyond 2, has no direction to tell."""
    with pytest.raises(RoundError, match="site A: fednova cannot normalise a round that goes as far as 0"):
        trained(view, [1.0], lr=0.0)
    with pytest.raises(RoundError, match="site A: fednova cannot normalise a round that goes as far as -"):
        trained(view, [1.0, 1.0], mu=25.0)


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"a": torch.tensor(1.0, dtype=torch.float64)},
        {"a": torch.tensor(0.0, dtype=torch.float64), "tau": torch.tensor(1.0, dtype=torch.float64)},
        {"a": torch.tensor(1.0, dtype=torch.float64), "tau": torch.tensor(float("inf"), dtype=torch.float64)},
        {"a": torch.tensor([1.0], dtype=torch.float64), "tau": torch.tensor(1.0, dtype=torch.float64)},
        {"a": torch.tensor(1), "tau": torch.tensor(1.0, dtype=torch.float64)},
    ],
)
def test_malformed_reports_are_refused(report) -> None:
    """The server excludes such a site; nothing is divided by it."""
    server = Server(fednova(), Settings(rounds=1))
    server.open([Survey(site, {"w": torch.zeros(1)}, W, 1, 1) for site in "AB"])
    sent = Update("B", 1, {"w": torch.ones(1)}, 1, 1, 1, {"fednova": report} if report else {})

    with pytest.raises(StateError, match="site B: .*(fednova's (a|tau)|report of fednova)"):
        server.check(sent)


def test_fedprox_is_refused_beside_it() -> None:
    """Its term would go uncounted, in either order."""
    for text in ("fednova+fedprox", "fedprox:mu=0.1+fednova"):
        with pytest.raises(ConfigError, match=r"write fednova:mu="):
            parse(text, METHODS)


@pytest.mark.parametrize("arguments", [{"mu": -1.0}, {"mu": float("nan")}, {"gmf": 1.0}, {"gmf": -0.1}])
def test_values_out_of_range_are_refused(arguments) -> None:
    """The error names parameter and value."""
    with pytest.raises(ConfigError, match=f"method fednova: {next(iter(arguments))}="):
        fednova(**arguments)


def test_sites_of_equal_size_are_fedavg_bit_for_bit(sources) -> None:
    """With momentum, dropout and batch norm: the weighted mean itself."""
    settings = Settings(rounds=2, choose="last")
    nova, mean = (simulate(parse(text, METHODS), sources, settings).last for text in ("fednova", "fedavg"))

    assert all(torch.equal(nova[key], mean[key]) for key in mean)


def test_unequal_steps_are_not_and_norms_stay_private_under_fedbn(sources) -> None:
    """Batches of 6 at one site, which makes 6 steps where the other makes 4."""
    uneven = {"A": replace(sources["A"], overrides={"batch_size": 6}), "B": sources["B"]}
    outcomes = [
        simulate(parse(text, METHODS), uneven, Settings(rounds=1, choose="last")) for text in ("fednova+fedbn", "fedbn")
    ]
    nova, mean = (outcome.cast.tensors for outcome in outcomes)

    assert set(nova) == set(mean) == {"0.weight", "0.bias", "4.weight", "4.bias"}
    assert not torch.equal(nova["0.weight"], mean["0.weight"])
    for site in uneven:  # one round from the same start: the site's own norm saw what it sees without fednova
        key = "model/1.running_mean"
        assert torch.equal(outcomes[0].private[site][key], outcomes[1].private[site][key])
