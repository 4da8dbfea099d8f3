import pytest
import torch
from monai.networks import nets
from torch import nn

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks.residual import residual_rule
from monai_fedskew.networks.stages import feature_stages, last_stage, require_convolutions, residual_blocks

FOUR = ["layer1", "layer2", "layer3", "layer4"]


def network(name: str, dims: int = 2) -> nn.Module:
    """A small network of MONAI."""
    torch.manual_seed(0)
    wide = {"spatial_dims": dims, "in_channels": 1, "out_channels": 2}
    deep = {"channels": (4, 8, 16), "strides": (2, 2)}
    if name == "resnet":
        return nets.ResNet("basic", [1, 1, 2, 1], [4, 8, 8, 16], dims, 1, num_classes=2)
    if name == "bottleneck":
        return nets.ResNet("bottleneck", [1, 1, 1, 1], [2, 2, 2, 4], dims, 1, num_classes=2, shortcut_type="A")
    if name == "senet":
        return nets.SENet(dims, 1, "se_resnet_bottleneck", [1, 1, 1, 1], 1, 16, None, inplanes=8, num_classes=2)
    if name == "densenet":
        return nets.DenseNet(**wide, init_features=8, growth_rate=4, block_config=(1, 2, 1))
    if name == "efficientnet":
        return nets.EfficientNetBN("efficientnet-b0", False, spatial_dims=dims, in_channels=1, num_classes=2)
    if name == "vnet":
        return nets.VNet(dims, 1, 2)
    if name == "basicunet":
        return nets.BasicUNet(**wide, features=(4, 4, 8, 8, 16, 4))
    if name == "attentionunet":
        return nets.AttentionUnet(**wide, **deep)
    if name == "unet":
        return nets.UNet(**wide, **deep)
    if name == "residual unet":
        return nets.UNet(**wide, **deep, num_res_units=2)
    if name == "dynunet":
        return nets.DynUNet(**wide, kernel_size=[3] * 4, strides=[1, 2, 2, 2], upsample_kernel_size=[2] * 3,
                            filters=[4, 8, 8, 16], res_block=True)  # fmt: skip
    return nets.SegResNet(dims, init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1), out_channels=2)


EXPECTED = {
    "resnet": (FOUR, "layer4", 5),
    "bottleneck": (FOUR, "layer4", 4),
    "senet": (FOUR, "layer4", 4),
    "densenet": ([f"features.denseblock{i}" for i in (1, 2, 3)], "features.denseblock3", 0),
    "efficientnet": ([f"_blocks.{i}" for i in range(7)], "_blocks.6", 0),
    "vnet": (["in_tr", "down_tr32", "down_tr64", "down_tr128", "down_tr256"], "up_tr32.ops", 8),
    "basicunet": (["conv_0", "down_1", "down_2", "down_3", "down_4"], "upcat_1", 0),
    "attentionunet": (["model.0", "model.1.submodule.0", "model.1.submodule.1.submodule"], "model.1.merge", 0),
    "unet": (["model.0", "model.1.submodule.0", "model.1.submodule.1.submodule"], "model.1.submodule.2", 0),
    "residual unet": (["model.0", "model.1.submodule.0", "model.1.submodule.1.submodule"], "model.1.submodule.2", 5),
    "dynunet": (["input_block", "downsamples.0", "downsamples.1", "bottleneck"], "upsamples.2", 4),
    "segresnet": ([f"down_layers.{i}" for i in range(3)], "up_layers.1", 5),
}
SIZE = {"vnet": 16, "efficientnet": 32, "senet": 32, "basicunet": 32}


@pytest.mark.parametrize("name", EXPECTED)
def test_stages_of_monai_networks_run_in_this_order(name) -> None:
    """Every named stage runs once, in the order of the list, and the last stage runs after them."""
    model = network(name).eval()
    stages, last, blocks = EXPECTED[name]
    seen: list[str] = []
    for stage in dict.fromkeys([*stages, last]):
        model.get_submodule(stage).register_forward_hook(lambda *_, stage=stage: seen.append(stage))

    size = SIZE.get(name, 16)
    with torch.no_grad():
        model(torch.zeros(2, 1, size, size))

    assert feature_stages(model) == stages
    assert last_stage(model) == last
    assert seen == list(dict.fromkeys([*stages, last]))
    assert len(residual_blocks(model)) == blocks


