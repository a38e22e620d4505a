"""Task: a model together with its loss and metrics, for a user's own data, loss or metric."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_fleet.core.errors import ConfigError, UserCodeError, a_kind
from gpu_fleet.core.user_code import Own, explained
from gpu_fleet.data.loader import IGNORED, Batch
from gpu_fleet.step.checks import BufferCheck
from gpu_fleet.step.spread import mean_loss
from gpu_fleet.step.state import undisturbed

MEAN = math.nan  # in place of the count of a metric that is the mean over the samples
LossOfBatch = Callable[[nn.Module, Any], Tensor]


class Task(nn.Module):
    """Module from a batch to the loss (), or loss and metrics (2, 1 + n): mean and MEAN, or sum and count."""

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
        if self._metric is None:
            return []
        measured = self._metric(self.model, batch)
        if not isinstance(measured, Mapping):
            raise self._metric.wrong(f"gave {a_kind(measured)}")
        if self.metric_names and set(measured) != set(self.metric_names):
            names = f"{_listed(measured)}, and for another batch {_listed(self.metric_names)}"
            raise self._metric.wrong(f"gave {names}")
        self.metric_names = self.metric_names or tuple(measured)
        return [self._pair(name, measured[name]) for name in self.metric_names]

    def _pair(self, name: Any, value: Any) -> tuple[Any, Any]:
        """Return a sum and its count, or a mean and MEAN; raises UserCodeError for other values."""
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
                raise self._metric.wrong(f"gave {a_kind(number)} for {name!r}")
        return pair

    def _check(self, loss: object) -> None:
        problem = ""
        if not isinstance(loss, Tensor):
            problem = f"gave {a_kind(loss)}"
        elif loss.ndim:
            problem = f"gave a tensor of shape {list(loss.shape)}, not the mean ()"
        elif not loss.is_floating_point() and loss.requires_grad:
            problem = f"gave a {loss.dtype}, not a real number"
        elif torch.is_grad_enabled() and not loss.requires_grad:
            problem = "its value does not depend on any parameter of the model; is there a detach or an item?"
        if problem:
            raise self._own_loss.wrong(problem) if self._own_loss else UserCodeError(f"loss: {problem}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def given_loss(model: nn.Module, batch: Any) -> Tensor:
    """Return the loss if the user set none: the model's for named columns, else of (inputs, classes)."""
    if isinstance(batch, Mapping):
        output = model(**batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if loss is None:
            raise UserCodeError(
                f"loss.name: is needed: {type(model).__name__} gives no `loss` for {', '.join(batch)}"
            )
        return loss  # type: ignore[no-any-return]  # Task checks what it is
    if isinstance(batch, (tuple, list)) and len(batch) == 2:  # noqa: PLR2004 - a pair
        inputs, targets = batch
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            output = model(inputs)
            if isinstance(output, Tensor):
                return mean_loss(output, targets)
            raise UserCodeError(f"loss.name: is needed: {type(model).__name__} gives {a_kind(output)}")
    raise UserCodeError(
        "loss.name: is needed for batches that are neither (inputs, classes) nor named columns; these are "
        f"{a_kind(batch)}"
    )


def count_of(batch: Any, *, over: Own | str, shifted: bool) -> int | None:
    """Return the items over which a loss is the mean, without first labels if `shifted`; None: samples."""
    if isinstance(over, Own):
        given_count = over(batch)
        if isinstance(given_count, Tensor) and given_count.ndim == 0 and not given_count.is_floating_point():
            given_count = int(given_count)
        if not isinstance(given_count, int) or given_count < 0:
            given = given_count if isinstance(given_count, int) else a_kind(given_count)
            raise over.wrong(f"gave {given}")
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


def try_out(model: nn.Module, batch: Batch, what: str) -> None:
    """Test a pass before the first step, and restore all state; raises UserCodeError or ConfigError."""
    model.train()
    check = BufferCheck(model, what)
    with undisturbed(model), explained(what):
        outputs = model(batch.inputs)
        check.passed(trial=True)
        if not check.is_done:
            model(batch.inputs)
            check.passed(trial=True)
        if not isinstance(outputs, Tensor):
            raise ConfigError(f"{what}: gives {a_kind(outputs)}, not a Tensor; set loss.name")
        loss = mean_loss(outputs, batch.targets)
    if batch.counted and not torch.isfinite(loss):
        raise ConfigError(f"{what}: the loss of the first batch is {loss.item()}, before any step")
