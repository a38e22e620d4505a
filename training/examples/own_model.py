"""Your own model on a prepared data set: any class or function that returns a torch.nn.Module.

gpu-fleet train prepare digits data/digits
gpu-fleet train start training/examples/own_model.toml
"""

import torch
from torch import Tensor, nn


class Perceptron(nn.Module):
    """Pictures (batch, 3, 8, 8) uint8 to logits (batch, 10)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8 * 8, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 10)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        grey = pictures[:, 0].flatten(1).to(torch.float32) / 255
        logits: Tensor = self.layers(grey)
        return logits
