"""Checkpoints of a sharded model: every rank writes its part (torch.distributed.checkpoint, DCP).

Parameters and optimizer state are saved under the parameter's name, so that another number of ranks can read
them. torch 2.13 reads the metadata and the values that are no tensors by pickle, which can run code. Here
neither can: who may write to a bucket must not run code on every instance that resumes from it.
"""

import io
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from gpu_fleet.core.containers import plain
from gpu_fleet.core.errors import CheckpointError, IdentityError, UnreadableError, reason_of
from gpu_fleet.step.optimization import keep_decided

BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)
METADATA = "torch.distributed.checkpoint.metadata"
DESCRIBING = {  # the names that torch writes into the metadata of a checkpoint
    "pathlib": ("PosixPath", "PurePosixPath"),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    METADATA: (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
}


class MetadataUnpickler(pickle.Unpickler):
    """Reader of metadata that knows only the classes that describe a checkpoint, and the types of numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if name in DESCRIBING.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no checkpoint")


class PartReader(FileSystemReader):
    """Reader of the parts of a checkpoint on this disk."""

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        file = Path(self.path) / ".metadata"
        try:
            metadata = MetadataUnpickler(io.BytesIO(file.read_bytes())).load()
            metadata.storage_meta = metadata.storage_meta or StorageMeta()
            metadata.storage_meta.load_id = self.load_id
        except (EOFError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            raise pickle.UnpicklingError(f"{file.name} is no metadata: {reason_of(error)}") from error
        return cast("Metadata", metadata)


class PartPlanner(DefaultLoadPlanner):
    """Planner of a load that reads values which are no tensors as torch.load(weights_only=True) does."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        loaded = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded


def begin_save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup
) -> Callable[[], None]:
    """Copy this rank's part and start to write it. The result waits for all ranks, or raises."""
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
    """Load this rank's part of any checkpoint, but what the configuration decides: `chosen`."""
    parts = _parts(model, optimizer)
    _read(parts, folder, group, "the parts of the checkpoint")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=parts["model"],
        optim_state_dict=parts["optimizer"],
        options=BY_NAME,
    )
    keep_decided(optimizer, chosen)


def load_weights(folder: Path, model: nn.Module, group: dist.ProcessGroup) -> None:
    parts = {"model": get_model_state_dict(model)}
    _read(parts, folder, group, "the weights")
    set_model_state_dict(model, parts["model"])


def _parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer, options=BY_NAME)
    return {"model": weights, "optimizer": plain(moments, "the optimizer")}


def _parts_to_save(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the parts, and leave the optimizer unchanged although torch makes it take a step.

    If there are no moments yet, torch takes a step without gradients. That creates the moments of AdamW. An
    optimizer that has none after it, such as SGD, may count steps in its groups, so these are restored.
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


def _read(parts: dict[str, Any], folder: Path, group: dist.ProcessGroup, what: str) -> None:
    """Fill `parts` from a checkpoint; raises IdentityError if `what` does not fit, or UnreadableError."""
    reader = PartReader(folder)
    try:
        reader.read_metadata()  # torch would report another error than the one that it raises
        state_dict_loader.load(parts, storage_reader=reader, planner=PartPlanner(), process_group=group)
    except (CheckpointException, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        _, first = _first_failure(error)
        if isinstance(first, pickle.UnpicklingError):
            raise UnreadableError(
                f"{folder}: what was saved cannot be read again: {_first_line(error)}"
            ) from error
        raise IdentityError(f"{what} do not fit the configuration: {_first_line(error)}") from error


def _first_failure(error: BaseException) -> tuple[str, BaseException]:
    """Return the rank that failed first, for messages, and its error."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, failure = next(iter(sorted(error.failures.items())))
        return f"rank {rank}: ", failure[0]
    return "", error


def _first_line(error: BaseException) -> str:
    rank, first = _first_failure(error)
    return rank + str(first).partition("\n")[0]
