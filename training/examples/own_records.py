"""WebDataset tars of any keys: here a picture, and JSON with the number to learn.

gpu-fleet train prepare index data/houses --keys jpg,json
gpu-fleet train start training/examples/own_records.toml
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss


def batch(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    return {
        "pictures": torch.stack([torch.from_numpy(sample["jpg"]) for sample in samples]),
        "prices": torch.tensor([float(sample["json"]["price"]) for sample in samples]),
    }


def model(width: int) -> nn.Module:
    layers = [nn.Conv2d(3, width, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(width, 1))


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return huber_loss(model(batch["pictures"] / 255).squeeze(1), batch["prices"])
