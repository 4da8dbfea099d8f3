from dataclasses import replace

import pytest
import torch
from torch import nn

from monai_fedskew.core import Broadcast, Survey, Update, parse, snapshot
from monai_fedskew.engines.simulator import simulate
from monai_fedskew.errors import ConfigError, RoundError, StateError
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import METHODS, scaffold


class Hospital:
    """A site of one weight with a slope of its own, at a real server's disposal."""

    def __init__(self, view, name: str, model: nn.Module | None = None, **options) -> None:
        self.view = view(name, model=nn.Linear(1, 1, bias=False, dtype=torch.float64) if model is None else model)
        if model is None:
            nn.init.zeros_(self.view.model.weight)
        self.view.optimizer = torch.optim.SGD(self.view.model.parameters(), **{"lr": 0.1, **options})
        self.bound = scaffold().parts[0].bind(self.view)

    def survey(self) -> Survey:
        """Tell the first weight and the shapes."""
        model = self.view.model
        keys = frozenset(name for name, _ in model.named_parameters())
        return Survey(self.view.name, snapshot(model, keys), keys, 1, 1, {"scaffold": self.bound.survey()})

    def fit(self, cast: Broadcast, slope, steps: int) -> Update:
        """Make some steps against ``slope``, a number or a function of the weight."""
        model, optimizer = self.view.model, self.view.optimizer
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(cast.tensors[key])
        self.bound.receive(cast)
        for _ in range(steps):
            optimizer.zero_grad()
            value = slope(model.weight.detach()) if callable(slope) else slope
            (value * model.weight).sum().backward()
            self.view.stages["correct"]()
            optimizer.step()
        aux = {"scaffold": self.bound.end_round()}
        return Update(self.view.name, cast.round, snapshot(model, cast.tensors), 1, 1, steps, aux)


def opened(*hospitals: Hospital, lr: float = 1.0) -> Server:
    """A server that has surveyed the sites."""
    server = Server(scaffold(lr), Settings(rounds=9))
    server.open([hospital.survey() for hospital in hospitals])
    return server


def test_two_rounds_by_hand(view) -> None:
    """eta 0.1. Round 1: A makes 2 steps of slope 1 to -0.2, B one of slope -3 to 0.3; x = 0.05; c_A = 0.2/0.2 = 1,
    c_B = -0.3/0.1 = -3, c = (1 - 3)/2 = -1. Round 2, A alone with slope 4: corrected by c - c_A = -2 it goes
    0.05 - 2*0.1*2 = -0.35 = x; c_A = 1 + 1 + 0.4/0.2 = 4, the new slope, and c = -1 + (4 - 1)/2 = 0.5 (N = 2)."""
    a, b = Hospital(view, "A"), Hospital(view, "B")
    server = opened(a, b)

    cast = server.cast()
    server.absorb([a.fit(cast, 1.0, 2), b.fit(cast, -3.0, 1)])
    told = server.cast().aux["scaffold"]["weight"].item()
    assert (server.tensors["weight"].item(), told) == (pytest.approx(0.05), pytest.approx(-1.0))
    assert [h.bound.private()["weight"].item() for h in (a, b)] == [pytest.approx(1.0), pytest.approx(-3.0)]

    server.absorb([a.fit(server.cast(), 4.0, 2)])
    told = server.cast().aux["scaffold"]["weight"].item()
    assert (server.tensors["weight"].item(), told) == (pytest.approx(-0.35), pytest.approx(0.5))
    assert a.bound.private()["weight"].item() == pytest.approx(4.0)


def test_drift_is_corrected(view) -> None:
    """A: (w - 1)^2 / 2 with slope w - 1, B: 4 (w + 1)^2 / 2. Together they are lowest where w - 1 + 4 (w + 1) = 0, at
    -0.6. With 8 local steps of 0.1 SCAFFOLD ends there. Without control variates A keeps 0.9^8 = 0.43 of its way to 1
    and B 0.6^8 = 0.017 of that to -1; their mean stands still at w where 0.57 (w - 1) + 0.983 (w + 1) = 0, -0.266."""

    def end(with_variates: bool) -> float:
        a, b = Hospital(view, "A"), Hospital(view, "B")
        server = opened(a, b)
        for _ in range(20):
            cast = server.cast()
            if not with_variates:
                cast = Broadcast(cast.round, cast.tensors)
                a.bound.restore({})
                b.bound.restore({})
            server.absorb([a.fit(cast, lambda w: w - 1, 8), b.fit(cast, lambda w: 4 * (w + 1), 8)])
        return server.tensors["weight"].item()

    assert end(with_variates=True) == pytest.approx(-0.6, abs=1e-3)
    assert end(with_variates=False) == pytest.approx(-0.266, abs=1e-3)


