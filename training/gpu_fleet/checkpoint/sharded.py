"""Checkpoints of a sharded model: every rank writes its part (torch.distributed.checkpoint, DCP).

Parameters and optimizer state are saved under the parameter's name, so that another number of ranks can read
them.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from gpu_fleet.core.errors import CheckpointError, IdentityError
from gpu_fleet.step.optimization import keep_decided

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


def begin_save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> Callable[[], None]:
    """Copy this rank's part and start to write it into `folder`; call the result to wait for all ranks.

    The result raises CheckpointError if a part could not be written.
    """
    future: Any = state_dict_saver.async_save(
        _parts_to_save(model, optimizer), checkpoint_id=folder, process_group=group
    )

    def written() -> None:
        try:
            future.result()
        except (CheckpointException, RuntimeError, OSError) as error:  # CheckpointException is no Exception
            raise CheckpointError(f"{folder}: cannot be written: {_first_line(error)}") from error

    return written


def load(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    chosen: list[dict[str, Any]],
    group: dist.ProcessGroup,
) -> None:
    """Load this rank's part from a checkpoint of any number of ranks; raises IdentityError.

    `chosen` holds the values of the optimizer's groups that the configuration decides.
    """
    parts = _parts(model, optimizer)
    try:
        state_dict_loader.load(parts, checkpoint_id=folder, process_group=group)
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise IdentityError(f"the checkpoint does not fit the configuration: {_first_line(error)}") from error
    set_state_dict(
        model,
        optimizer,
        model_state_dict=parts["model"],
        optim_state_dict=parts["optimizer"],
        options=BY_NAME,
    )
    keep_decided(optimizer, chosen)


def load_weights(folder: Path, model: nn.Module, group: dist.ProcessGroup) -> None:
    """Load this rank's part of the weights alone; raises IdentityError."""
    parts = {"model": get_model_state_dict(model)}
    try:
        state_dict_loader.load(parts, checkpoint_id=folder, process_group=group)
    except (CheckpointException, RuntimeError, ValueError) as error:
        raise IdentityError(f"the weights do not fit the configuration: {_first_line(error)}") from error
    set_model_state_dict(model, parts["model"])


def _parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=BY_NAME)
    return {"model": weights, "optimizer": moments}


def _parts_to_save(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the parts, and leave the optimizer unchanged although torch makes it take a step.

    If there are no moments yet, torch takes a step without gradients before it reads them. That step creates
    the moments of AdamW. An optimizer that has none after it, such as SGD, may count steps in its groups, so
    its groups are restored.
    """
    if optimizer.state:
        return _parts(model, optimizer)
    before = [
        {name: deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    parts = _parts(model, optimizer)
    if optimizer.state:
        return parts
    keep_decided(optimizer, before)
    weight = next(parameter for group in optimizer.param_groups for parameter in group["params"])
    weight.grad = torch.zeros_like(weight)  # torch takes no step if there is a gradient
    parts = _parts(model, optimizer)
    weight.grad = None
    return parts


def _first_line(error: BaseException) -> str:
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = next(iter(sorted(error.failures.items())))
        return f"rank {rank}: {failure[0]}"
    return str(error).partition("\n")[0]