@pytest.mark.parametrize("name", ["resnet", "unet", "segresnet", "dynunet"])
def test_stages_are_the_same_in_three_dimensions(name) -> None:
    """Names do not depend on the number of spatial dimensions."""
    assert feature_stages(network(name, 3)) == EXPECTED[name][0]
    assert last_stage(network(name, 3)) == EXPECTED[name][1]


@pytest.mark.parametrize("name", [name for name, (_, _, blocks) in EXPECTED.items() if blocks])
def test_a_residual_block_is_its_branch_plus_its_shortcut(name) -> None:
    """Taken apart and joined again, every block gives its own output."""
    model = network(name).eval()
    checked: list[str] = []

    def check(block, inputs, output):
        rule = residual_rule(block)
        copies = [value.clone() for value in inputs]
        shortcut = rule.shortcut(block, *copies)
        torch.testing.assert_close(rule.join(block, rule.branch(block, shortcut, *copies) + shortcut), output)
        checked.append(type(block).__name__)

    for block in residual_blocks(model):
        model.get_submodule(block).register_forward_hook(check)
    size = SIZE.get(name, 16)
    with torch.no_grad():
        model(torch.randn(2, 1, size, size))

    assert len(checked) == EXPECTED[name][2]


def test_blocks_run_in_the_order_of_the_list() -> None:
    """The depth of a block is its place in the list."""
    for name in ("resnet", "residual unet", "segresnet", "dynunet", "vnet"):
        model, seen = network(name).eval(), []
        for block in residual_blocks(model):
            model.get_submodule(block).register_forward_hook(lambda *_, block=block, seen=seen: seen.append(block))
        with torch.no_grad():
            model(torch.zeros(1, 1, 16, 16))
        assert seen == residual_blocks(model)


class Plain(nn.Module):
    """A network of children given by the test."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def conv() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Conv2d(1, 1, 3), nn.ReLU())


def test_plain_networks_are_known_by_their_children() -> None:
    """Numbered layers in order of their numbers; pooling layers of `features`; containers in `features`."""
    numbered = Plain(layer10=conv(), layer2=conv(), fc=nn.Linear(1, 1))
    pooled = Plain(features=nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2), nn.Conv2d(1, 1, 3), nn.MaxPool2d(2)))
    nested = Plain(features=nn.Sequential(conv(), conv(), nn.ReLU()))

    assert feature_stages(numbered) == ["layer2", "layer10"]
    assert last_stage(numbered) == "layer10"
    assert feature_stages(pooled) == ["features.1", "features.3"]
    assert last_stage(nested) == "features.1"


@pytest.mark.parametrize(
    "model", [Plain(features=conv()), Plain(layer1=conv(), layer2=nn.Linear(1, 1)), Plain(layer1=conv())]
)
def test_a_network_without_known_stage_says_how_to_name_one(model) -> None:
    """A lone layer, a linear one among them, or single convolutions are no stages."""
    with pytest.raises(ConfigError, match="Plain has no known last stage; name it: fedalign:stage=layer3"):
        last_stage(model)
    with pytest.raises(ConfigError, match="Plain has no known stages; known are MONAI's AttentionUnet, "):
        feature_stages(model)


def test_another_network_of_monai_is_refused() -> None:
    """No guess where the stages of a network might be that was never looked at."""
    with pytest.raises(ConfigError, match="HighResNet has no known last stage"):
        last_stage(nets.HighResNet(2, 1, 2))


def test_a_named_stage_is_taken_if_it_is_there() -> None:
    """Another name lists what there is; a module without convolution is no stage."""
    model = network("resnet")

    assert last_stage(model, "layer3") == "layer3"
    with pytest.raises(ConfigError, match="ResNet has no module 'layer9'; among its modules: conv1, layer1"):
        last_stage(model, "layer9")
    with pytest.raises(ConfigError, match="ResNet.fc holds no convolution"):
        last_stage(model, "fc")


def test_a_network_of_vectors_is_refused() -> None:
    """The message opens with site and method."""
    require_convolutions("site NYU: fedalign", network("unet"))
    with pytest.raises(ConfigError, match="site NYU: fedalign needs a network with convolutions, .* Linear has none"):
        require_convolutions("site NYU: fedalign", nn.Linear(2, 2))


def test_two_levels_of_unet_end_at_the_bottom() -> None:
    """The top level yields the output; below it there is only the bottleneck."""
    model = nets.UNet(2, 1, 2, channels=(4, 8), strides=(2,))

    assert last_stage(model) == "model.1.submodule"
    assert feature_stages(model) == ["model.0", "model.1.submodule"]