def test_a_late_site_starts_at_zero_and_lowers_the_mean(view) -> None:
    """c = (2 + 4)/2 = 3 over two sites; with a third, whose c_k is 0, (2 + 4 + 0)/3 = 2."""
    a, b, late = (Hospital(view, name) for name in "ABC")
    server = opened(a, b)
    cast = server.cast()
    server.absorb([a.fit(cast, 2.0, 1), b.fit(cast, 4.0, 3)])
    assert server.cast().aux["scaffold"]["weight"].item() == pytest.approx(3.0)

    server.open([late.survey()])

    assert server.cast().aux["scaffold"]["weight"].item() == pytest.approx(2.0)
    late.fit(server.cast(), 5.0, 1)
    assert late.view.model.weight.item() - server.tensors["weight"].item() == pytest.approx(-0.1 * (5 + 2))
    assert late.bound.private()["weight"].item() == pytest.approx(5.0)


def test_a_lost_update_is_forgotten_at_both_ends(view) -> None:
    """Given back the private state it had before, a site does as if the round had not been."""
    a, b = Hospital(view, "A"), Hospital(view, "B")
    server = opened(a, b)
    cast = server.cast()
    server.absorb([a.fit(cast, 1.0, 2), b.fit(cast, -3.0, 1)])
    before, cast = a.bound.private(), server.cast()
    expected = a.fit(cast, 2.0, 3)

    a.bound.restore(before)
    a.bound.receive(cast)  # as for an evaluation, which must not count
    again = a.fit(cast, 2.0, 3)

    assert torch.equal(expected.tensors["weight"], again.tensors["weight"])
    assert torch.equal(expected.aux["scaffold"]["delta/weight"], again.aux["scaffold"]["delta/weight"])
    a.bound.restore({})
    assert a.bound.private() == {}


def test_weight_decay_and_falling_rates_are_absorbed(view) -> None:
    """Way over the sum of rates: at w = 2, slope 1 and decay 0.5 one step of 0.1 goes 0.1*(1 + 0.5*2) = 0.2, so
    c_k = 2; with rates 0.1 and 0.3 against a slope of 1 it is 0.4/0.4 = 1."""
    decayed = Hospital(view, "A", weight_decay=0.5)
    cast = Broadcast(1, {"weight": torch.full((1, 1), 2.0, dtype=torch.float64)})
    assert decayed.fit(cast, 1.0, 1).aux["scaffold"]["delta/weight"].item() == pytest.approx(2.0)

    slowed = Hospital(view, "B")
    slowed.bound.receive(cast)
    slowed.view.model.weight.detach().fill_(2.0)
    for rate in (0.1, 0.3):
        slowed.view.optimizer.param_groups[0]["lr"] = rate
        slowed.view.model.weight.grad = torch.ones(1, 1, dtype=torch.float64)
        slowed.view.stages["correct"]()
        slowed.view.optimizer.step()
    assert slowed.bound.end_round()["delta/weight"].item() == pytest.approx(1.0)


def test_parameters_are_uniform_and_buffers_weighted() -> None:
    """Weights 0.9 and 0.1: x = 0 + 0.5*((2 + 4)/2 - 0) = 1.5 with lr 0.5; the variance 0.9*1 + 0.1*11 = 2."""
    rows = {"A": (2.0, 1.0, 3), "B": (4.0, 11.0, 5)}
    sent = [
        Update(
            site, 1, {"w": torch.tensor([w]), "var": torch.tensor([v]), "n": torch.tensor(n)}, 1, 1, 1, {"scaffold": {}}
        )
        for site, (w, v, n) in rows.items()
    ]
    current = {"w": torch.zeros(1), "var": torch.zeros(1), "n": torch.tensor(0)}

    out = scaffold(lr=0.5).aggregate.step({}, current, sent, {"A": 0.9, "B": 0.1}, frozenset({"w"}))[1]

    assert {key: value.item() for key, value in out.items()} == {"w": 1.5, "var": pytest.approx(2.0), "n": 5}


def test_frozen_private_and_unused_parameters(view) -> None:
    """No control variate for what is frozen or stays at the site; what the loss does not use has the gradient 0."""
    net = nn.Module()
    net.weight, net.frozen, net.unused, net.kept = (nn.Parameter(torch.zeros(2)) for _ in range(4))
    net.frozen.requires_grad_(False)
    site = Hospital(view, "A", model=net)
    sent = {key: torch.zeros(2) for key in ("weight", "frozen", "unused")}
    cast = Broadcast(1, sent, {"scaffold": {"weight": torch.ones(2), "unused": torch.ones(2)}})
    site.bound.receive(cast)

    net.weight.sum().backward()
    site.view.stages["correct"]()
    site.view.optimizer.step()
    told = site.bound.end_round()

    assert set(site.bound.survey()) == {"shape/weight", "shape/unused", "shape/kept"}
    assert set(told) == {"delta/weight", "delta/unused"}
    assert net.weight.tolist() == pytest.approx([-0.2] * 2)  # gradient 1 and c = 1
    assert net.unused.tolist() == pytest.approx([-0.1] * 2)
    assert site.bound.private()["weight"].tolist() == pytest.approx([1.0] * 2)
    assert site.bound.private()["unused"].tolist() == pytest.approx([0.0] * 2)


