import pytest
import torch

from monai_fedskew.core import Update
from monai_fedskew.methods import median


def aggregated(states):
    """The next model from the sites' states."""
    updates = [Update(f"S{i}", 1, state, 1, 1, 1) for i, state in enumerate(states)]
    weights = {u.site: 0.97 if u.site == "S0" else 0.01 for u in updates}  # which are not used
    return median().aggregate.step({}, states[0], updates, weights, frozenset({"w"}))[1]


@pytest.mark.parametrize(
    ("values", "expected"),
    [((7.0,), 7.0), ((1.0, 4.0), 2.5), ((9.0, 1.0, 2.0), 2.0), ((9.0, 1.0, 4.0, 2.0), 3.0), ((5.0, 0.0, 9.0), 5.0)],
)
def test_by_hand(values, expected) -> None:
    """1, 2, 9 -> 2; of an even number the mean of the middle two: 1, 2, 4, 9 -> (2 + 4)/2 = 3."""
    assert aggregated([{"w": torch.tensor(value)} for value in values])["w"].item() == expected


def test_coordinates_are_apart_and_counters_take_the_maximum() -> None:
    """The middle site differs from coordinate to coordinate; running statistics are treated as weights are."""
    rows = [(1.0, 30.0), (2.0, 10.0), (3.0, 20.0)]
    states = [
        {"w": torch.tensor(row), "mean": torch.tensor(row[::-1]), "n": torch.tensor(i)} for i, row in enumerate(rows)
    ]

    out = aggregated(states)

    assert (out["w"].tolist(), out["mean"].tolist(), out["n"].item()) == ([2.0, 20.0], [20.0, 2.0], 2)
    assert out["n"].dtype == torch.int64


def test_one_hostile_update_has_no_say() -> None:
    """Whatever one of three sites sends, each coordinate lies between the two honest values."""
    honest = [{"w": torch.randn(200)} for _ in range(2)]
    rows = torch.stack([state["w"] for state in honest])
    for lie in (3e38, -3e38):
        out = aggregated([honest[0], {"w": torch.full((200,), lie)}, honest[1]])["w"]
        assert ((rows.amin(0) <= out) & (out <= rows.amax(0))).all()


def test_equals_the_median_of_the_whole() -> None:
    """On tensors beyond one chunk, and an odd and an even number of sites."""
    for n in (4, 5):
        tensors = [torch.randn(2, 70_000) for _ in range(n)]

        out = aggregated([{"w": tensor} for tensor in tensors])["w"]

        middle = torch.stack(tensors).double().sort(0).values[(n - 1) // 2 : n // 2 + 1]
        assert torch.equal(out, middle.mean(0).float())
