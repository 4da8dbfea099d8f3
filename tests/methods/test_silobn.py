import pytest
from torch import nn

from monai_fedskew.core import snapshot, weighted_mean
from monai_fedskew.errors import ConfigError
from monai_fedskew.methods import fedbn, silobn


def test_differs_from_fedbn_in_the_affine_pair_only() -> None:
    """Weight and bias of batch norm leave the site, running statistics do not."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    assert silobn().share(net) - fedbn().share(net) == {"1.weight", "1.bias"}
    assert fedbn().share(net) - silobn().share(net) == frozenset()


def test_average_by_hand() -> None:
    """Affine weights 1 and 5 at weights 1/4 and 3/4: 0.25 * 1 + 0.75 * 5 = 4; no running mean is in the average."""
    nets = [nn.Sequential(nn.BatchNorm1d(1)) for _ in range(2)]
    for net, value in zip(nets, (1.0, 5.0), strict=True):
        nn.init.constant_(net[0].weight, value)
    shared = silobn().share(nets[0])

    mean = weighted_mean([snapshot(net, shared) for net in nets], [0.25, 0.75])

    assert mean["0.weight"].item() == 4.0
    assert sorted(mean) == ["0.bias", "0.weight"]


def test_batch_norm_without_running_statistics_is_an_error() -> None:
    """HarmoFL's networks track none: SiloBN would be FedAvg."""
    with pytest.raises(ConfigError, match="no BatchNorm entries in Sequential"):
        silobn().share(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)))
