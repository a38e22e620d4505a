"""Score of a model on held-out data: accuracy for classes, loss or bits per byte for text."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpu_fleet.core import config
from gpu_fleet.core.world import World
from gpu_fleet.data.dataset import Description
from gpu_fleet.data.loader import (
    IGNORED,
    CorruptionCounter,
    RankShare,
    ReadsBatches,
    batches,
    evaluation_slices,
)


@dataclass(frozen=True)
class HeldOutScore:
    """Result of one evaluation."""

    name: str
    value: float | None  # None without held-out data
    loss: float  # nats per target
    targets: int  # number of counted targets


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy () in nats over the counted targets.

    Outputs are (..., classes), targets (...) int64. The result is NaN if no target counts. Outputs () are the
    loss itself, from a model that computes its own.
    """
    return _cross_entropy(outputs, targets, "mean") if outputs.ndim else outputs


def _cross_entropy(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    flat = outputs.reshape(-1, outputs.shape[-1]).float()
    return functional.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction=reduction)


@dataclass(frozen=True)
class Evaluated:
    """Model to evaluate: the module to switch to evaluation, and the function that predicts."""

    module: nn.Module
    predict: Callable[[Tensor], Tensor | None]  # None on a rank that does not hold the end of the model


def evaluate(
    model: Evaluated,
    *,
    reader: ReadsBatches,
    size: int,
    description: Description,
    settings: config.Config,
    share: RankShare,
    where: World,
    interrupted: Callable[[], bool],
) -> HeldOutScore | None:
    """Compute the score over all `size` samples, with all ranks; None if `interrupted` returned True.

    `interrupted` is called once per batch and returns the same on every rank. Raises DataError if a rank has
    too many corrupt samples.
    """
    corrupt: set[str] = set()  # a set: samples at the end may be read twice
    totals = torch.zeros(3, dtype=torch.float64, device=where.device)  # loss, correct, targets
    # Batches past the end wrap around to keep the ranks in step; only the first `counted` samples count.
    parts = list(evaluation_slices(size, share))
    read = batches(reader, (part for part, _ in parts), settings.data, pinned=False)
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.no_grad():
            for batch, (_, counted) in zip(read, parts, strict=True):
                if interrupted():
                    return None
                corrupt.update(batch.corrupt)
                here = batch.to(where.device)
                outputs = model.predict(here.inputs)
                if outputs is not None:
                    totals += _tally(outputs[:counted], here.targets[:counted])
    finally:
        model.module.train(was_training)
    counter = CorruptionCounter(settings.data.corrupt_limit)
    counter.add(tuple(sorted(corrupt)))
    where.together(counter.check)
    loss, correct, targets = (sum(column) for column in zip(*where.gather(totals.tolist()), strict=True))
    return score(loss, correct, int(targets), description)


def _tally(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return summed loss and numbers of correct and of counted targets, (3,) float64, on the device."""
    counts = targets != IGNORED
    correct = ((outputs.argmax(dim=-1) == targets) & counts).sum()
    summed = _cross_entropy(outputs, targets, "sum")
    return torch.stack([summed.double(), correct.double(), counts.sum().double()])


def score(loss: float, correct: float, targets: int, description: Description) -> HeldOutScore:
    """Return the metric that suits the data: accuracy for classes, bits per byte if known, else the loss."""
    mean = loss / max(1, targets)
    if description.classes:
        return HeldOutScore("accuracy", correct / max(1, targets), mean, targets)
    if description.bytes_per_token:
        return HeldOutScore("bits per byte", mean / math.log(2) / description.bytes_per_token, mean, targets)
    return HeldOutScore("loss", mean, mean, targets)
