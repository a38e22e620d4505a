"""Score of a model on held-out data: accuracy for classes, loss or bits per byte for text."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gpu_fleet.data.dataset import Description
from gpu_fleet.data.loader import IGNORED, Batch


@dataclass(frozen=True)
class HeldOutScore:
    name: str
    value: float | None  # None without held-out data
    loss: float  # nats per target


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy () in nats over the counted targets, or a loss () that outputs are."""
    return _cross_entropy(outputs, targets, "mean") if outputs.ndim else outputs


def _cross_entropy(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    flat = outputs.reshape(-1, outputs.shape[-1]).float()
    return functional.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction=reduction)


def tally(outputs: Tensor, batch: Batch, samples: int) -> Tensor:
    """Return summed loss, correct and counted targets of the first `samples`, (3,) float64, on the device."""
    outputs, targets = outputs[:samples], batch.targets[:samples]
    counts = targets != IGNORED
    correct = ((outputs.argmax(dim=-1) == targets) & counts).sum()
    summed = _cross_entropy(outputs, targets, "sum")
    return torch.stack([summed.double(), correct.double(), counts.sum().double()])


def score(loss: float, correct: float, targets: int, description: Description) -> HeldOutScore:
    """Return the metric that suits the data: accuracy for classes, bits per byte if known, else the loss."""
    mean = loss / max(1, targets)
    if description.classes:
        return HeldOutScore("accuracy", correct / max(1, targets), mean)
    if description.bytes_per_token:
        return HeldOutScore("bits per byte", mean / math.log(2) / description.bytes_per_token, mean)
    return HeldOutScore("loss", mean, mean)
