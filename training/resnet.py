"""Residual networks for pictures that arrive as bytes."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from training.models import Facts

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of RGB in [0, 1]; what published image weights expect
IMAGENET_STD = (0.229, 0.224, 0.225)


class Pixels(nn.Module):
    """(batch, 3, height, width) uint8 to float32 with the mean and deviation of ImageNet taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("deviation", torch.tensor(IMAGENET_STD).view(3, 1, 1) * 255, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        return (pictures - self.mean) / self.deviation


def with_pixels(network: nn.Module) -> nn.Module:
    """`network` behind the step from bytes to normalised numbers, which runs on the device."""
    return nn.Sequential(Pixels(), network)


class Block(nn.Module):
    """The basic residual block of He et al., 2015: two 3x3 convolutions beside a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        same = stride == 1 and width_in == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.first_norm(self.first(inputs)))
        hidden = self.second_norm(self.second(self.dropout(hidden)))
        return functional.relu(hidden + self.shortcut(inputs))


def resnet_small(
    facts: "Facts", widths: tuple[int, ...] = (16, 32, 64), blocks: int = 1, dropout: float = 0.0
) -> nn.Module:
    """A residual network for small pictures (8 to 64 pixels a side), as He et al. used on CIFAR-10."""
    layers: list[nn.Module] = [
        Pixels(),
        nn.Conv2d(3, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    width_in = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Block(width_in, width, 2 if stage > 0 and block == 0 else 1, dropout))
            width_in = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width_in, facts.classes)]
    return nn.Sequential(*layers)
