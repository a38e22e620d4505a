"""`start`: one process of a run; torchrun starts one for each device."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from gpu_fleet.core import config, outcome
from gpu_fleet.core.errors import TrainingError
from gpu_fleet.core.lazy_groups import configured, identity_options, imported
from gpu_fleet.preemption.interrupt import nothing_to_save


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train start digits.toml --run.epochs 1",
)
@click.argument("config_file", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@identity_options
def start(config_file: Path, overrides: tuple[str, ...], allow: tuple[str, ...], branch: str) -> None:
    """Train as CONFIG_FILE says, with any of its keys as --section.key VALUE. Resumes by itself.

    Exits with 0 when the run is complete, and with 85 when it was stopped and has saved: run it again. Under
    torchrun it exits with 0 in both cases, as torchrun restarts other statuses at once; result.json says
    which.
    """
    with shown_errors():
        with nothing_to_save():
            settings = configured(config_file, overrides, allow, branch)
            spare_advice(settings)
            run_rank = imported(
                "gpu_fleet.trainer.rank"
            ).run_rank  # torch takes seconds, not needed for --help
        with noted_failure(Path(settings.run.directory)):
            ended = run_rank(settings)
    if ended.outcome == "stopped":
        outcome.leave_stopped()


@contextmanager
def noted_failure(directory: Path) -> Iterator[None]:
    """Write a file about an error that a retry cannot help; raise the error of an earlier such file."""
    if before := outcome.failed_before(directory):
        raise before
    try:
        yield
    except TrainingError as error:
        outcome.leave_word(directory, error, int(os.environ.get("RANK", "0")))
        raise


@contextmanager
def shown_errors() -> Iterator[None]:
    """Start the log of a rank, show a TrainingError once for all ranks, and exit with its status."""
    rank = int(os.environ.get("RANK", "0"))
    start_logging(rank)
    try:
        yield
    except TrainingError as error:
        outcome.show(error, rank)
        sys.exit(outcome.status_of(error))


def spare_advice(settings: config.Config) -> None:
    """Silence torch's C++ warnings if DistributedDataParallel may search for unused parameters.

    Each rank would print advice without the trainer's keys, which rank 0 gives. torch has one level for all.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and config.may_leave_out(settings):
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def start_logging(rank: int) -> None:
    """Log one event a line on stderr; ranks other than 0 log only warnings and errors."""
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING,
        format=f"time=%(asctime)s level=%(levelname)s rank={rank} %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
    )
    for library in ("botocore", "boto3", "urllib3", "torch"):
        logging.getLogger(library).setLevel(logging.WARNING)
    # It warns of two collectives in place of one, for the norm and hash of tensors that are sharded both
    # ways.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
