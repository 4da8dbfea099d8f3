import pytest
import torch
from laws import difference
from monai.networks.nets import DenseNet121, EfficientNetBN, FlexibleUNet, SEResNet50, SwinUNETR, UNet, resnet18
from torch import nn

from monai_fedskew.core import adapt_network
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import moon
from monai_fedskew.networks import ConnectomeMLP


@pytest.mark.parametrize(
    ("build", "classifier", "shape"),
    [
        (lambda: resnet18(spatial_dims=3, n_input_channels=1, num_classes=2), "fc", (2, 1, 16, 16, 16)),
        (lambda: DenseNet121(2, 1, 2, init_features=8, growth_rate=4), "class_layers.out", (2, 1, 32, 32)),
        (
            lambda: EfficientNetBN("efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=1, num_classes=2),
            "_fc",
            (2, 1, 32, 32),
        ),
        (lambda: SEResNet50(spatial_dims=2, in_channels=1, num_classes=2), "last_linear", (2, 1, 32, 32)),
        (lambda: ConnectomeMLP(6, 4), "fc3", (2, 6)),
    ],
    ids=["resnet18", "DenseNet121", "EfficientNet", "SEResNet50", "ConnectomeMLP"],
)
def test_networks_get_a_projection_head(build, classifier, shape) -> None:
    """The last linear layer becomes the head, with two logits as before; the same seed gives the same weights."""
    torch.manual_seed(1)
    net = build()
    before = set(net.state_dict())

    adapted = adapt_network(net, moon(dim=8).parts, seed=0)

    layers = {
        f"{classifier}.{layer}.{entry}" for layer in ("hidden", "project", "classify") for entry in ("weight", "bias")
    }
    assert set(adapted.state_dict()) == before - {f"{classifier}.weight", f"{classifier}.bias"} | layers
    assert adapted.get_submodule(classifier).project.out_features == 8
    assert adapted.eval()(torch.zeros(shape)).shape == (2, 2)
    torch.manual_seed(2)
    again = adapt_network(build(), moon(dim=8).parts, seed=0)
    assert difference({k: adapted.state_dict()[k] for k in layers}, {k: again.state_dict()[k] for k in layers}) == ""


@pytest.mark.parametrize(
    "build",
    [
        lambda: UNet(2, 1, 2, (4, 8), (2,)),
        lambda: SwinUNETR(in_channels=1, out_channels=2, feature_size=12, spatial_dims=2),
        lambda: FlexibleUNet(1, 2, "efficientnet-b0", spatial_dims=2),
        lambda: resnet18(spatial_dims=2, n_input_channels=1, feed_forward=False),
        nn.Identity,
    ],
    ids=["UNet", "SwinUNETR", "FlexibleUNet", "features", "nothing"],
)
def test_networks_without_a_classifier_are_refused(build) -> None:
    """Also where linear layers are within, or lie unused in the encoder."""
    with pytest.raises(ConfigError, match="method moon needs a classifier, a Linear as the network's last layer"):
        adapt_network(build(), moon().parts, 0)
