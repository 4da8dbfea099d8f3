import pytest
from monai.networks.nets import AttentionUnet, DenseNet121, UNet, VNet, resnet18
from torch import nn

from monai_fedskew.core import restore, snapshot, weighted_mean
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedavg, fedbn


def unet(**changed) -> UNet:
    """Case 01's network."""
    return UNet(3, 1, 2, channels=(4, 8), strides=(2,), num_res_units=2, **{"norm": "batch", **changed})


@pytest.mark.parametrize(
    ("build", "private", "total"),
    [
        (unet, 25, 46),
        (lambda: DenseNet121(2, 1, 2, init_features=8, growth_rate=4), 605, 727),
        (lambda: AttentionUnet(3, 1, 2, channels=(4, 8), strides=(2,)), 40, 61),
        (lambda: VNet(spatial_dims=2), 120, 150),
        (lambda: resnet18(spatial_dims=3, n_input_channels=1, num_classes=2), 100, 125),
    ],
    ids=["UNet", "DenseNet121", "AttentionUnet", "VNet", "resnet18"],
)
def test_batch_norm_of_monai_networks_stays_private(build, private, total) -> None:
    """Case 01: found by module type, whatever MONAI calls it."""
    net = build()

    shared = fedbn().share(net)

    assert len(net.state_dict()) == total
    assert total - len(shared) == private


def test_two_sites_keep_their_norms_and_average_the_rest() -> None:
    """Case 01: sites filled with 1 and 3, equal weights: shared entries become (1 + 3) / 2 = 2, norms stay 1 and 3."""
    nets = [unet(), unet()]
    for net, value in zip(nets, (1.0, 3.0), strict=True):
        for entry in net.state_dict().values():
            if entry.is_floating_point():
                entry.fill_(value)
    shared = fedbn().share(nets[0])

    mean = weighted_mean([snapshot(net, shared) for net in nets], [0.5, 0.5])
    for net in nets:
        restore(net, mean)

    for net, own in zip(nets, (1.0, 3.0), strict=True):
        for key, entry in net.state_dict().items():
            if entry.is_floating_point():
                assert (entry == (2.0 if key in shared else own)).all(), key


def test_no_batch_norm_is_an_error() -> None:
    """Case 02 b: MONAI's default UNet has instance norm, where FedBN would silently be FedAvg."""
    with pytest.raises(ConfigError, match=r"no BatchNorm entries in UNet.*norm='batch'"):
        fedbn().share(unet(norm="instance"))


def test_no_batch_norm_may_be_allowed() -> None:
    """Case 02 b: one warning with the same text, then FedAvg's keys."""
    net = unet(norm="instance")

    with pytest.warns(UserWarning, match="no BatchNorm entries in UNet") as caught:
        shared = fedbn(allow_none=True).share(net)

    assert len(caught) == 1
    assert shared == fedavg().share(net)


def test_norms_all_keeps_every_normalisation_layer() -> None:
    """Instance, group and layer norm stay only on request: 2 + 2 + 2 affine entries, and 5 of batch norm."""
    net = nn.ModuleList(
        [nn.BatchNorm2d(2), nn.InstanceNorm2d(2, affine=True), nn.GroupNorm(1, 2), nn.LayerNorm(2), nn.Linear(2, 2)]
    )

    assert len(net.state_dict()) - len(fedbn().share(net)) == 5
    assert fedbn("all").share(net) == {"4.weight", "4.bias"}


def test_official_goes_by_spelling() -> None:
    """It finds a layer called bn1 and misses the batch norm of a shortcut, as FedBN's script would."""
    net = nn.ModuleDict({"bn1": nn.BatchNorm1d(2), "downsample": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))})

    shared = fedbn(variant="official").share(net)

    assert "bn1.weight" not in shared
    assert "downsample.1.running_mean" in shared


def test_official_that_finds_nothing_is_an_error() -> None:
    """MONAI's UNet with batch norm has no 'bn' in any name."""
    with pytest.raises(ConfigError, match="no BatchNorm entry of UNet has 'bn' in its name"):
        fedbn(variant="official").share(unet())


def test_sync_batch_norm_and_subclasses_count() -> None:
    """Case 02 a: whatever is a _BatchNorm, all five entries of it."""

    class MyNorm(nn.BatchNorm1d):
        pass

    net = nn.ModuleList([nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1), nn.SyncBatchNorm(1), MyNorm(1)])

    assert fedbn().share(net) == {"0.weight", "0.bias"}
