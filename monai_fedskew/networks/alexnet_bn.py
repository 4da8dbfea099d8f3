"""AlexNet with batch norm, the network of the FedBN and FedRDN papers for natural images."""

import torch
from torch import Tensor, nn
from torch.jit import is_scripting  # type: ignore[attr-defined]  # public, but not in its __all__

from monai_fedskew.errors import ConfigError

__all__ = ["AlexNetBN"]

_LEAST = 63  # pixels: five layers later one is left


class AlexNetBN(nn.Module):
    """Classify images with five convolutions and three linear layers, BatchNorm after all but the last.

    Convolutions of 11 (stride 4), 5, 3, 3 and 3 pixels with 64, 192, 384, 256 and 256 channels, max pooling (3, stride
    2) after the first, second and fifth, average pooling to 6 x 6, two hidden layers of 4096 units and no dropout:
    table 9 of FedBN (Li et al. 2021, arXiv 2102.07623), which takes images of 256 x 256. With three channels, ten
    classes and width 1 it has 57,063,498 parameters. The stages are ``layer1`` to ``layer5``, each with its pooling.

    Smaller images give fewer than 6 x 6 places before the average pooling (3 x 3 of 128 pixels), which then repeats
    them; the network and its parameters stay the same.

    Args:
        in_channels: channels of an image.
        n_classes: number of classes, at least 2.
        width: factor on all numbers of channels and hidden units, above 0; 1 is the paper's.

    Raises:
        ConfigError: a size is out of range.

    Example:
        >>> AlexNetBN(width=0.1).eval()(torch.zeros(1, 3, 256, 256)).shape
        torch.Size([1, 10])
        >>> with torch.device("meta"):
        ...     sum(parameter.numel() for parameter in AlexNetBN().parameters())
        57063498
    """

    def __init__(self, in_channels: int = 3, n_classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        if in_channels < 1 or n_classes < 2 or not width > 0:
            raise ConfigError(
                f"AlexNetBN: in_channels={in_channels}, n_classes={n_classes}, width={width}: at least 1 and 2, and a "
                "width above 0 are needed"
            )
        self.in_channels = in_channels
        a, b, c, d, e, units = (max(1, round(width * full)) for full in (64, 192, 384, 256, 256, 4096))
        self.layer1 = _stage(nn.Conv2d(in_channels, a, 11, stride=4, padding=2), is_pooled=True)
        self.layer2 = _stage(nn.Conv2d(a, b, 5, padding=2), is_pooled=True)
        self.layer3 = _stage(nn.Conv2d(b, c, 3, padding=1), is_pooled=False)
        self.layer4 = _stage(nn.Conv2d(c, d, 3, padding=1), is_pooled=False)
        self.layer5 = _stage(nn.Conv2d(d, e, 3, padding=1), is_pooled=True)
        self.pool = nn.AdaptiveAvgPool2d(6)
        self.fc1, self.norm1 = nn.Linear(e * 6 * 6, units), nn.BatchNorm1d(units)
        self.fc2, self.norm2 = nn.Linear(units, units), nn.BatchNorm1d(units)
        self.fc3 = nn.Linear(units, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (batch, n_classes) of ``images`` (batch, in_channels, height, width), 63 pixels or more.

        Raises:
            ConfigError: images of another number of channels or dimensions, or too small ones.
        """
        if not is_scripting():
            self._require_fitting(images)
        maps = self.layer5(self.layer4(self.layer3(self.layer2(self.layer1(images)))))
        hidden = self.norm1(self.fc1(torch.flatten(self.pool(maps), 1))).relu()
        hidden = self.norm2(self.fc2(hidden)).relu()
        logits: Tensor = self.fc3(hidden)
        return logits

    @torch.jit.unused
    def _require_fitting(self, images: Tensor) -> None:
        shape = tuple(images.shape[1:])
        if len(shape) != 3 or shape[0] != self.in_channels or min(shape[1:]) < _LEAST:
            raise ConfigError(
                f"AlexNetBN: images of shape {shape}; {self.in_channels} channels and at least {_LEAST} x {_LEAST} "
                "pixels are needed; prepare them larger (fedskew images prepare --size 128x128), or set in_channels"
            )


def _stage(conv: nn.Conv2d, *, is_pooled: bool) -> nn.Sequential:
    stage = nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU())
    return stage.append(nn.MaxPool2d(3, 2)) if is_pooled else stage
