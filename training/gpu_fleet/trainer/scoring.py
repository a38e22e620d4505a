"""Score of a run on its held-out data: accuracy, loss or bits per byte, or a user's own metrics."""

import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_fleet.data.dataset import Description
from gpu_fleet.data.loader import IGNORED, Batch, CorruptionCounter, batches, evaluation_slices
from gpu_fleet.data.order import Slice
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.step.spread import cross_entropy
from gpu_fleet.step.state import State
from gpu_fleet.step.task import Task
from gpu_fleet.trainer.prepared_run import PreparedRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeldOutScore:
    name: str
    value: float | None  # None without held-out data
    loss: float  # nats per target


def scored(run: PreparedRun, state: State, stop: Stop) -> tuple[HeldOutScore | None, dict[str, float]]:
    """Compute the score, and a user's own metrics; no score if all ranks agreed to stop."""
    if run.held_out is None:
        return HeldOutScore("", None, math.nan), {}
    sums = _sums(run, state, stop)
    if sums is None:
        return None, {}
    if isinstance(task := run.evaluated(state).module, Task):
        return _of_metrics(sums, ("loss", *task.metric_names))
    loss, correct, targets = sums.tolist()
    return score(loss, correct, int(targets), run.description), {}


def _sums(run: PreparedRun, state: State, stop: Stop) -> Tensor | None:
    """Return the sums of a tally of all batches of all ranks; None if the ranks agreed to stop."""
    assert run.held_out is not None
    model = run.evaluated(state)
    parts = list(evaluation_slices(len(run.held_out), run.share))
    if run.is_task:
        parts = [(_cut(part, counted), counted) for part, counted in parts]
    reader = run.reader(run.held_out, state.model)
    read = batches(reader, (part for part, _ in parts), run.settings.data, pinned=False)
    counter = CorruptionCounter(run.settings.data.corrupt_limit)
    totals: Tensor | None = None
    was_training = model.module.training
    model.module.eval()
    try:
        with torch.no_grad():
            for batch, (_, counted) in zip(read, parts, strict=True):
                if stop.agreed():
                    return None
                counter.add(batch.corrupt)
                here = batch.to(run.where.device)
                outputs = model.predict(here.inputs)
                if outputs is not None:
                    tallied = (
                        _weighed(outputs, here, counted) if run.is_task else tally(outputs, here, counted)
                    )
                    totals = tallied if totals is None else totals + tallied
    finally:
        model.module.train(was_training)
    counter.check(run.where)
    of_ranks = run.where.gather(None if totals is None else totals.tolist())
    return torch.tensor([sums for sums in of_ranks if sums is not None], dtype=torch.float64).sum(0)


def _cut(part: Slice, counted: int) -> Slice:
    """Return a slice without samples that do not count; a whole batch of them keeps the ranks in step."""
    kept = counted or len(part.indices)
    return Slice(part.epochs[:kept], part.indices[:kept])


def _weighed(values: Tensor, batch: Batch, samples: int) -> Tensor:
    """Return sums and counts (2, 1 + n) of a Task's result for a batch, of which some samples count."""
    given, counts = values
    weights = torch.full_like(counts, samples)
    weights[0] = batch.counted if samples else 0
    by_mean = counts.isnan()
    sums = torch.where(by_mean, given * weights, given)
    counts = torch.where(by_mean, weights, counts)
    # a mean over nothing is NaN; samples that only fill a batch do not count
    return torch.stack([sums, counts]).where((weights > 0) & (counts != 0), 0.0)


def _of_metrics(totals: Tensor, names: tuple[str, ...]) -> tuple[HeldOutScore, dict[str, float]]:
    """Return the first metric, or the loss, as the score, and all means that are numbers."""
    sums, counts = totals
    means = dict(zip(names, (sums / counts).tolist(), strict=True))
    scores = {name: mean for name, mean in means.items() if counts[names.index(name)] > 0}
    if len(scores) < len(names):  # a mean over nothing is NaN, and no score
        log.warning("event=nothing-counted metrics=%r", sorted(means.keys() - scores.keys()))
    if endless := sorted(name for name, mean in scores.items() if not math.isfinite(mean)):
        log.warning("event=no-number metrics=%r", endless)  # JSON has no such numbers
        scores = {name: mean for name, mean in scores.items() if math.isfinite(mean)}
    name = names[1] if len(names) > 1 else "loss"
    return HeldOutScore(name, scores.get(name), scores.get("loss", math.nan)), scores


def tally(outputs: Tensor, batch: Batch, samples: int) -> Tensor:
    """Return summed loss, correct and counted targets of the first `samples`, (3,) float64, on the device."""
    outputs, targets = outputs[:samples], batch.targets[:samples]
    counts = targets != IGNORED
    correct = ((outputs.argmax(dim=-1) == targets) & counts).sum()
    summed = cross_entropy(outputs, targets, "sum")
    return torch.stack([summed.double(), correct.double(), counts.sum().double()])


def score(loss: float, correct: float, targets: int, description: Description) -> HeldOutScore:
    """Return the metric that suits the data: accuracy for classes, bits per byte if known, else the loss."""
    mean = loss / max(1, targets)
    if description.classes:
        return HeldOutScore("accuracy", correct / max(1, targets), mean)
    if description.bytes_per_token:
        return HeldOutScore("bits per byte", mean / math.log(2) / description.bytes_per_token, mean)
    return HeldOutScore("loss", mean, mean)
