import pytest
import torch
from torch import Tensor, nn

from monai_fedskew.analysis.hessian import Diagonal, diagonal, top_eigenpairs, trace
from monai_fedskew.analysis.objective import Objective, hessian_vector_product, mean_loss
from monai_fedskew.errors import ConfigError, DataError


def _network() -> nn.Sequential:
    """36 parameters with BatchNorm and dropout, smooth in all of them."""
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    network[1].running_mean.uniform_(-1, 1)
    network[1].running_var.uniform_(0.5, 2)
    return network


def _objective(network: nn.Module | None = None, parameters: tuple[str, ...] = ()) -> Objective:
    generator = torch.Generator().manual_seed(5)
    sizes = (6, 3)  # unequal: the mean is over examples, not batches
    batches = [
        (
            torch.randn(n, 3, generator=generator, dtype=torch.float64),
            torch.randint(0, 2, (n,), generator=generator),
        )
        for n in sizes
    ]
    return Objective(network or _network(), nn.functional.cross_entropy, batches, parameters)


def _explicit(objective: Objective) -> Tensor:
    """The Hessian of the mean over all examples at once, column by column."""
    inputs, targets = (torch.cat(values) for values in zip(*objective.batches, strict=True))
    network = objective.model.eval()
    tensors = list(objective.tensors.values())
    loss = nn.functional.cross_entropy(network(inputs), targets)
    slopes = torch.autograd.grad(loss, tensors, create_graph=True)
    flat = torch.cat([slope.reshape(-1) for slope in slopes])
    rows = [torch.autograd.grad(entry, tensors, retain_graph=True, allow_unused=True) for entry in flat]
    filled = [[torch.zeros_like(p) if r is None else r for p, r in zip(tensors, row, strict=True)] for row in rows]
    return torch.stack([torch.cat([r.reshape(-1) for r in row]) for row in filled])


@pytest.mark.parametrize("parameters", [(), ("4.weight", "1.bias")])
def test_products_are_columns_of_the_explicit_hessian(parameters: tuple[str, ...]) -> None:
    """H times each unit vector, for all parameters and for some."""
    objective = _objective(parameters=parameters)
    columns = [hessian_vector_product(objective, unit) for unit in torch.eye(objective.size, dtype=torch.float64)]
    torch.testing.assert_close(torch.stack(columns), _explicit(objective))


def test_eigenvalues_are_those_of_the_explicit_hessian() -> None:
    """The three largest in size with their signs, and eigenvectors that are orthogonal and of length 1."""
    objective = _objective()
    exact = torch.linalg.eigvalsh(_explicit(objective))
    largest = exact[exact.abs().argsort(descending=True)][:3]

    pairs = top_eigenpairs(objective, 3, tolerance=1e-6, max_iterations=400)

    torch.testing.assert_close(torch.tensor([p.value for p in pairs]).double(), largest, rtol=1e-4, atol=1e-6)
    vectors = torch.stack([pair.vector for pair in pairs])
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-9)
    for pair in pairs:
        turned = hessian_vector_product(objective, pair.vector)
        torch.testing.assert_close(turned, pair.value * pair.vector, rtol=0, atol=2e-3)
        assert pair.has_converged


def test_a_negative_eigenvalue_keeps_its_sign() -> None:
    """L = (a^2 - 3 b^2) / 2 has H = diag(1, -3): -3 comes first, then 1."""
    model = nn.Linear(2, 1, bias=False)

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        a, b = model.weight[0]
        return (a**2 - 3 * b**2) / 2 + 0 * output.sum()

    objective = Objective(model, loss, [(torch.ones(1, 2), torch.zeros(1))])
    assert [pair.value for pair in top_eigenpairs(objective, 2)] == pytest.approx([-3.0, 1.0], abs=0.01)


def test_trace_and_diagonal_are_those_of_the_explicit_hessian() -> None:
    """Within four standard errors, which shrink with the probes; per tensor the sums over its entries."""
    objective = _objective()
    exact = _explicit(objective)
    sizes = [value.numel() for value in objective.tensors.values()]

    found = trace(objective, max_probes=200, tolerance=0)
    entries = diagonal(objective, max_probes=200, tolerance=0)
    tensors = diagonal(objective, form="tensor", max_probes=200, tolerance=0)

    assert abs(found.value - float(exact.trace())) < 4 * found.standard_error < 0.5 * abs(found.value)
    error = torch.linalg.vector_norm(entries.values - exact.diag())
    assert 0.5 * entries.noise < float(error) < 2 * entries.noise
    wanted = torch.stack([piece.sum() for piece in exact.diag().split(sizes)])
    assert float(torch.linalg.vector_norm(tensors.values - wanted)) < 2.5 * tensors.noise
    assert (found.probes, found.has_converged) == (200, False)


def test_hutchinson_is_exact_on_a_diagonal_hessian() -> None:
    """Mean squared error of one linear unit over the rows of diag(2, 1): L = (4 a^2 + b^2) / 2, so H = diag(4, 1).

    v * H v = (4, 1) for every v of +1 and -1: no noise, a trace of 5, and the mean stands still after ten probes.
    """
    line = nn.Linear(2, 1, bias=False)
    inputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    objective = Objective(line, nn.functional.mse_loss, [(inputs, torch.zeros(2, 1))])

    entries = diagonal(objective)

    assert entries.values.tolist() == [4.0, 1.0]
    assert (entries.noise, entries.probes, entries.has_converged) == (0.0, 10, True)
    assert trace(objective).value == 5.0
    assert diagonal(objective, form="tensor").values.tolist() == [5.0]
    assert [round(pair.value, 3) for pair in top_eigenpairs(objective, 2)] == [4.0, 1.0]


