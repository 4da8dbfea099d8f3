import pytest
import torch

from monai_fedskew.errors import ConfigError
from monai_fedskew.networks import ConnectomeMLP


def test_size_is_that_of_the_paper() -> None:
    """5995*16+16 + 2*16 + 16*16+16 + 2*16 + 16*2+2 = 95936 + 32 + 272 + 32 + 34 = 96306 parameters."""
    assert sum(p.numel() for p in ConnectomeMLP().parameters()) == 96_306


def test_norm_follows_the_first_two_layers() -> None:
    """Each hidden layer is linear, then batch norm, then ReLU: computed by hand in evaluation mode."""
    torch.manual_seed(0)
    network = ConnectomeMLP(4, hidden=3).eval()
    x = torch.randn(5, 4)
    hidden = torch.relu(network.norm2(network.fc2(torch.relu(network.norm1(network.fc1(x))))))
    assert torch.equal(network(x), network.fc3(hidden))
    assert {name.split(".")[0] for name in network.state_dict()} == {"fc1", "norm1", "fc2", "norm2", "fc3"}


def test_sizes_are_checked() -> None:
    """One class is no classification."""
    with pytest.raises(ConfigError, match="n_classes is 1"):
        ConnectomeMLP(4, n_classes=1)
