"""The server: weights, buffers, faults, transactions."""

from typing import Any

import pytest
import torch

from monai_fedskew.core.messages import Survey, Update
from monai_fedskew.core.method import Method
from monai_fedskew.errors import RoundError, StateError
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import parse_method


def _server(
    sites: dict[str, dict[str, torch.Tensor]], samples: dict[str, int] | None = None, **settings: Any
) -> Server:
    server = Server(Method("fedavg"), Settings(rounds=3, **settings))
    surveys = [Survey(s, t, frozenset(t), 1, 1) for s, t in sites.items()]
    server.open(surveys)
    return server


def _update(site: str, tensors: dict[str, torch.Tensor], samples: int, round: int = 1) -> Update:
    return Update(site, round, tensors, samples, 1, 1)


def _w(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor(values, dtype=torch.float32)}


def test_weights_are_normalised_over_the_participants() -> None:
    """Case 05: (10*1 + 60*8) / 70 = 7.0; the absent site with 100.0 does not count."""
    server = _server({name: _w(0.0) for name in "ABC"})
    server.absorb([_update("A", _w(1.0), 10), _update("C", _w(8.0), 60)])
    assert server.tensors["w"].item() == 7.0


@pytest.mark.parametrize("weights", ["samples", "equal", "groups"])
def test_zero_samples_at_all_sites_is_an_error_and_changes_nothing(weights: Any) -> None:
    """Case 06: no NaN model; the text says zero samples and names the sites."""
    server = _server({"A": _w(9.0, 9.0), "B": _w(9.0, 9.0)}, weights=weights)
    with pytest.raises(RoundError, match="zero samples at all of A, B"):
        server.absorb([_update("A", _w(1.0, 2.0), 0), _update("B", _w(3.0, 4.0), 0)])
    assert server.tensors["w"].tolist() == [9.0, 9.0]
    assert server.round == 0


