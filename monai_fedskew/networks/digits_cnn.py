"""The convolutional network of the FedBN paper for digits."""

import torch
from torch import Tensor, nn

from monai_fedskew.errors import ConfigError

__all__ = ["DigitsCNN"]


class DigitsCNN(nn.Module):
    """Classify 28 x 28 images with three convolutions and three linear layers, BatchNorm after all but the last.

    ``(conv 5x5 - norm - ReLU - max pool) x 2 - conv 5x5 - norm - ReLU - (linear - norm - ReLU) x 2 - linear`` with 64,
    64 and 128 channels and 2048 and 512 hidden units: table 3 of FedBN (Li et al. 2021, arXiv 2102.07623). With three
    channels, ten classes and width 1 it has 14,219,210 parameters.

    Args:
        in_channels: channels of an image.
        n_classes: number of classes, at least 2.
        width: factor on all numbers of channels and hidden units, above 0; 1 is the paper's.

    Raises:
        ConfigError: a size is out of range.

    Example:
        >>> DigitsCNN(width=0.25)(torch.zeros(2, 3, 28, 28)).shape
        torch.Size([2, 10])
        >>> sum(parameter.numel() for parameter in DigitsCNN().parameters())
        14219210
    """

    def __init__(self, in_channels: int = 3, n_classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        if in_channels < 1 or n_classes < 2 or not width > 0:
            raise ConfigError(
                f"DigitsCNN: in_channels={in_channels}, n_classes={n_classes}, width={width}: at least 1 and 2, and a "
                "width above 0 are needed"
            )
        a, b, c, d, e = (max(1, round(width * full)) for full in (64, 64, 128, 2048, 512))
        self.layer1 = _stage(in_channels, a, is_pooled=True)
        self.layer2 = _stage(a, b, is_pooled=True)
        self.layer3 = _stage(b, c, is_pooled=False)
        self.fc1, self.norm1 = nn.Linear(c * 7 * 7, d), nn.BatchNorm1d(d)
        self.fc2, self.norm2 = nn.Linear(d, e), nn.BatchNorm1d(e)
        self.fc3 = nn.Linear(e, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (batch, n_classes) of ``images`` (batch, in_channels, 28, 28)."""
        maps = self.layer3(self.layer2(self.layer1(images)))
        hidden = self.norm1(self.fc1(torch.flatten(maps, 1))).relu()
        hidden = self.norm2(self.fc2(hidden)).relu()
        logits: Tensor = self.fc3(hidden)
        return logits


def _stage(channels_in: int, channels_out: int, *, is_pooled: bool) -> nn.Sequential:
    conv = nn.Conv2d(channels_in, channels_out, 5, padding=2)
    stage = nn.Sequential(conv, nn.BatchNorm2d(channels_out), nn.ReLU())
    return stage.append(nn.MaxPool2d(2)) if is_pooled else stage
