"""The ResNet-56 of FedAlign's CIFAR experiments, and a site of random images that trains it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from ignite.metrics import Accuracy
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from monai_fedskew.core.part import Part, adapt_network
from monai_fedskew.sites.site import Site

__all__ = ["CifarResNet", "RandomImages"]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with four times the channels; can be taken apart, as `stochdepth` asks for."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, leaving, 1, bias=False), nn.BatchNorm2d(leaving)
        self.act = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or entering != leaving:
            self.downsample = nn.Sequential(
                nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The whole block."""
        shortcut = self.shortcut(x)
        return self.join(self.branch(shortcut, x) + shortcut)

    def shortcut(self, x: Tensor) -> Tensor:
        """Identity or projection."""
        return x if self.downsample is None else self.downsample(x)

    def branch(self, shortcut: Tensor, x: Tensor) -> Tensor:
        """The convolutions."""
        x = self.act(self.bn1(self.conv1(x)))
        x = self.act(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))

    def join(self, total: Tensor) -> Tensor:
        """After the sum."""
        return self.act(total)


class CifarResNet(nn.Module):
    """Three stages of bottlenecks behind a stem of 16 channels; 6 each make ResNet-56."""

    def __init__(self, blocks: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.act = nn.ReLU(inplace=True)
        self.layer1 = self._stage(16, 16, blocks, 1)
        self.layer2 = self._stage(64, 32, blocks, 2)
        self.layer3 = self._stage(128, 64, blocks, 2)
        self.fc = nn.Linear(256, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes) of images (B, 3, 32, 32)."""
        x = self.act(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))

    @staticmethod
    def _stage(entering: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = Bottleneck(entering, width, stride)
        return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


@dataclass(frozen=True)
class RandomImages:
    """A site of random images of 100 classes; SGD with momentum 0.9, Nesterov and weight decay, as the paper trains.

    Args:
        images: how many.
        batch: how many a step.
        blocks: of each stage.
        device: where to train.
    """

    images: int = 128
    batch: int = 64
    blocks: int = 6
    device: str = "cpu"

    def open(self, parts: Sequence[Part] = (), *, seed: int = 0, split: str = "train", output: Any = None) -> Site:
        """Build trainer and evaluator around one network."""
        torch.manual_seed(seed)
        network = adapt_network(CifarResNet(self.blocks), parts, seed).to(self.device)
        data = TensorDataset(torch.randn(self.images, 3, 32, 32), torch.randint(100, (self.images,)))
        rows = [{"image": image, "label": label} for image, label in data]
        loader = DataLoader(rows, self.batch, shuffle=True)
        device = torch.device(self.device)
        trainer = SupervisedTrainer(
            device=device,
            max_epochs=1,
            train_data_loader=loader,
            network=network,
            optimizer=torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
            loss_function=nn.CrossEntropyLoss(),
            decollate=False,
        )
        metric = Accuracy(output_transform=lambda output: (output["pred"], output["label"]))
        evaluator = SupervisedEvaluator(
            device=device, val_data_loader=loader, network=network, key_val_metric={"accuracy": metric}, decollate=False
        )
        return Site("CIFAR", trainer, evaluator)