def test_a_non_finite_update_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Case 07: the mean of 1 and 3 is 2; the warning names site B, the key and the count."""
    server = _server({name: _w(0.0, 0.0, 0.0) for name in "ABC"})
    bad = torch.tensor([2.0, float("nan"), 2.0])
    events = server.absorb([_update("A", _w(1, 1, 1), 10), _update("B", {"w": bad}, 10), _update("C", _w(3, 3, 3), 10)])
    assert server.tensors["w"].tolist() == [2.0, 2.0, 2.0]
    assert [(event.site, event.kind) for event in events] == [("B", "excluded")]
    assert "site B: w has 1 non-finite values" in caplog.text


def test_a_non_finite_update_stops_the_run_on_request() -> None:
    """Case 07, policy error: the global model stays."""
    server = _server({name: _w(0.0) for name in "AB"}, non_finite="error")
    with pytest.raises(RoundError, match="site B: w has 1 non-finite values"):
        server.absorb([_update("A", _w(1), 1), _update("B", _w(float("inf")), 1)])
    assert server.tensors["w"].item() == 0.0


def test_too_few_usable_updates_stop_the_run() -> None:
    """Cases 07 and 33: fewer than min_sites keeps the old model and says both numbers."""
    server = _server({name: _w(0.0) for name in "ABC"}, min_sites=3)
    with pytest.raises(RoundError, match="2 usable updates, but min_sites is 3"):
        server.absorb([_update("A", _w(1), 1), _update("B", _w(float("nan")), 1), _update("C", _w(1), 1)])
    assert server.tensors["w"].item() == 0.0


def test_a_missing_key_names_site_and_key() -> None:
    """Case 09: no per-key counters, no intersection."""
    full = {"fc.weight": torch.zeros(4), "fc.bias": torch.zeros(4)}
    server = _server({f"client{i}": full for i in range(3)})
    with pytest.raises(StateError, match=r"site client2: update lacks 1 keys \(fc.bias\)"):
        server.absorb([_update("client0", full, 1), _update("client2", {"fc.weight": torch.zeros(4)}, 1)])


def test_another_shape_names_both() -> None:
    """Case 09, shape variant."""
    full = {"fc.weight": torch.zeros(4), "fc.bias": torch.zeros(4)}
    server = _server({f"client{i}": full for i in range(3)})
    wrong = {"fc.weight": torch.zeros(3), "fc.bias": torch.zeros(4)}
    with pytest.raises(StateError, match=r"site client2: update: fc.weight is float32 \(3,\).*\(4,\)"):
        server.absorb([_update("client2", wrong, 1)])


def test_no_matching_key_lists_both_sides() -> None:
    """Case 09, no key matches: expected and received keys are named."""
    server = _server({"A": {"fc.weight": torch.zeros(1)}})
    with pytest.raises(StateError, match=r"no key matches; expected fc.weight, received other.w"):
        server.absorb([_update("A", {"other.w": torch.zeros(1)}, 1)])


def test_sites_with_different_shared_shapes_are_found_before_round_one() -> None:
    """The survey already tells, naming both sites."""
    with pytest.raises(StateError, match=r"site B: survey: w is .*\(2,\), but at A it is .*\(1,\)"):
        _server({"A": _w(0.0), "B": _w(0.0, 0.0)})


def test_a_site_without_samples_is_refused_at_its_survey() -> None:
    """Nothing to train on is known before the first round."""
    server = Server(Method("fedavg"), Settings(rounds=1))
    with pytest.raises(RoundError, match="site A: zero samples"):
        server.open([Survey("A", _w(0.0), frozenset({"w"}), 0, 0)])


def test_an_update_of_another_round_is_refused() -> None:
    """A late reply of round 1 does not enter round 2."""
    server = _server({"A": _w(0.0)})
    server.absorb([_update("A", _w(1.0), 1)])
    with pytest.raises(RoundError, match="site A: update of round 1 in round 2"):
        server.absorb([_update("A", _w(1.0), 1)])


def test_received_tensors_are_left_as_they_were() -> None:
    """Case 08: uploads 2, 3, 0 give 5/3, and stay 2, 3, 0."""
    server = _server({name: _w(1.0) for name in "ABC"})
    cast = server.cast()
    uploads = [
        _update(site, {"w": cast.tensors["w"].clone() + step}, 1) for site, step in zip("ABC", (1, 2, -1), strict=True)
    ]
    server.absorb(uploads)
    assert server.tensors["w"].item() == pytest.approx(5 / 3)
    assert [update.tensors["w"].item() for update in uploads] == [2.0, 3.0, 0.0]
    assert cast.tensors["w"].item() == 1.0


def test_subjects_can_weigh_instead_of_windows() -> None:
    """groups: (1 * 1 + 3 * 5) / 4 = 4.0 although site A has more samples."""
    server = Server(Method("fedavg"), Settings(rounds=1, weights="groups"))
    server.open([Survey(site, _w(0.0), frozenset({"w"}), 1, 1) for site in "AB"])
    server.absorb([Update("A", 1, _w(1.0), 900, 1, 1), Update("B", 1, _w(5.0), 100, 3, 1)])
    assert server.tensors["w"].item() == 4.0


def test_two_updates_of_one_site_are_refused() -> None:
    """A message that was sent twice would count twice; the model stays."""
    server = _server({name: _w(9.0) for name in "AB"})
    with pytest.raises(RoundError, match="site B: 2 updates in round 1"):
        server.absorb([_update("A", _w(1.0), 1), _update("B", _w(1.0), 1), _update("B", _w(1.0), 1)])
    assert server.tensors["w"].item() == 9.0
    assert server.round == 0


def test_an_update_of_a_site_that_was_never_surveyed_is_refused() -> None:
    """Its keys were never checked; the known sites are named, the model stays."""
    server = _server({name: _w(9.0) for name in "AB"})
    with pytest.raises(RoundError, match="site C: was never surveyed; known sites: A, B"):
        server.absorb([_update("A", _w(1.0), 1), _update("C", _w(1.0), 1)])
    assert server.tensors["w"].item() == 9.0


def test_an_update_without_a_report_that_its_method_needs_is_unfit() -> None:
    """Found when it is checked, so that the site is left out, and not in the aggregate, which would end the round."""
    server = Server(parse_method("fednova"), Settings(rounds=3))
    server.open([Survey("A", _w(0.0), frozenset("w"), 1, 1)])
    with pytest.raises(StateError, match="site A: the update lacks the report of fednova"):
        server.check(_update("A", _w(1.0), 10))
    told = {"fednova": {name: torch.tensor(1.0, dtype=torch.float64) for name in ("a", "tau")}}
    server.check(Update("A", 1, _w(1.0), 10, 1, 1, told))


def test_a_step_that_leaves_the_finite_numbers_changes_nothing() -> None:
    """Finite updates, an absurd learning rate at the server: one error, and the model, round and memory stay."""
    server = Server(parse_method("fedadam:lr=1e38"), Settings(rounds=3))
    server.open([Survey("A", _w(2.0), frozenset("w"), 1, 1)])
    before = server.state()
    with pytest.raises(RoundError, match=r"round 1: the step of fedadam.* at the server left .*w has 1 non-finite"):
        server.absorb([_update("A", _w(1e6), 10)])
    assert server.round == 0
    assert server.state().keys() == before.keys()
    assert server.tensors["w"].item() == 2.0
