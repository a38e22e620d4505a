"""From gradients to weights: the optimizer, the learning rate over time, the averaged model."""

import inspect
import math
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gpu_fleet import config
from gpu_fleet.own_code import Own

# Keys whose change, where it is allowed, changes what an optimizer is constructed with.
DECIDES_SETTINGS = ("code.", "optimizer.name", "optimizer.options", "optimizer.betas", "optimizer.momentum")


def build_optimizer(
    model: nn.Module, settings: config.Optimizer, own: Own | None = None
) -> torch.optim.Optimizer:
    """The optimizer; weight decay spares biases and norms (tensors of one dimension or none).

    An own one gets the same groups and the learning rate. Raises OwnCodeError or ConfigError.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups = [{"params": some, "weight_decay": settings.weight_decay} for some in _alike(matrices)]
    groups += [{"params": some, "weight_decay": 0.0} for some in _alike(vectors)]
    if own is not None:
        built = own([group for group in groups if group["params"]], lr=settings.learning_rate)
        if not isinstance(built, torch.optim.Optimizer):
            raise own.wrong(f"gave a {type(built).__name__}")
        own_ones = {id(parameter) for parameter in parameters}
        if not any(id(p) in own_ones for group in built.param_groups for p in group["params"]):
            raise own.wrong("gave an optimizer of none of the parameters that it was called with")
        return built
    if settings.name == "sgd":
        momentum = settings.momentum
        return torch.optim.SGD(groups, settings.learning_rate, momentum=momentum, nesterov=momentum > 0)
    real = all(p.is_floating_point() for p in parameters)  # a fused step knows no complex numbers
    return torch.optim.AdamW(groups, settings.learning_rate, betas=settings.betas, fused=real)


def _alike(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """One list for each mesh of ranks that they are spread over, as a fused step refuses to mix them."""
    meshes = {p: p.device_mesh if isinstance(p, DTensor) else None for p in parameters}
    return [[p for p in parameters if meshes[p] == mesh] for mesh in dict.fromkeys(meshes.values())] or [[]]


def decided(optimizer: torch.optim.Optimizer, allow: Iterable[str]) -> list[dict[str, Any]]:
    """What the configuration decides of each group, as the optimizer was built; the rest is state.

    Of a run whose code and options are as before, state may have any name: rate and decay alone are decided.
    """
    names = {"lr", "weight_decay"}
    if any(key.startswith(DECIDES_SETTINGS) for key in allow):
        for kind in type(optimizer).__mro__:
            if inspect.isfunction(constructor := vars(kind).get("__init__")):
                names |= set(inspect.signature(constructor).parameters)
    return [
        {name: group[name] for name in group.keys() & names if name != "params"}
        for group in optimizer.param_groups
    ]


def keep_decided(optimizer: torch.optim.Optimizer, chosen: list[dict[str, Any]]) -> None:
    """Puts back what the configuration decides, after saved state was loaded."""
    for group, own in zip(optimizer.param_groups, chosen, strict=True):
        group.update(own)


def load_moments(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], chosen: list[dict[str, Any]]
) -> None:
    """Takes over the moments of a saved state, laid out in memory as the weights are.

    A group may have got more keys by its first step. Raises ValueError for the state of another optimizer.
    """
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        if not group.keys() <= saved_group.keys():
            raise ValueError("it is of another optimizer than optimizer.name")
    optimizer.load_state_dict(saved)
    keep_decided(optimizer, chosen)
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, Tensor) and group["params"]:  # torch moves the moments alone to the device
                group[name] = value.to(group["params"][0].device)
    for weight, moments in optimizer.state.items():
        for name, value in moments.items():
            # a fused step goes through the memory of both side by side (CPU), or refuses to (CUDA)
            if isinstance(value, Tensor) and value.shape == weight.shape:
                moments[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, chosen: list[dict[str, Any]], factor: float, base: float
) -> float:
    """Sets the rate of the next step; a pure function of the step needs no saved state.

    Each group has that which it was built with, times the factor; one that has none, the base. Returns base
    times factor.
    """
    for group, own in zip_longest(optimizer.param_groups, chosen, fillvalue=dict[str, Any]()):
        group["lr"] = float(own.get("lr", base)) * factor
    return base * factor


def learning_rate_factor(step: int, steps: int, settings: config.Schedule) -> float:
    """The rate of step `step` (from 0) of `steps`, as a fraction of optimizer.learning_rate.

    Linear warm-up, then the shape of schedule.name down to schedule.final_fraction after the last step.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.name == "step":
        return float(settings.step_factor ** ((step - settings.warmup_steps) // settings.step_every))
    if settings.name == "constant":
        return 1.0
    progress = min(1.0, (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps))
    falling = 1 - progress if settings.name == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return settings.final_fraction + (1 - settings.final_fraction) * falling


def build_average(model: nn.Module, settings: config.Average) -> AveragedModel | None:
    """The averaged copy of the model; None when averaging is off."""
    if settings.name == "none":
        return None
    if settings.name == "ema":
        mean = get_ema_multi_avg_fn(settings.decay)  # type: ignore[no-untyped-call]  # torch has no hints here
        return AveragedModel(model, multi_avg_fn=mean, use_buffers=False)
    return AveragedModel(model)


def update_average(
    average: AveragedModel | None, model: nn.Module, settings: config.Average, step: int
) -> None:
    """Takes the weights after `step` steps into the average; SWA waits for average.start_step."""
    if average is not None and (settings.name == "ema" or step >= settings.start_step):
        average.update_parameters(model)
