import logging

import pytest
import torch

from monai_fedskew.core import Update, weighted_mean
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import trimmed_mean
from monai_fedskew.methods.trimmed_mean import mean_between


def aggregated(beta, states, weights=None):
    """The next model from the sites' states, by default of equal weights."""
    updates = [Update(f"S{i}", 1, state, 1, 1, 1) for i, state in enumerate(states)]
    shares = {u.site: 1 / len(updates) for u in updates} if weights is None else weights
    return trimmed_mean(beta).aggregate.step({}, states[0], updates, shares, frozenset({"w"}))[1]


def test_by_hand() -> None:
    """Five sites, beta 0.2: one goes at either end. 1, 2, 3, 4, 100 -> (2 + 3 + 4)/3 = 3; in the second coordinate
    other sites are the extreme ones: 9, -50, 7, 8, 12 -> (9 + 7 + 8)/3 = 8."""
    rows = [(1, 9), (100, -50), (3, 7), (2, 8), (4, 12)]

    out = aggregated(0.2, [{"w": torch.tensor(row, dtype=torch.float32)} for row in rows])

    assert out["w"].tolist() == [3.0, 8.0]


@pytest.mark.parametrize(
    ("beta", "n", "drop"), [(0.1, 9, 0), (0.1, 10, 1), (0.29, 100, 29), (0.49, 3, 1), (0.25, 4, 1)]
)
def test_number_dropped(beta, n, drop) -> None:
    """floor(beta n) at either end, also where the product is not exact: sites 0..n-1 with the last at 1e6."""
    states = [{"w": torch.tensor([float(i)])} for i in range(n - 1)] + [{"w": torch.tensor([1e6])}]

    out = aggregated(beta, states)

    values = [*map(float, range(n - 1)), 1e6]
    kept = values[drop : n - drop]
    assert out["w"].item() == pytest.approx(sum(kept) / len(kept), rel=1e-6)


def test_beta_zero_is_the_uniform_mean_bit_for_bit() -> None:
    """FedAvg with equal weights, whatever the run's weights are."""
    states = [{"w": torch.randn(1000)} for _ in range(3)]

    out = aggregated(0.0, states, {"S0": 0.9, "S1": 0.05, "S2": 0.05})

    assert torch.equal(out["w"], weighted_mean(states, [1 / 3] * 3)["w"])


def test_one_hostile_update_has_no_say() -> None:
    """Whatever one of five sites sends, each coordinate stays between the smallest and largest honest value."""
    honest = [{"w": torch.randn(200)} for _ in range(4)]
    rows = torch.stack([state["w"] for state in honest])
    for lie in (1e30, -1e30, 0.0):
        out = aggregated(0.2, [*honest, {"w": torch.full((200,), lie)}])["w"]
        assert ((rows.amin(0) <= out) & (out <= rows.amax(0))).all()


def test_running_statistics_are_trimmed_and_counters_take_the_maximum() -> None:
    """Every floating entry alike; the counter stays an integer without dimensions."""
    states = [
        {"w": torch.tensor([1.0]), "var": torch.tensor([v]), "n": torch.tensor(i)}
        for i, v in enumerate((1.0, 2.0, 90.0))
    ]

    out = aggregated(0.4, states)

    assert (out["var"].item(), out["n"].item(), out["n"].shape, out["n"].dtype) == (2.0, 2, (), torch.int64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "drop"), [(3, 1), (5, 1), (6, 2), (7, 3)])
def test_equals_sorting_the_whole(dtype, n, drop) -> None:
    """Beyond one chunk, transposed, against torch.sort; the type stays and the inputs too."""
    tensors = [torch.randn(300, 500).to(dtype).T for _ in range(n)]
    before = [tensor.clone() for tensor in tensors]

    out = mean_between([{"w": tensor} for tensor in tensors], drop)["w"]

    expected = torch.stack(tensors).double().sort(0).values[drop : n - drop].mean(0).to(dtype)
    assert out.dtype == dtype
    assert torch.allclose(out, expected, rtol=1e-7)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_too_few_updates_to_trim_are_told(caplog) -> None:
    """Four sites and the default beta are the plain mean, which stands no liar."""
    with caplog.at_level(logging.WARNING):
        out = aggregated(0.1, [{"w": torch.tensor([float(i)])} for i in range(4)])

    assert out["w"].item() == 1.5
    assert "beta=0.1 drops none of 4 updates" in caplog.text


@pytest.mark.parametrize("beta", [-0.1, 0.5, float("nan"), True, "0.1"])
def test_beta_out_of_range_is_refused(beta) -> None:
    """Half at either end would leave nothing."""
    with pytest.raises(
        ConfigError, match=r"method trimmed_mean: beta=.* must be a number of at least 0 and below 0\.5"
    ):
        trimmed_mean(beta)
