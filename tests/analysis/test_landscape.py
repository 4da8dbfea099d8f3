import pytest
import torch
from torch import Tensor, nn

from monai_fedskew.analysis.curvature_plots import plot_hessian, plot_landscape
from monai_fedskew.analysis.hessian import top_eigenpairs
from monai_fedskew.analysis.landscape import loss_landscape
from monai_fedskew.analysis.objective import Objective, mean_loss
from monai_fedskew.errors import ConfigError


def _objective() -> Objective:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    return Objective(network, nn.functional.cross_entropy, [(torch.randn(8, 4), torch.arange(8) % 3)])


def test_a_quadratic_loss_gives_its_parabola() -> None:
    """L = (4 a^2 + b^2) / 2 along its eigenvectors (1, 0) and (0, 1): 4 * 0.5^2 / 2 + 1 / 2 = 1 at (0.5, 1)."""
    line = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(line.weight)
    inputs = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    objective = Objective(line, nn.functional.mse_loss, [(inputs, torch.zeros(2, 1))])
    first, second = (pair.vector for pair in top_eigenpairs(objective, 2, tolerance=1e-9))

    found = loss_landscape(objective, first, second, points=5)

    assert found.steps_along.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    wanted = 2 * found.steps_along.square()[:, None] + 0.5 * found.steps_along.square()
    torch.testing.assert_close(found.losses, wanted, rtol=0, atol=1e-3)
    assert float(found.losses[3, 4]) == pytest.approx(1.0, abs=1e-3)


def test_weights_come_back_bit_for_bit_even_from_a_failure() -> None:
    """After a grid, and after a loss function that fails half way; the middle is the network as it is."""
    objective = _objective()
    before = {key: value.clone() for key, value in objective.model.state_dict().items()}
    one, two = torch.randn(2, objective.size)

    assert loss_landscape(objective, one, two, points=3).centre == mean_loss(objective)
    assert all(torch.equal(objective.model.state_dict()[key], value) for key, value in before.items())

    calls = []

    def failing(output: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("no more")
        return output.mean()

    broken = Objective(objective.model, failing, objective.batches)
    with pytest.raises(RuntimeError, match="no more"):
        loss_landscape(broken, one, two, points=3)
    assert all(torch.equal(objective.model.state_dict()[key], value) for key, value in before.items())


def test_only_some_parameters_are_moved() -> None:
    """The others keep their values while the loss is taken."""
    network = _objective().model
    seen = []

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        seen.append((network[0].weight.clone(), network[3].bias.clone()))
        return output.mean()

    objective = Objective(network, loss, [(torch.ones(2, 4), torch.zeros(2))], ("3.bias",))
    loss_landscape(objective, torch.ones(3), torch.zeros(3), points=3)
    assert len({weight.sum().item() for weight, _ in seen}) == 1
    assert len({bias.sum().item() for _, bias in seen}) == 3


def test_an_even_grid_and_no_reach_are_refused() -> None:
    """The network as it is must lie in the middle."""
    objective = _objective()
    ones = torch.ones(objective.size)
    with pytest.raises(ConfigError, match="points=40 must be odd"):
        loss_landscape(objective, ones, ones, points=40)
    for reach in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"reach={reach} must be a finite number above 0"):
            loss_landscape(objective, ones, ones, reach=reach)


def test_figures_have_titles_labels_and_units() -> None:
    """A landscape has a contour and a surface; curvature has bars and, of two sites, a matrix."""
    objective = _objective()
    one, two = torch.randn(2, objective.size)
    figure = plot_landscape(loss_landscape(objective, one, two, points=3), "A")
    assert [ax.get_xlabel() for ax in figure.axes if ax.get_xlabel()] == ["along eigenvector 1"] * 2
    values = {name: {"eigenvalues": [3.0, -1.0], "trace": 4.0, "trace_standard_error": 0.1} for name in "AB"}
    drawn = plot_hessian(values, {("A", "B"): None}, sites=["A", "B"])
    assert {"largest eigenvalues", "H_D of pairs of sites"} <= {ax.get_title() for ax in drawn.axes}
    assert len(plot_hessian(values, {}, sites=["A"]).axes) == 2
