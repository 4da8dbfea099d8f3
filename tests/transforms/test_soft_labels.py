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


def test_class_weights_are_refused_in_words() -> None:
    """PyTorch divides by the sum of weights for indices and by the number of samples for shares."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 1.0]))

    with pytest.raises(ConfigError, match="site A: CrossEntropyLoss is .* would be weighed otherwise.*class weights"):
        require_soft_labels(loss, torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), what="site A")


def test_a_loss_of_indices_only_is_refused() -> None:
    """With what it says itself."""
    with pytest.raises(ConfigError, match="site A needs a loss that takes averaged labels, which NLLLoss does not"):
        require_soft_labels(nn.NLLLoss(), torch.randn(2, 3), torch.tensor([0, 1]), what="site A")