def test_known_pairs_take_noise_out_and_change_nothing_else() -> None:
    """Diagonal and trace with three known pairs, not converged: right within their errors, which are much smaller."""
    objective = _objective()
    exact = _explicit(objective)
    pairs = top_eigenpairs(objective, 3, max_iterations=5)

    plain, known = (diagonal(objective, known=some, max_probes=100, tolerance=0) for some in ((), pairs))
    found = trace(objective, known=pairs, max_probes=100, tolerance=0)
    tensors = diagonal(objective, form="tensor", known=pairs, max_probes=100, tolerance=0)

    assert known.noise < 0.5 * plain.noise
    assert float(torch.linalg.vector_norm(known.values - exact.diag())) < 2 * known.noise
    assert abs(found.value - float(exact.trace())) < 4 * found.standard_error
    sizes = [value.numel() for value in objective.tensors.values()]
    wanted = torch.stack([piece.sum() for piece in torch.split(exact.diag(), sizes)])
    assert float(torch.linalg.vector_norm(tensors.values - wanted)) < 2.5 * tensors.noise


def test_the_corrected_norm_is_free_of_noise_in_the_mean() -> None:
    """Over many seeds of ten probes: norm^2 is too large by noise^2, corrected_norm^2 agrees with the exact one."""
    objective = _objective()
    exact = float(_explicit(objective).diag().square().sum())
    found = [diagonal(objective, max_probes=10, tolerance=0, seed=seed) for seed in range(40)]

    plain = sum(one.norm**2 for one in found) / len(found)
    corrected = sum(one.norm**2 - one.noise**2 for one in found) / len(found)

    assert abs(corrected - exact) < 0.25 * exact < abs(plain - exact)
    assert Diagonal(torch.tensor([3.0, 4.0]), 3.0, 10, False).corrected_norm == 4.0  # sqrt(25 - 9)
    assert Diagonal(torch.tensor([3.0, 4.0]), 6.0, 10, False).corrected_norm is None


def test_nothing_is_left_behind_and_equal_calls_give_equal_results() -> None:
    """Weights, buffers, gradients, each module's mode and torch's random state stay; only the seed decides."""
    objective = _objective()
    network = objective.model.train()
    network[1].eval()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    random = torch.get_rng_state()

    first, again, other = (diagonal(objective, max_probes=12, seed=seed).values for seed in (1, 1, 2))
    pairs = [top_eigenpairs(objective)[0].value for _ in range(2)]

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert pairs[0] == pairs[1]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(network.state_dict()[key], value) for key, value in before.items())
    assert [module.training for module in network] == [True, False, True, True, True]
    assert all(value.grad is None for value in network.parameters())


def test_a_loss_that_is_linear_has_no_curvature() -> None:
    """H = 0: the eigenvalue and the trace are 0, found at once."""
    line = nn.Linear(2, 1)
    objective = Objective(line, lambda output, targets: output.mean(), [(torch.ones(3, 2), torch.zeros(3))])
    assert top_eigenpairs(objective)[0].value == 0.0
    assert trace(objective).value == 0.0


def test_attention_can_be_differentiated_twice() -> None:
    """Fused attention has no second derivative; the plain form is taken."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    objective = Objective(
        layer, lambda output, targets: output.square().mean(), [(torch.randn(2, 3, 8), torch.ones(2))]
    )
    assert torch.isfinite(hessian_vector_product(objective, torch.ones(objective.size))).all()


def test_what_cannot_be_is_refused() -> None:
    """No batch, unknown and frozen parameters, k and probes out of range, a vector of another size, a loss of NaN."""
    network = _network()
    with pytest.raises(ConfigError, match="there is no batch"):
        Objective(network, nn.functional.cross_entropy, [])
    with pytest.raises(ConfigError, match=r"no parameter 'fc'; the network has 6: 0\.weight"):
        _objective(network, ("fc",))
    network[1].bias.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"1\.bias is frozen"):
        _objective(network, ("1.bias",))
    objective = _objective()
    with pytest.raises(ConfigError, match="k=0 must lie between 1 and the 34 parameters"):
        top_eigenpairs(objective, 0)
    with pytest.raises(ConfigError, match="max_probes=1 must be at least 2"):
        trace(objective, max_probes=1)
    with pytest.raises(ConfigError, match=r"the vector is \(2,\), the parameters hold 34"):
        hessian_vector_product(objective, torch.ones(2))
    objective.batches[0][0][0, 0] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        trace(objective)


def test_the_mean_loss_is_over_examples() -> None:
    """Batches of 6 and 3: (6 l_1 + 3 l_2) / 9, which is the loss of all nine at once."""
    objective = _objective()
    inputs, targets = (torch.cat(values) for values in zip(*objective.batches, strict=True))
    at_once = nn.functional.cross_entropy(objective.model.eval()(inputs), targets)
    assert mean_loss(objective) == pytest.approx(at_once.item())
