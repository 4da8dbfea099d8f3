"""The three-layer network of the FedBN paper for connectome vectors."""

from torch import Tensor, nn

from monai_fedskew.errors import ConfigError

__all__ = ["ConnectomeMLP"]


class ConnectomeMLP(nn.Module):
    """Classify a connectome vector with three linear layers, BatchNorm after the first two.

    ``fc1 - norm1 - ReLU - fc2 - norm2 - ReLU - fc3``: the network of the ABIDE experiments of FedBN (Li et al. 2021,
    arXiv 2102.07623, appendix D.4). With its 5995 edges, 16 hidden units and two classes it has 96,306 parameters.

    Args:
        in_features: number of edges in a vector; 5995 are the pairs of 110 regions.
        hidden: width of both hidden layers.
        n_classes: number of classes, at least 2.

    Raises:
        ConfigError: a size is out of range.

    Example:
        >>> import torch
        >>> network = ConnectomeMLP(in_features=66)
        >>> network(torch.zeros(4, 66)).shape
        torch.Size([4, 2])
    """

    def __init__(self, in_features: int = 5995, hidden: int = 16, n_classes: int = 2) -> None:
        super().__init__()
        for name, value, least in (("in_features", in_features, 1), ("hidden", hidden, 1), ("n_classes", n_classes, 2)):
            if value < least:
                raise ConfigError(f"ConnectomeMLP: {name} is {value}; it must be at least {least}")
        self.fc1 = nn.Linear(in_features, hidden)
        self.norm1 = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.BatchNorm1d(hidden)
        self.fc3 = nn.Linear(hidden, n_classes)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the logits (batch, n_classes) of ``vectors`` (batch, in_features)."""
        hidden = self.norm1(self.fc1(vectors)).relu()
        hidden = self.norm2(self.fc2(hidden)).relu()
        logits: Tensor = self.fc3(hidden)  # a trailing `type: ignore` would break torch.jit, and so ckpt_export
        return logits
