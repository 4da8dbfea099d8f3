"""A projection head between a network's features and its classifier, as contrastive methods ask for."""

from torch import Tensor, nn

from monai_fedskew.errors import ConfigError

__all__ = ["ProjectionHead", "last_linear", "with_projection"]


class ProjectionHead(nn.Module):
    """Project features and classify the projection.

    ``z = project(relu(hidden(x)))``, logits ``classify(z)``: MOON's head (Li et al. 2021, arXiv 2103.16257, and
    the authors' code).

    Args:
        in_features: width of the features.
        dim: width of the projection z.
        out_features: number of logits.

    >>> import torch
    >>> head = ProjectionHead(4, 8, 2)
    >>> head(torch.zeros(3, 4)).shape, sorted(name for name, _ in head.named_children())
    (torch.Size([3, 2]), ['classify', 'hidden', 'project'])
    """

    def __init__(self, in_features: int, dim: int, out_features: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, in_features)
        self.project = nn.Linear(in_features, dim)
        self.classify = nn.Linear(dim, out_features)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (B, out_features) of features (B, in_features)."""
        logits: Tensor = self.classify(self.project(self.hidden(features).relu()))
        return logits


def last_linear(what: str, network: nn.Module) -> str:
    """Return the name of the linear layer that classifies: the last layer with weights, in order of registration.

    A linear layer that other weights follow is no classifier: a segmentation network may have some within, and an
    encoder may carry one that nothing calls.

    Args:
        what: opens the error.
        network: any.

    Raises:
        ConfigError: the last layer with weights is not linear.

    >>> last_linear("moon", nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    weighted = [(name, m) for name, m in network.named_modules() if any(True for _ in m.parameters(recurse=False))]
    name, layer = weighted[-1] if weighted else ("", network)
    if not name or not isinstance(layer, nn.Linear):
        found = f"{type(layer).__name__} {name!r}" if weighted else "none"
        raise ConfigError(
            f"{what} needs a classifier, a Linear as the network's last layer with weights; in {type(network).__name__}"
            f" that is {found}. Segmentation networks have no such layer: take another method for them"
        )
    return name


def with_projection(what: str, network: nn.Module, dim: int) -> nn.Module:
    """Put a `ProjectionHead` in the place of a network's classifier, in place; its keys keep the classifier's name.

    Args:
        what: opens the error.
        network: a classifier such as MONAI's ResNet, DenseNet, EfficientNet, SENet or our ConnectomeMLP.
        dim: width of the projection.

    Returns:
        The same network.

    Raises:
        ConfigError: the network has no linear classifier.

    >>> sorted(with_projection("moon", nn.Sequential(nn.Linear(4, 2, bias=False)), 8).state_dict())[:2]
    ['0.classify.bias', '0.classify.weight']
    """
    name = last_linear(what, network)
    old = network.get_submodule(name)
    assert isinstance(old, nn.Linear)  # by last_linear
    head = ProjectionHead(old.in_features, dim, old.out_features).to(old.weight)
    parent, _, leaf = name.rpartition(".")
    # setattr works for Sequential and ModuleList too, whose children are named by number
    setattr(network.get_submodule(parent), leaf, head)
    return network
