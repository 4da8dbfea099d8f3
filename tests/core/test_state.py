import pytest
import torch
from torch import nn

from monai_fedskew.core import nest, own, require_same_keys, restore, snapshot, unnest
from monai_fedskew.errors import StateError


def test_own_shares_no_memory() -> None:
    """A copy of CPU tensors too, contiguous, detached, 0-d kept."""
    live = torch.ones(2, 3, requires_grad=True)

    held = own(live.T)
    live.data.add_(1)

    assert held.tolist() == [[1.0, 1.0]] * 3
    assert held.is_contiguous()
    assert not held.requires_grad
    assert own(torch.tensor(3)).shape == ()


def test_snapshot_holds_the_named_entries_by_name() -> None:
    """Sorted, and not the live ones."""
    net = nn.BatchNorm1d(2)

    state = snapshot(net, ["weight", "num_batches_tracked"])
    nn.init.zeros_(net.weight)

    assert list(state) == ["num_batches_tracked", "weight"]
    assert state["weight"].tolist() == [1.0, 1.0]


def test_restore_writes_in_place_and_leaves_the_rest() -> None:
    """An optimizer's parameters stay the same objects; a second network with the same state shares nothing."""
    net, other = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    weight, state = net.weight, {"weight": torch.tensor([5.0]), "num_batches_tracked": torch.tensor(7)}

    restore(net, state)
    restore(other, state)
    other.weight.data.add_(1)

    assert net.weight is weight
    assert (net.weight.item(), net.bias.item(), net.num_batches_tracked.item()) == (5.0, 0.0, 7)
    assert net.num_batches_tracked.dtype == torch.int64
    assert state["weight"].item() == 5.0


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weight": torch.zeros(1), "scale": torch.zeros(1)}, "'scale': BatchNorm1d has no such entry"),
        (
            {"weight": torch.zeros(2)},
            r"'weight': the network holds torch\.float32 \(1,\), the state torch\.float32 \(2,\)",
        ),
        ({"num_batches_tracked": torch.tensor(3.7)}, r"holds torch\.int64 \(\), the state torch\.float32 \(\)"),
    ],
)
def test_restore_refuses_what_does_not_fit_and_writes_nothing(state, message) -> None:
    """Unknown entry, shape, type: the network is as before."""
    net = nn.BatchNorm1d(1)

    with pytest.raises(StateError, match=message):
        restore(net, {"bias": torch.ones(1), **state})
    assert net.bias.item() == 0.0


def test_same_keys_pass() -> None:
    """In any order, also none."""
    require_same_keys("x", ["a", "b"], ["b", "a"])
    require_same_keys("x", [], [])


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (["a"], r"site A: update lacks 1 keys \(b\); all sites must use the same network"),
        (["a", "b", "c"], r"has 1 unknown keys \(c\)"),
        (["a", "c"], r"lacks 1 keys \(b\) and has 1 unknown keys \(c\)"),
        (["module.a", "module.b"], r"no key matches; expected a, b, received module\.a, module\.b"),
        ([], r"lacks 2 keys \(a, b\)"),
    ],
)
def test_other_keys_are_named(got, message) -> None:
    """What is missing and what is too much."""
    with pytest.raises(StateError, match=message):
        require_same_keys("site A: update", ["a", "b"], got)


def test_at_most_five_keys_are_named() -> None:
    """Of a large network."""
    with pytest.raises(StateError, match=r"lacks 9 keys \(k1, k2, k3, k4, k5, \.\.\.\)"):
        require_same_keys("x", [f"k{i}" for i in range(10)], ["k0"])


def test_nesting_comes_back() -> None:
    """Keys may hold dots and slashes; an empty group is gone."""
    groups = {"A": {"w.x/y": torch.ones(1)}, "B": {"w": torch.zeros(1)}, "C": {}}

    back = unnest(nest(groups))

    assert {group: list(state) for group, state in back.items()} == {"A": ["w.x/y"], "B": ["w"]}
