"""`train`: one process of a run; torchrun starts as many as there are devices."""

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import torch
import torch.distributed as dist

from gpu_fleet import config, outcome
from gpu_fleet.errors import (
    CheckpointError,
    ConfigError,
    FailedBeforeError,
    OutOfMemoryError,
    OwnCodeError,
    PeerError,
    TrainingError,
)
from gpu_fleet.lazy_groups import configured, identity_options
from gpu_fleet.loop import train as train_model
from gpu_fleet.metrics.profiling import parse_steps
from gpu_fleet.own_code import description, place_of
from gpu_fleet.parallel.world import world
from gpu_fleet.stopping.interrupt import Interruption, sources

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM = "can't allocate memory"  # what torch says on the CPU, where it raises a plain RuntimeError
INDEX_ON_GPU = "device-side assert triggered"
PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Gloo connectFullMesh failed",
)
log = logging.getLogger(__name__)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train train training/examples/digits.toml --run.epochs 1",
)
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--profile", metavar="A..B", default="", help="Write a trace of these steps; short for an override."
)
@identity_options
def train(
    config_file: Path, overrides: tuple[str, ...], profile: str, allow: tuple[str, ...], branch: str
) -> None:
    """Train as CONFIG_FILE says, with any of its keys as --section.key VALUE. Resumes by itself."""
    with shown_errors():
        chosen = ["--metrics.profile_steps", str(list(parse_steps(profile)))] if profile else []
        settings = configured(config_file, [*overrides, *chosen], allow, branch)
        with noted_failure(Path(settings.run.directory)):
            run_rank(settings)


@contextmanager
def noted_failure(directory: Path) -> Iterator[None]:
    """Leaves word of an error that no other try can heal; where there is such word, it is the error."""
    if before := outcome.failed_before(directory):
        raise FailedBeforeError(before)
    try:
        yield
    except TrainingError as error:
        rank = int(os.environ.get("RANK", "0"))
        if error.for_good and (rank == 0 or not error.shared):
            with suppress(OSError):  # the disk may be why it failed; the exit status says it too
                outcome.write_failure(directory, str(error), rank)
        raise


@contextmanager
def shown_errors() -> Iterator[None]:
    """Starts the log of a rank, shows a TrainingError once for all ranks, and exits with its status."""
    rank = int(os.environ.get("RANK", "0"))
    start_logging(rank)
    try:
        yield
    except TrainingError as error:
        if rank == 0 or not (error.shared or isinstance(error, ConfigError)):
            where = f"rank {rank}: " if rank else ""
            click.echo(f"error: {where}{error}", err=True)
        sys.exit(error.exit_status)


def run_rank(settings: config.Config) -> None:
    """Joins the others and trains; raises TrainingError."""
    try:
        with (
            Interruption(
                sources(rebalance=settings.interrupt.rebalance), settings.interrupt.poll_s
            ) as interruption,
            world(settings.parallel) as where,
        ):
            train_model(settings, where, interruption)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        place = error.filename or settings.run.directory
        raise CheckpointError(
            f"{place}: {error.strerror}; free some space, or another run.directory"
        ) from error
    except TrainingError:
        raise
    except Exception as error:  # torch raises nothing finer for most, users' code whatever it likes
        raise explained(error, settings) from error


def explained(error: Exception, settings: config.Config) -> Exception:
    """What a user can do about an error of torch or of their own code; the error itself where none knows."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or NO_ROOM in text:
        return no_room(error, settings)
    if isinstance(error, dist.DistError) or any(sign in text for sign in PEER_GONE):
        lost = PeerError(f"lost touch with another rank, whose own message says why: {text.splitlines()[0]}")
        lost.shared = True  # whichever rank failed speaks for itself; of the others rank 0
        return lost
    if INDEX_ON_GPU in text:
        return OwnCodeError(
            "an index on the GPU is beyond its table: a token id of the vocabulary, or a class of the model; "
            f" CUDA_LAUNCH_BLOCKING=1 shows where: {text.splitlines()[0]}"
        )
    if place_of(error):
        return OwnCodeError(description(error))
    return error


def no_room(error: Exception, settings: config.Config) -> OutOfMemoryError:
    """The message of a device that is full, with what to do about it."""
    run, chosen = settings.run, settings.precision
    return OutOfMemoryError(
        f"the device has no room for a step: {str(error).splitlines()[0]}\n"
        f"  smaller micro-batches, same result: --run.accumulation {run.accumulation * 2}\n"
        f"  half the activations: --precision.dtype bf16 (now {chosen.dtype}), and "
        f"--precision.activation_checkpointing true (now {str(chosen.activation_checkpointing).lower()})\n"
        f"  weights and optimizer over all ranks: --parallel.strategy fsdp (now {settings.parallel.strategy})"
    )


def start_logging(rank: int) -> None:
    """One event a line on stderr; ranks other than 0 speak only when something is wrong."""
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"time=%(asctime)s level=%(levelname)s rank={rank} %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )
    for library in ("botocore", "boto3", "urllib3", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # two collectives in place of one, for the norm and the hash of tensors that are cut both ways
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
