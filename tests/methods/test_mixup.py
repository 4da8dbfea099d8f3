import importlib
import math

import pytest
import torch
from monai.data import MetaTensor
from monai.engines.utils import IterationEvents
from monai.losses import DiceCELoss
from torch import nn

from monai_fedskew.core import Update
from monai_fedskew.core.messages import Broadcast
from monai_fedskew.errors import ConfigError
from monai_fedskew.federation.client import Client
from monai_fedskew.federation.settings import Settings
from monai_fedskew.methods.mixup import draw_ratio, mixup

SWAPPED = 1  # with this seed the permutation of two is a swap


def attached(view, gamma=0.1, loss=None, seed=SWAPPED):
    """A site with mixup, its stream just seeded."""
    site = view("A")
    site.loss_function = nn.MSELoss() if loss is None else loss
    site.generator.manual_seed(seed)
    mixup(gamma).parts[0].bind(site)
    return site


def test_inputs_and_loss_by_hand(view, monkeypatch) -> None:
    """l = 3/4, x = (1, 3), y = (0, 4), f(x) = x: inputs (1.5, 2.5).

    Own labels: (1.5^2 + 1.5^2) / 2 = 2.25; partners' (4, 0): (2.5^2 + 2.5^2) / 2 = 6.25; 3/4 2.25 + 1/4 6.25 = 3.25.
    """
    module = importlib.import_module("monai_fedskew.methods.mixup")  # by attribute that name is the factory
    monkeypatch.setattr(module, "draw_ratio", lambda gamma, generator: 0.75)
    site = attached(view)
    x, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [4.0]])

    inputs, targets = site.stages["mix"](x, y, site.generator)
    loss = site.stages["replace"]({"pred": inputs, "loss": nn.MSELoss()(inputs, targets)})

    assert inputs.flatten().tolist() == [1.5, 2.5]
    assert torch.equal(targets, y)
    assert loss.item() == 3.25


def test_cross_entropy_equals_blended_one_hot_labels(view) -> None:
    """The loss of two hard labels is the loss of the paper's soft label."""
    site = attached(view, gamma=1.0, loss=nn.CrossEntropyLoss())
    y, pred = torch.tensor([0, 1, 2, 1, 0]), torch.randn(5, 3)

    soft, _ = site.stages["mix"](nn.functional.one_hot(y, 3).float(), y, site.generator)  # blended as inputs are
    loss = site.stages["replace"]({"pred": pred, "loss": nn.CrossEntropyLoss()(pred, y)})

    assert loss.item() == pytest.approx(nn.CrossEntropyLoss()(pred, soft).item())


@pytest.mark.parametrize("spatial", [(4, 4), (4, 4, 4)])
def test_segmentation_with_hard_labels_and_meta_tensors(view, spatial) -> None:
    """MONAI's Dice wants class indices; 2-D and 3-D alike, whatever the loss reduces to."""
    loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
    site = attached(view, gamma=0.5, loss=loss_function)
    image = MetaTensor(torch.randn(3, 1, *spatial))
    label = MetaTensor(torch.randint(2, (3, 1, *spatial)).float())

    inputs, targets = site.stages["mix"](image, label, site.generator)
    pred = torch.randn(3, 2, *spatial, requires_grad=True)
    site.stages["replace"]({"pred": pred, "loss": loss_function(pred, targets).mean()}).backward()

    assert inputs.shape == image.shape
    assert torch.isfinite(pred.grad).all()


def test_one_ratio_a_batch_and_another_the_next(view) -> None:
    """All samples of a batch share l; the blend of x = 0 or 1 tells it."""
    site = attached(view, gamma=1.0)
    x = torch.arange(64.0).remainder(2)[:, None]

    batches = [site.stages["mix"](x, x, site.generator)[0] for _ in range(2)]

    values = [set(batch.flatten().tolist()) - {0.0, 1.0} for batch in batches]
    assert all(len(found) == 2 and sum(found) == pytest.approx(1) for found in values)  # l and 1 - l
    assert not values[0] & values[1]


@pytest.mark.parametrize("gamma", [1e-300, 1e-5, 0.1, 1.0, 20.0, 1e300])
def test_ratio_has_the_mean_and_variance_of_beta(gamma) -> None:
    """1/2 and 1 / (4 (2 gamma + 1)), within five standard errors; tiny gammas give no 0/0."""
    stream = torch.Generator().manual_seed(1)

    ratios = torch.tensor([draw_ratio(gamma, stream) for _ in range(2000)], dtype=torch.float64)

    variance = 1 / (4 * (2 * gamma + 1))
    assert ((ratios >= 0) & (ratios <= 1)).all()
    assert ratios.mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(variance / 2000) + 1e-12)
    assert ratios.var().item() == pytest.approx(variance, rel=0.2, abs=1e-12)


def test_gamma_zero_attaches_nothing(view) -> None:
    """FedAvg bit for bit, at no cost."""
    assert attached(view, gamma=0).stages == {}


def test_the_loss_of_a_batch_can_be_asked_for_again(sources) -> None:
    """Extra passes blend no labels anew: a second loss of one batch is the first one (dropout is off here)."""
    client = Client(mixup(1.0), sources["A"], Settings(rounds=1))
    site, losses = client.site, []
    for module in site.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    def again(engine) -> None:
        with site.replay(mixup().parts[0]):
            losses.append((engine.state.output["loss"].item(), site.loss().item(), site.loss().item()))

    site.trainer.add_event_handler(IterationEvents.BACKWARD_COMPLETED, again)
    assert isinstance(client.fit(Broadcast(1, dict(client.survey().tensors))), Update)

    assert losses
    assert all(first == second == third for first, second, third in losses)


@pytest.mark.parametrize("gamma", [-0.1, math.nan, math.inf, True, "a"])
def test_wrong_gamma_is_refused(gamma) -> None:
    """Name, value and range."""
    with pytest.raises(ConfigError, match=r"method mixup: gamma=.* must be a finite number of at least 0"):
        mixup(gamma)
