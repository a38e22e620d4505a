"""The models by name. Definitions come from transformers where it has them; nothing is downloaded."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.errors import ModelError, suggestion

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of RGB in [0, 1]; what published image weights expect
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Facts:
    """What a model has to know of the data."""

    classes: int = 0
    vocabulary: int = 0
    sequence_length: int = 0


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
    facts: Facts, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 1, dropout: float = 0.0
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


@dataclass(frozen=True)
class Entry:
    """One model of the registry."""

    data: tuple[str, ...]  # the kinds of data it takes
    build: Callable[..., nn.Module]  # (facts, **options)


REGISTRY = {
    "resnet_small": Entry(("images", "shards"), resnet_small),
}


def build(name: str, options: dict[str, Any], facts: Facts, data_kind: str, weights: str = "") -> nn.Module:
    """The model `name` with random weights, or those of a local folder; raises ModelError."""
    if name not in REGISTRY:
        raise ModelError(f"model.name = {name!r}: unknown{suggestion(name, REGISTRY)}")
    entry = REGISTRY[name]
    if data_kind not in entry.data:
        raise ModelError(f"model.name = {name!r}: takes {' or '.join(entry.data)}, the data is {data_kind}")
    known = [key for key in inspect.signature(entry.build).parameters if key != "facts"]
    for key in options:
        if key not in known:
            raise ModelError(f"model.options.{key}: unknown for {name}{suggestion(key, known)}")
    try:
        model = entry.build(facts, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"model.options = {options}: {name} cannot be built: {error}") from error
    if weights:
        load_weights(model, Path(weights))
    return model


def load_weights(model: nn.Module, folder: Path) -> None:
    """Fills the model from FOLDER/model.safetensors; raises ModelError naming what does not fit."""
    from safetensors.torch import load_file  # noqa: PLC0415 - only runs that start from weights need it

    file = folder / "model.safetensors"
    if not file.is_file():
        raise ModelError(f"model.weights = {str(folder)!r}: {file} is missing")
    try:
        model.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise ModelError(f"model.weights = {str(folder)!r}: does not fit the model: {error}") from error
