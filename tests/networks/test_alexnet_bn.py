import pytest
import torch
from torch import nn

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks import AlexNetBN
from monai_fedskew.networks.narrow import Narrowed
from monai_fedskew.networks.stages import feature_stages, last_stage


def small() -> AlexNetBN:
    """A sixteenth of the paper's width."""
    torch.manual_seed(0)
    return AlexNetBN(width=1 / 16)


def test_parameters_of_the_paper_by_hand() -> None:
    """Five convolutions, three linear layers and the norms between them, as the paper's table 9 has them.

    Convolutions 23,296 + 307,392 + 663,936 + 884,992 + 590,080; linear layers 37,752,832 + 16,781,312 + 40,970; two
    numbers a channel or unit of seven norms, 2 (64 + 192 + 384 + 256 + 256 + 4096 + 4096) = 18,688: 57,063,498.
    """
    with torch.device("meta"):
        network = AlexNetBN()
    counted = {
        kind: [sum(p.numel() for p in module.parameters()) for module in network.modules() if isinstance(module, kind)]
        for kind in (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d)
    }
    assert counted[nn.Conv2d] == [23_296, 307_392, 663_936, 884_992, 590_080]
    assert counted[nn.Linear] == [37_752_832, 16_781_312, 40_970]
    assert sum(counted[nn.BatchNorm2d] + counted[nn.BatchNorm1d]) == 18_688
    assert sum(map(sum, counted.values())) == sum(p.numel() for p in network.parameters()) == 57_063_498


def test_places_before_the_average_pooling() -> None:
    """256 pixels: 63, pooled 31, pooled 15, pooled 7; 128: 31, 15, 7, 3; 63: 15, 7, 3, 1."""
    network, seen = small().eval(), []
    network.layer5.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[2:])))
    for size in (256, 128, 63):
        assert network(torch.zeros(1, 3, size, size)).shape == (1, 10)
    assert seen == [(7, 7), (3, 3), (1, 1)]


@pytest.mark.parametrize("shape", [(1, 3, 62, 128), (1, 1, 128, 128), (1, 3, 128)], ids=["small", "grey", "flat"])
def test_images_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    """One error with the shape seen and what is needed, not one of a pooling layer."""
    with pytest.raises(ConfigError, match=r"AlexNetBN: images of shape .*; 3 channels and at least 63 x 63 pixels"):
        small()(torch.zeros(shape))


@pytest.mark.parametrize("sizes", [{"width": 0.0}, {"n_classes": 1}, {"in_channels": 0}, {"width": float("nan")}])
def test_sizes_out_of_range_are_refused(sizes: dict[str, float]) -> None:
    """No channel, one class or no width is no network."""
    with pytest.raises(ConfigError, match="AlexNetBN: in_channels="):
        AlexNetBN(**sizes)  # type: ignore[arg-type]  # ints among floats


def test_stages_are_the_five_convolutions() -> None:
    """What FedFA, FedAlign and the like look for is found by the children's names."""
    assert feature_stages(small()) == [f"layer{k}" for k in range(1, 6)]
    assert last_stage(small()) == "layer5"


def test_it_can_be_narrowed() -> None:
    """Half of the channels, as GradAug runs the whole network: logits of all classes come out, gradients go in."""
    network, images = small(), torch.rand(2, 3, 64, 64)
    logits = Narrowed(network, 0.5, (images,), narrow_inputs=False, keep_outputs=True)(images)
    logits.sum().backward()
    assert logits.shape == (2, 10)
    gradient = network.layer5[0].weight.grad
    assert gradient is not None
    assert gradient.abs().sum() > 0
