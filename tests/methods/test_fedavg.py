from torch import nn

from monai_fedskew.core import restore, snapshot, weighted_mean
from monai_fedskew.methods import fedavg


def test_average_by_hand() -> None:
    """Case 04: n = 10 and 30: running mean (10*0 + 30*8)/40 = 6, running variance (10*1 + 30*5)/40 = 4, weight
    (10*1 + 30*3)/40 = 2.5; the counter takes the maximum of 2 and 7."""
    nets = [nn.BatchNorm1d(1), nn.BatchNorm1d(1)]
    for net, (mean, var, weight, count) in zip(nets, [(0, 1, 1, 2), (8, 5, 3, 7)], strict=True):
        net.running_mean.fill_(mean)
        net.running_var.fill_(var)
        nn.init.constant_(net.weight, weight)
        net.num_batches_tracked.fill_(count)
    shared = fedavg().share(nets[0])

    restore(nets[0], weighted_mean([snapshot(net, shared) for net in nets], [10 / 40, 30 / 40]))

    net = nets[0]
    assert (net.running_mean.item(), net.running_var.item(), net.weight.item()) == (6.0, 4.0, 2.5)
    assert net.num_batches_tracked.item() == 7
