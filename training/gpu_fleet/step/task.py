"""Task: a model together with its loss and metrics, for a user's own data, loss or metric."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, UserCodeError
from gpu_fleet.core.user_code import EXPECTED, Own, explained
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import IGNORED, Batch, RankShare, ReadsBatches, batches, evaluation_slices
from gpu_fleet.data.order import Slice
from gpu_fleet.step.buffers import BufferCheck
from gpu_fleet.step.evaluation import Evaluated, HeldOutScore, mean_loss
from gpu_fleet.step.state import undisturbed

MEAN = math.nan  # in place of the count of a metric that is the mean over the samples
LossOfBatch = Callable[[nn.Module, Any], Tensor]
log = logging.getLogger(__name__)


class Task(nn.Module):
    """Module from a whole batch to the loss () in training, else to loss and metrics with their counts.

    The latter are (2, 1 + n): a mean and MEAN, or a sum and the number of its items.
    """

    def __init__(self, model: nn.Module, loss: Own | None, metric: Own | None) -> None:
        super().__init__()
        self.model = model
        self._loss: LossOfBatch = loss or given_loss
        self._own_loss, self._metric = loss, metric
        self.metric_names: tuple[str, ...] = ()

    def forward(self, batch: Any) -> Tensor:
        loss = self._loss(self.model, batch)
        self._check(loss)
        if self.training:
            return loss
        pairs = [(loss, MEAN), *self._measured(batch)]
        numbers = [torch.as_tensor(number).detach() for pair in pairs for number in pair]
        return torch.stack([number.to(loss.device, torch.float64) for number in numbers]).reshape(-1, 2).T

    def _measured(self, batch: Any) -> list[tuple[Any, Any]]:
        """Return a pair for each metric."""
        if self._metric is None:
            return []
        measured = self._metric(self.model, batch)
        if not isinstance(measured, Mapping):
            raise self._metric.wrong(f"gave a {type(measured).__name__}")
        if self.metric_names and set(measured) != set(self.metric_names):
            names = f"{_listed(measured)}, and for another batch {_listed(self.metric_names)}"
            raise self._metric.wrong(f"gave {names}")
        self.metric_names = self.metric_names or tuple(measured)
        return [self._pair(name, measured[name]) for name in self.metric_names]

    def _pair(self, name: Any, value: Any) -> tuple[Any, Any]:
        """Return a sum and its count, or a mean and MEAN; raises ConfigError for other values."""
        assert self._metric is not None
        if not isinstance(name, str) or name == "loss":
            raise self._metric.wrong(
                f"gave {name!r} as a name; allowed: text except 'loss', which is always reported"
            )
        pair = value if isinstance(value, tuple) else (value, MEAN)
        if len(pair) != 2:  # noqa: PLR2004 - a pair
            raise self._metric.wrong(f"gave {len(pair)} values for {name!r}")
        for number in pair:
            if isinstance(number, Tensor | np.ndarray) and number.ndim:
                raise self._metric.wrong(f"gave a tensor of shape {list(number.shape)} for {name!r}")
            if not isinstance(number, Tensor | np.ndarray | np.generic | int | float):
                raise self._metric.wrong(f"gave a {type(number).__name__} for {name!r}")
        return pair

    def _check(self, loss: object) -> None:
        problem = ""
        if not isinstance(loss, Tensor):
            problem = f"gave a {type(loss).__name__}"
        elif loss.ndim:
            problem = f"gave a tensor of shape {list(loss.shape)}, not the mean ()"
        elif not loss.is_floating_point() and loss.requires_grad:
            problem = f"gave a {loss.dtype}, not a real number"
        elif torch.is_grad_enabled() and not loss.requires_grad:
            problem = "its value does not depend on any parameter of the model; is there a detach or an item?"
        if problem:
            raise self._own_loss.wrong(problem) if self._own_loss else ConfigError(f"loss: {problem}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def given_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a batch if the user has set none.

    A model gets named columns as arguments, and returns its `loss`, like the models of transformers. The
    first item of a pair goes to the model, and the second holds the classes. Raises ConfigError for other
    batches.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None:
            raise ConfigError(
                f"loss.name: is needed: {type(model).__name__} gives no `loss` for {', '.join(batch)}"
            )
        return loss  # type: ignore[no-any-return]  # Task checks what it is
    if isinstance(batch, (tuple, list)) and len(batch) == 2:  # noqa: PLR2004 - a pair
        inputs, targets = batch
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            output = model(inputs)
            if isinstance(output, Tensor):
                return mean_loss(output, targets)
            raise ConfigError(f"loss.name: is needed: {type(model).__name__} gives a {type(output).__name__}")
    raise ConfigError(
        "loss.name: is needed for batches that are neither (inputs, classes) nor named columns; these are "
        f"a {type(batch).__name__}"
    )


def count_of(batch: Any, *, over: Own | str, shifted: bool) -> int | None:
    """Return the number of items over which a batch's loss is the mean, by loss.mean_over; None: its samples.

    `shifted` says that the first label of each row counts in no loss. Raises UserCodeError.
    """
    if isinstance(over, Own):
        given_count = over(batch)
        if isinstance(given_count, Tensor) and given_count.ndim == 0 and not given_count.is_floating_point():
            given_count = int(given_count)
        if not isinstance(given_count, int) or given_count < 0:
            given = given_count if isinstance(given_count, int) else f"a {type(given_count).__name__}"
            raise UserCodeError(f"{over.key} = {over.name!r}: gave {given}; expected: {EXPECTED[over.key]}")
        return given_count
    targets = given_targets(batch, shifted=shifted) if over == "targets" else None
    return None if targets is None else int((targets != IGNORED).sum())


def given_targets(batch: Any, *, shifted: bool) -> Tensor | None:
    """Return the labels of named columns, or the classes of a pair; None if there are none."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
        if not isinstance(labels, Tensor) or labels.is_floating_point():
            return None
        return labels[..., 1:] if shifted and labels.ndim > 1 else labels
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], Tensor):  # noqa: PLR2004 - a pair
        return None if batch[1].is_floating_point() else batch[1]
    return None


