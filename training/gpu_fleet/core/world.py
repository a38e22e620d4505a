"""The processes of a run: their groups and collectives."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore, Store

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError, TrainingError, counted

T = TypeVar("T")
NOBODY = cast("dist.ProcessGroup", None)  # the group of a world of one, which never uses it

# A fork leaves its parent's garbage alone: to collect a process group joins threads that only the parent has,
# which ended readers with a segmentation fault.
os.register_at_fork(after_in_child=gc.freeze)


@dataclass(frozen=True)
class World:
    """This process as a member of the run."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    control: dist.ProcessGroup  # gloo on the CPU, apart from the collectives of the model
    saving: dist.ProcessGroup  # gloo too, for checkpoints that are written during training

    @property
    def leads(self) -> bool:
        """True on rank 0, which writes the files that only one process may write."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on every rank. Values are pickled, so keep them small."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def gather_numbers(self, *numbers: float) -> list[list[float]]:
        """Return every rank's numbers, as many from each, in a fifth of the time of `gather`."""
        if self.size == 1:
            return [[float(number) for number in numbers]]
        mine = torch.tensor(numbers, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine, group=self.control)
        return [row.tolist() for row in rows]

    def gather_on_first(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on rank 0; an empty list on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, values, dst=0, group=self.control)
        return values or []

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on every rank; if it fails on one, all ranks raise that rank's TrainingError."""
        value: T | None = None
        failure: TrainingError | None = None
        try:
            value = action()
        except TrainingError as error:
            failure = error
        for rank, other_failure in enumerate(self.gather(failure)):
            if other_failure is not None:
                shared = copy(other_failure)  # with its attributes, such as for_good
                shared.args = (f"rank {rank}: {other_failure}" if rank else str(other_failure),)
                shared.shared = True
                raise shared
        return cast("T", value)

    def on_first(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0 and return its result on all; every rank raises its TrainingError."""
        return cast("T", self.gather(self.together(lambda: action() if self.leads else None))[0])

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of rank 0 to every rank: the batch-norm statistics to save and evaluate."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def average(self, tensors: Iterable[Tensor]) -> None:
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor.div_(self.size)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.control)


@contextmanager
def world(settings: config.Parallel) -> Iterator[World]:
    """Join the process group that torchrun describes in the environment.

    A process alone has a group only if the strategy needs one: gloo's threads take 1 % of a step of 9 ms.
    """
    size, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(local_rank)
    alone = "RANK" not in os.environ
    if alone and settings.strategy == "ddp":
        yield World(0, 1, 0, device, NOBODY, NOBODY)
        return
    timeout = timedelta(seconds=settings.timeout_s)
    by_itself: dict[str, Any] = {"store": HashStore(), "rank": 0, "world_size": 1} if alone else {}
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=timeout, **by_itself
    )
    try:
        control, saving = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
        yield World(dist.get_rank(), size, local_rank, device, control, saving)
    finally:
        dist.destroy_process_group()


def of_script(device: torch.device) -> World:
    """Return this process as a member of a script's process group, if any; all ranks call it."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if not dist.is_initialized():
        return World(0, 1, local_rank, device, NOBODY, NOBODY)
    control, saving = (dist.new_group(backend="gloo") for _ in range(2))
    return World(dist.get_rank(), dist.get_world_size(), local_rank, device, control, saving)


def store_of_world() -> Store:
    """Return the rendezvous store, by a connection that no call of the training keeps waiting."""
    store: Store = dist.distributed_c10d._get_default_store()
    if dist.get_world_size() > 1:
        store = store.clone()  # type: ignore[attr-defined]  # missing from torch's hints
    return store


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= (count := torch.cuda.device_count()):
        raise ParallelError(
            f"process {local_rank} of this instance has no GPU of its own among {count}; "
            f"start torchrun with --nproc-per-node {count}"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def check_sizes(settings: config.Config, size: int) -> int:
    """Return the number of ranks that read different samples; raises ParallelError naming sizes that fit."""
    run, parallel = settings.run, settings.parallel
    share = ranks_per_replica(parallel)
    if size % share:
        raise ParallelError(
            f"parallel.{parallel.strategy} = {share} does not divide {size} processes; "
            f"sizes that fit: {divisors(size)}"
        )
    readers = size // share
    if run.batch_size % (readers * run.accumulation):
        raise ParallelError(
            f"run.batch_size = {run.batch_size} does not divide into {counted(readers, 'rank')} x "
            f"run.accumulation = {run.accumulation}; multiples of {readers * run.accumulation} fit"
        )
    return readers


def ranks_per_replica(parallel: config.Parallel) -> int:
    return {"tensor": parallel.tensor, "pipeline": parallel.pipeline}.get(parallel.strategy, 1)


def divisors(number: int) -> str:
    return ", ".join(str(candidate) for candidate in range(1, number + 1) if number % candidate == 0)
