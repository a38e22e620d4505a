"""Your own data set (samples with several inputs), batches, model, loss and metrics.

gpu-fleet train start training/examples/own_regression.toml
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Houses(Dataset[dict[str, Any]]):  # the rooms of each, (any number, 2), and its price
    def __init__(self, split: str, size: int) -> None:
        generator = torch.Generator().manual_seed(len(split))
        self.rooms = [torch.rand(1 + n % 5, 2, generator=generator) for n in range(size)]

    def __len__(self) -> int:
        return len(self.rooms)

    def __getitem__(self, index: int) -> dict[str, Any]:
        rooms = self.rooms[index]
        return {"rooms": rooms + 0.01 * torch.randn_like(rooms), "price": rooms.prod(dim=1).sum()}


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    rooms = nn.utils.rnn.pad_sequence([sample["rooms"] for sample in samples], batch_first=True)
    return {"rooms": rooms, "price": torch.stack([sample["price"] for sample in samples])}


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 1))


def loss(model: nn.Module, batch: dict[str, Tensor], power: int) -> Tensor:
    return (model(batch["rooms"]).sum(dim=(1, 2)) - batch["price"]).abs().pow(power).mean()


def metrics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"mean absolute error": loss(model, batch, power=1)}
