import pickle

import pytest
import torch

from monai_fedskew.core import Survey, Update, WeightedMean, weighted_mean
from monai_fedskew.errors import RoundError
from monai_fedskew.federation.server import Server
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods import fedavg


def update(site: str, tensors, samples: int, round: int = 1) -> Update:
    """A site's update of that many samples."""
    return Update(site, round, tensors, samples, samples, 1)


def served(sites, *, weights="samples"):
    """A server that has surveyed the sites, each with one weight."""
    server = Server(fedavg(), Settings(rounds=3, weights=weights))
    zero = {"w": torch.zeros(1)}
    server.open([Survey(name, zero, frozenset({"w"}), samples, 1) for name, samples in sites.items()])
    return server


def test_counters_take_the_maximum_and_keep_their_type() -> None:
    """Case 03: counters 3, 4, 10 with n = 1, 1, 2 give int64 10 of shape ()."""
    out = weighted_mean([{"n": torch.tensor(n)} for n in (3, 4, 10)], [0.25, 0.25, 0.5])["n"]

    assert (out.dtype, out.shape, out.item()) == (torch.int64, (), 10)


def test_running_statistics_are_averaged() -> None:
    """Case 04: n = 10, 30: (10*0 + 30*8)/40 = 6, (10*1 + 30*5)/40 = 4, (10*1 + 30*3)/40 = 2.5."""
    sites = [
        {"running_mean": 0.0, "running_var": 1.0, "weight": 1.0},
        {"running_mean": 8.0, "running_var": 5.0, "weight": 3.0},
    ]

    out = weighted_mean([{k: torch.tensor([v]) for k, v in s.items()} for s in sites], [10 / 40, 30 / 40])

    assert {key: value.item() for key, value in out.items()} == {"running_mean": 6.0, "running_var": 4.0, "weight": 2.5}


def test_weights_are_those_of_the_participants() -> None:
    """Case 05: n = 10, 30, 60, the second absent: (10*1 + 60*8)/70 = 7."""
    server = served({"A": 10, "B": 30, "C": 60})

    server.absorb([update("C", {"w": torch.tensor([8.0])}, 60), update("A", {"w": torch.tensor([1.0])}, 10)])

    assert server.tensors["w"].item() == 7.0


def test_equal_weights_forget_the_samples() -> None:
    """FedBN's own rule: (1 + 8)/2 = 4.5."""
    server = served({"A": 10, "B": 60}, weights="equal")

    server.absorb([update("A", {"w": torch.tensor([1.0])}, 10), update("B", {"w": torch.tensor([8.0])}, 60)])

    assert server.tensors["w"].item() == 4.5


def test_all_zero_samples_are_refused() -> None:
    """Nothing to divide by: the round is named and the model kept."""
    server = served({"A": 10, "B": 60})

    with pytest.raises(RoundError, match="round 1: zero samples at all of A, B"):
        server.absorb([update(site, {"w": torch.ones(1)}, 0) for site in "AB"])
    assert server.tensors["w"].item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_type_and_shape_are_kept(dtype) -> None:
    """Summed in float64, cast back; a 0-d tensor stays one."""
    out = weighted_mean([{"w": torch.tensor(v, dtype=dtype)} for v in (1.0, 2.0)], [0.5, 0.5])["w"]

    assert (out.dtype, out.shape, out.item()) == (dtype, (), 1.5)


def test_sum_is_taken_in_float64() -> None:
    """Ten thousand tenths: 1 in float64 rounded to float32; summed in float32 it would be off."""
    n = 1000

    out = weighted_mean([{"w": torch.tensor([0.1])}] * n, [1 / n] * n)["w"]

    assert out.item() == torch.tensor(0.1).item()


def test_large_and_strided_tensors_are_averaged_whole() -> None:
    """Beyond one chunk, transposed, and equal to the formula."""
    a, b = torch.randn(300, 500), torch.randn(500, 300).T

    out = weighted_mean([{"w": a}, {"w": b}], [0.25, 0.75])["w"]

    assert torch.equal(out, (a.double() * 0.25 + b.double() * 0.75).float())


def test_inputs_are_not_changed_and_not_shared() -> None:
    """One site alone gives an equal tensor of its own."""
    a = torch.ones(3)

    out = weighted_mean([{"w": a}], [1.0])["w"]
    out.add_(1)

    assert a.tolist() == [1.0, 1.0, 1.0]


def test_booleans_take_the_maximum_and_empty_tensors_pass() -> None:
    """Masks are joined."""
    out = weighted_mean([{"m": torch.tensor([True, False]), "e": torch.empty(0)}] * 2, [0.5, 0.5])

    assert out["m"].tolist() == [True, False]
    assert out["e"].shape == (0,)


def test_mean_is_a_value_without_memory() -> None:
    """It prints, compares, pickles, and remembers nothing."""
    mean = WeightedMean()

    memory, tensors = mean.step(
        mean.init({}), {}, [update("A", {"w": torch.tensor([2.0])}, 1)], {"A": 1.0}, frozenset()
    )

    assert pickle.loads(pickle.dumps(mean)) == mean
    assert memory == {}
    assert tensors["w"].item() == 2.0
