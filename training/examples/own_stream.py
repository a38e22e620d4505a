"""Samples from a stream, an IterableDataset: here random walks, to be classified by the sign of their end.

gpu-fleet train start training/examples/own_stream.toml
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset


class Walks(IterableDataset[tuple[Tensor, int]]):
    """Steps (length,) of a walk, and 1 if it ends above its start, else 0."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            steps = torch.randn(self.length)
            yield steps, int(steps.sum() > 0)


def walks(split: str, length: int) -> Walks | None:
    return Walks(length) if split == "train" else None  # no held-out data


def model(length: int) -> nn.Module:
    return nn.Sequential(nn.Linear(length, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