def try_held_out(model: nn.Module, batch: Batch, what: str) -> None:
    """Test loss and metrics on held-out samples before the first step, not only at the end of a long run.

    Raises UserCodeError or ConfigError.
    """
    model.eval()
    with undisturbed(model), explained(what), torch.no_grad():
        model(batch.inputs)


def try_out(model: nn.Module, batch: Batch, what: str) -> None:
    """Test one forward pass before the first step, to report a misfit at once; restores all state.

    Raises UserCodeError or ConfigError.
    """
    model.train()
    check = BufferCheck(model, what)
    with undisturbed(model), explained(what):
        outputs = model(batch.inputs)
        check.passed()
        if not check.is_done:
            model(batch.inputs)
            check.passed()
        if not isinstance(outputs, Tensor):
            raise ConfigError(f"{what}: gives a {type(outputs).__name__}, not a Tensor; set loss.name")
        loss = mean_loss(outputs, batch.targets)
    if batch.counted and not torch.isfinite(loss):
        raise ConfigError(f"{what}: the loss of the first batch is {loss.item()}, before any step")


def evaluate_task(
    model: Evaluated,
    *,
    reader: ReadsBatches,
    size: int,
    settings: config.Config,
    share: RankShare,
    where: World,
    interrupted: Callable[[], bool],
) -> tuple[HeldOutScore, dict[str, float]] | None:
    """Compute score and metrics over `size` held-out samples; None if `interrupted` returned True.

    All ranks call it.
    """
    was_training = model.module.training
    model.module.eval()
    totals: Tensor | None = None
    try:
        with torch.no_grad():
            slices = list(evaluation_slices(size, share))
            read = batches(reader, _cut(slices), settings.data, pinned=False)
            for batch, (_, counted) in zip(read, slices, strict=True):
                if interrupted():
                    return None
                values = model.predict(batch.to(where.device).inputs)
                assert values is not None
                weighed = _weighed(values, batch.counted if counted else 0, counted)
                totals = weighed if totals is None else totals + weighed
    finally:
        model.module.train(was_training)
    assert totals is not None
    sums, counts = torch.tensor(where.gather(totals.tolist()), dtype=torch.float64).sum(0)
    names = ("loss", *cast("Task", model.module).metric_names)
    means = dict(zip(names, (sums / counts).tolist(), strict=True))
    scores = {name: mean for name, mean in means.items() if counts[names.index(name)] > 0}
    if len(scores) < len(names):  # a mean over nothing is NaN, and no score
        log.warning("event=nothing-counted metrics=%r", sorted(means.keys() - scores.keys()))
    if endless := sorted(name for name, mean in scores.items() if not math.isfinite(mean)):
        log.warning("event=no-number metrics=%r", endless)  # JSON has no such numbers
        scores = {name: mean for name, mean in scores.items() if math.isfinite(mean)}
    name = names[1] if len(names) > 1 else "loss"
    return HeldOutScore(name, scores.get(name), scores.get("loss", math.nan), int(counts[0])), scores


def _weighed(values: Tensor, targets: int, samples: int) -> Tensor:
    """Return sums and counts (2, 1 + n) of a Task's result for a batch with these targets and samples."""
    given, counts = values
    weights = torch.full_like(counts, samples)
    weights[0] = targets
    by_mean = counts.isnan()
    sums = torch.where(by_mean, given * weights, given)
    counts = torch.where(by_mean, weights, counts)
    # a mean over nothing is NaN; samples that only fill a batch do not count
    return torch.stack([sums, counts]).where((weights > 0) & (counts != 0), 0.0)


def _cut(slices: list[tuple[Slice, int]]) -> Iterator[Slice]:
    """Yield the slices without samples that do not count; a whole batch of them keeps the ranks in step."""
    for part, counted in slices:
        kept = counted or len(part.indices)
        yield Slice(part.epochs[:kept], part.indices[:kept])
