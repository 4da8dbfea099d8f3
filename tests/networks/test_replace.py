import torch
from torch import nn

from monai_fedskew.networks.replace import output_layer, replace_modules


def no_tanh(module: nn.Module) -> nn.Module:
    """An identity for every tanh."""
    return nn.Identity() if isinstance(module, nn.Tanh) else module


def test_every_holder_gets_the_same_new_layer() -> None:
    """A layer that is held twice, by one parent or by two, stays one."""
    shared = nn.Tanh()
    net = nn.Sequential(shared, nn.Sequential(shared), shared)

    replace_modules(net, no_tanh)

    assert isinstance(net[0], nn.Identity)
    assert net[0] is net[1][0] is net[2]


def test_the_network_itself_may_be_replaced() -> None:
    """There is no parent to go through."""
    assert isinstance(replace_modules(nn.Tanh(), no_tanh), nn.Identity)


def test_mode_is_kept_and_others_stay() -> None:
    """A network in evaluation stays in evaluation; what is not replaced is the same object."""
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh()).eval()
    linear = net[0]

    replace_modules(net, no_tanh)

    assert not net[1].training
    assert net[0] is linear


def test_output_layer_of_networks() -> None:
    """The last linear or convolutional layer registered; a network may have none."""
    from monai.networks.nets import DenseNet121, UNet, resnet18

    unet = UNet(2, 1, 2, (4, 8), (2,), norm="batch")
    resnet = resnet18(spatial_dims=2, n_input_channels=1, num_classes=2)
    densenet = DenseNet121(2, 1, 2)
    assert output_layer(resnet) is resnet.fc
    assert output_layer(densenet) is densenet.class_layers.out
    assert output_layer(unet) is unet.model[2].conv
    assert output_layer(nn.ReLU()) is None
    assert torch.is_tensor(unet(torch.zeros(1, 1, 8, 8)))
