"""Optimization: the optimizer, the learning rate over time, the averaged model."""

import inspect
import math
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._pytree import tree_map, tree_structure

from gpu_fleet.core import config
from gpu_fleet.core.errors import a_kind
from gpu_fleet.core.user_code import Own

UNDECIDED: dict[str, Any] = {}  # what the configuration decides of a group that the optimizer has added
# Keys whose change, if it is allowed, changes the arguments of an optimizer's constructor.
DECIDES_SETTINGS = ("code.", "optimizer.name", "optimizer.options", "optimizer.betas", "optimizer.momentum")


def build_optimizer(
    model: nn.Module, settings: config.Optimizer, own: Own | None = None
) -> torch.optim.Optimizer:
    """Build the optimizer, without decay for tensors of at most one dimension; raises UserCodeError."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    groups = [{"params": some, "weight_decay": settings.weight_decay} for some in _alike(matrices)]
    groups += [{"params": some, "weight_decay": 0.0} for some in _alike(vectors)]
    if own is not None:
        built = own([group for group in groups if group["params"]], lr=settings.learning_rate)
        if not isinstance(built, torch.optim.Optimizer):
            raise own.wrong(f"gave {a_kind(built)}")
        own_ones = {id(parameter) for parameter in parameters}
        if not any(id(p) in own_ones for group in built.param_groups for p in group["params"]):
            raise own.wrong("gave an optimizer without any of the given parameters")
        return built
    if settings.name == "sgd":
        momentum = settings.momentum
        return torch.optim.SGD(groups, settings.learning_rate, momentum=momentum, nesterov=momentum > 0)
    real = all(p.is_floating_point() for p in parameters)  # a fused step cannot take complex numbers
    return torch.optim.AdamW(groups, settings.learning_rate, betas=settings.betas, fused=real)


def _alike(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return one list for each device mesh of the parameters: a fused step refuses to mix meshes."""
    meshes = {p: p.device_mesh if isinstance(p, DTensor) else None for p in parameters}
    return [[p for p in parameters if meshes[p] == mesh] for mesh in dict.fromkeys(meshes.values())] or [[]]


def decided(optimizer: torch.optim.Optimizer, allow: Iterable[str]) -> list[dict[str, Any]]:
    """Return the values of each group that the configuration decides: rate, decay, and what `allow` names."""
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
    """Restore the values that the configuration decides, after saved state was loaded."""
    for group, own in zip(optimizer.param_groups, chosen, strict=True):
        group.update(own)


def load_exactly(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a state in its own number formats; torch casts masters of 32 bits to those of the weights."""
    optimizer.load_state_dict(saved)
    numbers = chain.from_iterable(group["params"] for group in saved.get("param_groups", ()))
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for number, parameter in zip(numbers, parameters, strict=False):
        loaded = optimizer.state.get(parameter)
        before = saved.get("state", {}).get(number)
        if loaded and before and tree_structure(dict(loaded)) == tree_structure(dict(before)):
            optimizer.state[parameter] = tree_map(_as_saved, dict(loaded), dict(before))


def _as_saved(loaded: Any, saved: Any) -> Any:
    is_cast = isinstance(loaded, Tensor) and isinstance(saved, Tensor) and loaded.dtype != saved.dtype
    return saved.to(loaded.device, copy=True) if is_cast else loaded


def load_moments(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], chosen: list[dict[str, Any]]
) -> None:
    """Load the moments in the memory layout of the weights; raises ValueError for another optimizer."""
    for group, saved_group in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        if not group.keys() <= saved_group.keys():
            raise ValueError("it is of another optimizer than optimizer.name")
    load_exactly(optimizer, saved)
    keep_decided(optimizer, chosen)
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, Tensor) and group["params"]:  # torch moves only the moments to the device
                group[name] = value.to(group["params"][0].device)
    for weight, moments in optimizer.state.items():
        for name, value in moments.items():
            # a fused step reads both in memory order (CPU), or refuses different layouts (CUDA)
            if isinstance(value, Tensor) and value.shape == weight.shape:
                moments[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, chosen: list[dict[str, Any]], factor: float, base: float
) -> float:
    """Set the rate of the next step: that of each group, or `base`, times the factor. Return the latter."""
    for group, own in zip_longest(optimizer.param_groups, chosen, fillvalue=UNDECIDED):
        group["lr"] = float(own.get("lr", base)) * factor
    return base * factor


def learning_rate_factor(step: int, steps: int, settings: config.Schedule) -> float:
    """Return the rate of `step` (from 0) of `steps` as a fraction: a linear warm-up, then the shape."""
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
    if settings.name == "none":
        return None
    if settings.name == "ema":
        mean = get_ema_multi_avg_fn(settings.decay)  # type: ignore[no-untyped-call]  # torch has no hints here
        return AveragedModel(model, multi_avg_fn=mean, use_buffers=False)
    return AveragedModel(model)


def update_average(
    average: AveragedModel | None, model: nn.Module, settings: config.Average, step: int
) -> None:
    """Add the weights after `step` steps to the average; SWA waits for average.start_step."""
    if average is not None and (settings.name == "ema" or step >= settings.start_step):
        average.update_parameters(model)
