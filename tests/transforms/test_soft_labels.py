import math

import pytest
import torch
from monai.losses import DiceCELoss, DiceFocalLoss, DiceLoss, GeneralizedDiceLoss
from torch import nn

from monai_fedskew.errors import ConfigError
from monai_fedskew.transforms.soft_labels import require_soft_labels, soft_form, soft_labels

MASK = torch.tensor([[[[0, 1], [2, 1]]], [[[1, 1], [0, 2]]]])  # (2, 1, 2, 2), each class among them


@pytest.mark.parametrize("spatial", [(), (3,), (3, 2), (3, 2, 2)])
@pytest.mark.parametrize("has_channel", [True, False])
def test_class_indices_become_one_hot_with_classes_second(spatial, has_channel) -> None:
    """Of classes, 1-D, 2-D and 3-D masks, with or without the channel MONAI gives masks."""
    labels = torch.randint(3, (3, 1, *spatial))
    soft = soft_labels(labels if has_channel else labels[:, 0], torch.zeros(3, 3, *spatial), what="site A")

    assert soft.shape == (3, 3, *spatial)
    assert torch.equal(soft.argmax(1, keepdim=True), labels)
    assert torch.equal(soft.sum(1), torch.ones(3, *spatial))


def test_labels_of_the_shape_of_the_prediction_stay_as_they_are() -> None:
    """Regression, several classes at once, masks that are one-hot already."""
    labels = torch.tensor([[1, 0], [1, 1]])

    assert torch.equal(soft_labels(labels, torch.zeros(2, 2), what="site A"), labels.float())


def test_labels_that_cannot_be_averaged_are_refused() -> None:
    """Another shape; a class the network does not have; labels a loss would ignore."""
    with pytest.raises(ConfigError, match=r"site A: labels of shape \(2, 7\) are no class indices .* \(2, 3\)"):
        soft_labels(torch.zeros(2, 7), torch.zeros(2, 3), what="site A")
    with pytest.raises(ConfigError, match="site A: labels from -100 to 3, but the network has 3 outputs"):
        soft_labels(torch.tensor([-100, 3]), torch.zeros(2, 3), what="site A")


@pytest.mark.parametrize(
    "loss",
    [
        DiceLoss(to_onehot_y=True, softmax=True),
        DiceCELoss(to_onehot_y=True, softmax=True),
        DiceFocalLoss(to_onehot_y=True, softmax=True),
        GeneralizedDiceLoss(to_onehot_y=True, softmax=True),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_monai_losses_take_both_forms(loss) -> None:
    """One value for indices and for the shares they stand for; the bundle's own loss is left as it was."""
    pred = torch.randn(2, 3, 2, 2)

    require_soft_labels(loss, pred, MASK, what="site A")

    assert soft_form(loss)(pred, soft_labels(MASK, pred, what="site A")) == pytest.approx(loss(pred, MASK).item())
    assert soft_form(loss) is not loss
    assert loss(pred, MASK).isfinite()


def test_cross_entropy_is_used_as_it_is() -> None:
    """PyTorch's takes indices and shares; with smoothing as well."""
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)

    require_soft_labels(loss, torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), what="site A")

    assert soft_form(loss) is loss


def test_class_weights_by_hand() -> None:
    """Weights 1 and 3, losses ln 2 and ln 2 of even shares: (1/2 1 + 1/2 3) ln 2 over 2: ln 2, not 2 ln 2."""
    loss = soft_form(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])))

    assert loss(torch.zeros(4, 2), torch.full((4, 2), 0.5)).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_class_weights_mean_the_same_on_shares(smoothing) -> None:
    """PyTorch divides by the sum of weights for indices and by the number of samples for shares; here both by the sum.

    Also inside MONAI's compound loss, whose own loss is left as it was.
    """
    weight = torch.tensor([1.0, 5.0, 2.0])
    compound = DiceCELoss(to_onehot_y=True, softmax=True, weight=weight)

    require_soft_labels(
        nn.CrossEntropyLoss(weight, label_smoothing=smoothing), torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), what="A"
    )
    require_soft_labels(compound, torch.randn(2, 3, 2, 2), MASK, what="A")

    assert isinstance(compound.cross_entropy, nn.CrossEntropyLoss)


def test_a_loss_that_weighs_shares_otherwise_is_refused_in_words() -> None:
    """One that looks the same on labels and is not: it would count averaged labels twice."""

    def twice(pred, labels):
        return nn.functional.cross_entropy(pred, labels) * (2 if labels.is_floating_point() else 1)

    with pytest.raises(ConfigError, match="site A: twice is .* would be weighed otherwise"):
        require_soft_labels(twice, torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), what="site A")


def test_a_loss_of_indices_only_is_refused() -> None:
    """With what it says itself."""
    with pytest.raises(ConfigError, match="site A needs a loss that takes averaged labels, which NLLLoss does not"):
        require_soft_labels(nn.NLLLoss(), torch.randn(2, 3), torch.tensor([0, 1]), what="site A")