def test_a_round_without_a_step_is_an_error(view) -> None:
    """A learning rate of 0 tells nothing of the gradient."""
    site = Hospital(view, "A", lr=0.0)

    with pytest.raises(RoundError, match="site A: the learning rate was 0 in every step"):
        site.fit(Broadcast(1, site.survey().tensors), 1.0, 1)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"delta/weight": torch.zeros(3)}, r"site B: scaffold's change of weight is .* \[3\], surveyed was \[1, 1\]"),
        ({"delta/bias": torch.zeros(1)}, "site B: scaffold's change of bias is .*, surveyed was nothing"),
        (
            {"delta/weight": torch.zeros(1, 1, dtype=torch.int64)},
            r"site B: scaffold's change of weight is torch\.int64",
        ),
        ({"weight": torch.zeros(1, 1)}, "site B: scaffold report has weight"),
        ({}, "site B: the update lacks the report of scaffold"),
    ],
)
def test_malformed_reports_are_refused(view, report, message) -> None:
    """Before they are added to what all sites are told."""
    server = opened(Hospital(view, "A"), Hospital(view, "B"))
    aux = {"scaffold": report} if report else {}
    sent = Update("B", 1, {"weight": torch.zeros(1, 1, dtype=torch.float64)}, 1, 1, 1, aux)

    with pytest.raises(StateError, match=message):
        server.check(sent)


def test_private_entries_may_differ_between_sites(view) -> None:
    """A head of another size that stays at its site is no contradiction."""
    part, a, b = scaffold().parts[0], torch.tensor([2, 3]), torch.tensor([5, 3])

    memory = part.merge({}, {"A": {"shape/head": a}, "B": {"shape/head": b, "shape/w": b}}, 2)

    assert part.merge(memory, {"B": {"delta/w": torch.ones(5, 3)}}, 2)["sum/w"].sum() == 15


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (torch.optim.Adam, r"site A: scaffold needs torch\.optim\.SGD, not Adam: option II takes"),
        (
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            r"site A: scaffold needs SGD without momentum \(here 0\.9",
        ),
        (lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "without maximize"),
    ],
)
def test_other_optimizers_are_refused(view, build, message) -> None:
    """Option II takes the way for the gradient, which they break; said at bind."""
    site = view("A")
    site.optimizer = build(site.model.parameters())

    with pytest.raises(ConfigError, match=message):
        scaffold().parts[0].bind(site)


@pytest.mark.parametrize("lr", [0, -1.0, float("nan"), True])
def test_lr_out_of_range_is_refused(lr) -> None:
    """A server that does not move learns nothing."""
    with pytest.raises(ConfigError, match=r"method scaffold: lr=.* must be a finite number above 0"):
        scaffold(lr)


@pytest.fixture
def run(sources):
    """Train sites of the small study by plain SGD; return what is shared at the end."""

    def simulated(text, names, rounds):
        sites = {name: replace(sources[name], overrides={"momentum": 0.0}) for name in names}
        settings = Settings(rounds=rounds, choose="last", weights="equal")
        return simulate(parse(text, METHODS), sites, settings).cast.tensors

    return simulated


@pytest.mark.parametrize(("text", "other"), [("scaffold", "fedavg"), ("scaffold+fedbn", "fedbn")])
def test_one_round_is_fedavg_bit_for_bit_and_two_are_not(run, text, other) -> None:
    """At first all c are 0, and the mean is that of equal weights; norms stay private under fedbn."""
    first, mean = run(text, "AB", 1), run(other, "AB", 1)

    assert first.keys() == mean.keys()
    assert all(torch.equal(first[key], mean[key]) for key in mean)
    assert not torch.equal(run(text, "AB", 2)["0.weight"], run(other, "AB", 2)["0.weight"])


def test_one_site_alone_is_fedavg(run) -> None:
    """Its own gradient is everybody's: c - c_k is 0 in every round."""
    alone, mean = (run(text, "B", 3) for text in ("scaffold", "fedavg"))

    for key, value in mean.items():
        torch.testing.assert_close(alone[key], value, rtol=0, atol=1e-6)
