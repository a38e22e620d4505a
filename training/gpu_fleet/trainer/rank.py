"""One rank of a run: it joins the others and trains, and turns errors into advice for users."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist

from gpu_fleet.core import config
from gpu_fleet.core.errors import (
    CheckpointError,
    OutOfMemoryError,
    ParallelError,
    PeerError,
    TrainingError,
    UserCodeError,
)
from gpu_fleet.core.files import DISK_FULL
from gpu_fleet.core.outcome import Outcome
from gpu_fleet.core.user_code import INDEX_ON_GPU, PEER_GONE, is_of_peer_or_device, of_exit, place_of, raised
from gpu_fleet.core.world import ranks_per_replica, world
from gpu_fleet.data.loader import reader_ended
from gpu_fleet.preemption.interrupt import Interruption, sources
from gpu_fleet.preemption.tries import Tries
from gpu_fleet.trainer.loop import train as train_model

GRAPH_GONE = "Trying to backward through the graph a second time"
NO_ROOM = "can't allocate memory"  # torch's words on the CPU, in a plain RuntimeError
# DistributedDataParallel's words if a step uses other parameters than it expects.
MARKED_TWICE, GRAPH_CHANGED = "mark a variable ready only once", ("static_graph", "have finished reduction")


def run_rank(settings: config.Config) -> Outcome:
    """Join the other ranks and train; raises TrainingError."""
    tries = Tries(Path(settings.run.directory), settings.checkpoint.tries)
    watched = sources(rebalance=settings.interrupt.rebalance)
    try:
        with (
            Interruption(watched, settings.interrupt.poll_s) as interruption,
            world(settings.parallel) as where,
            first_of_ranks(),
        ):
            return train_model(settings, where, interruption, tries)
    except (Exception, SystemExit) as error:  # torch raises no narrower class, users' code raises any
        known = explained(error, settings)
        if isinstance(known, TrainingError) and known.for_good:
            tries.end()
        if known is error:
            raise
        raise known from error


@contextmanager
def first_of_ranks() -> Iterator[None]:
    """Let only the first rank report an error of the graph; several ranks may raise it in one step."""
    try:
        yield
    except RuntimeError as error:
        if not is_of_graph(error) or not dist.is_initialized():
            raise
        explanation = other_graph(twice=MARKED_TWICE in str(error))
        with suppress(RuntimeError):  # the store may be gone with its process
            store = dist.distributed_c10d._get_default_store()
            explanation.silent = store.add("gpu-fleet/other-graph", 1) > 1
        raise explanation from error


def is_of_graph(error: Exception) -> bool:
    """Return whether DistributedDataParallel complains about the parameters that a step uses."""
    return any(sign in str(error) for sign in (MARKED_TWICE, *GRAPH_CHANGED))


def explained(error: Exception | SystemExit, settings: config.Config) -> BaseException:
    """Return an error with advice for an error of torch or of user code; the error itself if unknown."""
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, SystemExit):
        return of_exit(error) if place_of(error) else error
    text = str(error)
    known = of_resources(error, settings)
    if known is not None:
        return known
    if isinstance(error, dist.DistError) or any(sign in text for sign in PEER_GONE):
        lost = PeerError(f"lost another rank, whose own message has the reason: {text.splitlines()[0]}")
        lost.shared = True  # the failed rank reports its own error, rank 0 for the others
        return lost
    if is_of_graph(error):
        return other_graph(twice=MARKED_TWICE in text)
    return of_user_code(error) or error


def of_resources(error: Exception, settings: config.Config) -> TrainingError | None:
    """Return the error about a full device, memory or disk, or a killed reader; None for any other error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or NO_ROOM in text:
        return no_room(error, settings)
    if (ended := reader_ended(error)) is not None:
        return ended
    if place_of(error):
        return None
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        place = error.filename or settings.run.directory
        return CheckpointError(f"{place}: {error.strerror}; free some space, or another run.directory")
    if isinstance(error, MemoryError):
        return OutOfMemoryError(
            f"the memory of the instance is full: {text or 'without a message'}; lower data.workers or "
            "run.batch_size"
        )
    return None


def of_user_code(error: Exception) -> UserCodeError | None:
    """Return the error about a user's code, if the error shows its place or cause; else None."""
    text = str(error)
    if INDEX_ON_GPU in text:
        return UserCodeError(
            "an index on the GPU is beyond its table: a token id of the vocabulary, or a class of the model; "
            f" CUDA_LAUNCH_BLOCKING=1 shows where: {text.splitlines()[0]}"
        )
    if GRAPH_GONE in text:
        return UserCodeError(
            "a loss depends on the graph of an earlier step, which is freed; detach tensors that your code "
            "keeps from one step to the next"
        )
    return raised(error) if place_of(error) and not is_of_peer_or_device(error) else None


def other_graph(*, twice: bool) -> ParallelError:
    """Return the error about a step with other parameters than DistributedDataParallel expects."""
    if twice:
        return ParallelError(
            "parallel.static_graph = false: a step computes with some parameters twice, as checkpoint with "
            "use_reentrant=True does; set parallel.static_graph = true, or use_reentrant=False"
        )
    return ParallelError(
        "parallel.static_graph = true: a step uses other parameters of the model than the first one; set "
        "parallel.static_graph = false"
    )


def no_room(error: Exception, settings: config.Config) -> OutOfMemoryError:
    """Return the error about a full device, with settings that may change between checkpoint and resume."""
    chosen, parallel = settings.precision, settings.parallel
    advice = []
    if finer := finer_accumulation(settings):
        advice.append(
            f"smaller micro-batches, the same batch: --run.accumulation {finer} --allow run.accumulation"
        )
    if chosen.dtype in ("fp32", "tf32"):
        advice.append("half the activations: --precision.dtype bf16 --allow precision.dtype")
    if not chosen.activation_checkpointing:
        advice.append("activations computed twice: --precision.activation_checkpointing true")
    if parallel.strategy == "ddp":
        advice.append(
            "weights and optimizer over all ranks: --parallel.strategy fsdp, in another run.directory where "
            "this one has checkpoints"
        )
    text = str(error).splitlines()[0]
    return OutOfMemoryError("\n  ".join([f"the device has no room for a step: {text}", *advice]))


def finer_accumulation(settings: config.Config) -> int | None:
    """Return the next larger run.accumulation that divides the batch of a rank; None if there is none."""
    run = settings.run
    readers = int(os.environ.get("WORLD_SIZE", "1")) // ranks_per_replica(settings.parallel)
    finer = range(run.accumulation + 1, run.batch_size // readers + 1)
    return next((number for number in finer if run.batch_size % (readers * number) == 0), None)
