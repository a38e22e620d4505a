"""`measure`: an instance's part of what `gpu-fleet poc` submits; `bench`: one configuration beside a loop."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from gpu_fleet.core import config, exit_codes
from gpu_fleet.core.lazy_groups import FiniteRange, imported
from gpu_fleet.trainer.train import shown_errors
from gpu_fleet_jobs.launch.identity import read_identity
from gpu_fleet_jobs.launch.launch import FRESH_STORE, Forwarded, processes_of, this_instance, variables_of
from gpu_fleet_jobs.launch.rendezvous import Rendezvous, assignment, join

MIB = 1 << 20
IN_NODE = (1, 2, 4, 8)  # GPUs of one instance, as far as it has them
LONGEST_S = 1800.0  # of one torchrun: a collective that hangs must not go on costing money
BY_SCHEDULER = "PET_"  # torchrun would read these variables, which are of the whole run


@dataclass(frozen=True)
class MeasuringPart:
    """One torchrun.

    Attributes:
        meeting: where several instances meet; None for this instance alone.
        processes: on this instance.
        storage: measure storage as well.
    """

    meeting: Rendezvous | None
    processes: int
    storage: bool

    def command(self, own: Sequence[str]) -> list[str]:
        """Return the argument list; `own` are options of each rank."""
        words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.processes}"]
        words += ["--standalone"] if self.meeting is None else [*self.meeting.options, "--rdzv-id=measure"]
        nodes = 1 if self.meeting is None else self.meeting.nodes
        left_out = [] if self.storage else ["--no-storage"]
        return [*words, "-m", "gpu_fleet", "measure", f"--as-rank={nodes}", *left_out, *own]


@click.command(hidden=True, epilog="\b\nExample:\n  gpu-fleet train measure --in-node")
@click.option("--in-node", is_flag=True, help="Measure 1, 2, 4 and 8 GPUs of one instance as well.")
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1),
    default=15.0,
    show_default=True,
    help="Time of each measurement of storage.",
)
@click.option(
    "--size-mib", type=click.IntRange(min=16), default=1024, show_default=True, help="Size of its files."
)
@click.option("--as-rank", type=click.IntRange(min=1), hidden=True, help="One rank of this many instances.")
@click.option("--no-storage", is_flag=True, hidden=True, help="Leave storage out; set for a rank.")
def measure(*, in_node: bool, seconds: float, size_mib: int, as_rank: int | None, no_storage: bool) -> None:
    """Measure storage, all-reduce and training on the instances of a submitted run; `poc` starts it.

    Prints a line for each figure. Exits with 0 if every part ran to its end, else with 65: a retry would
    cost the same again.
    """
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    if as_rank is not None:
        from gpu_fleet_jobs.measure.rank import measure_rank  # noqa: PLC0415 - torch takes seconds

        measure_rank(as_rank, 0.0 if no_storage else seconds, size_mib * MIB)
        return
    own = [f"--seconds={seconds:g}", f"--size-mib={size_mib}"]
    failed, variables = 0, _without_scheduler(os.environ)
    forwarded = Forwarded()
    for part, more in _parts(in_node=in_node):
        failed += run_part(part.command(own), {**variables, **more}, forwarded) != exit_codes.FINISHED
        if forwarded.any:
            sys.exit(exit_codes.STOPPED)
    if failed:
        sys.exit(exit_codes.FAILED_FOR_GOOD)


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train bench digits.toml --turns 2",
)
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--turns", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Per turn.")
def bench(*, config_file: Path, overrides: tuple[str, ...], turns: int, steps: int) -> None:
    """Measure the run of CONFIG against a bare loop of the same model; torchrun starts it on all ranks."""
    with shown_errors():
        settings = config.load(config_file, overrides)
        imported("gpu_fleet_jobs.measure.bench").measure(settings, turns, steps)


def _without_scheduler(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of torchrun; each rank has one thread, however many there are."""
    kept = {name: value for name, value in given.items() if not name.startswith(BY_SCHEDULER)}
    return {"OMP_NUM_THREADS": "1", **kept, **FRESH_STORE}


def _parts(*, in_node: bool) -> Iterator[tuple[MeasuringPart, dict[str, str]]]:
    """Yield each torchrun of this instance, with variables for it: first of one instance, then of all.

    The other instances wait while the first one measures alone.
    """
    mine = assignment(os.environ)
    identity = read_identity()
    instance = this_instance(identity)
    processes = (mine and mine.processes) or processes_of(identity, instance)
    several = mine is not None and mine.nodes > 1
    if in_node and (mine is None or mine.rank == 0):
        for count in sizes(processes):
            whole = count == processes and not several
            yield MeasuringPart(None, count, storage=whole), variables_of(identity, instance, None)
    if mine is not None and several:
        meeting = join(mine)
        yield MeasuringPart(meeting, processes, storage=True), variables_of(identity, instance, meeting)
    elif not in_node:
        yield MeasuringPart(None, processes, storage=True), variables_of(identity, instance, None)


def sizes(processes: int) -> list[int]:
    """Return the numbers of GPUs to measure on an instance: powers of two, and all."""
    return sorted({*(count for count in IN_NODE if count <= processes), processes})


def run_part(
    command: Sequence[str],
    variables: Mapping[str, str],
    forwarded: Forwarded,
    longest_s: float = LONGEST_S,
    kill: Callable[[int, int], None] = os.killpg,
) -> int:
    """Run one torchrun with signals forwarded to it; end it after `longest_s`. Return its status."""
    process = subprocess.Popen(command, env=dict(variables), start_new_session=True)
    forwarded.to(process)
    try:
        return process.wait(longest_s)
    except subprocess.TimeoutExpired:
        logging.getLogger(__name__).error("event=part-too-long seconds=%.0f", longest_s)
        kill(process.pid, signal.SIGKILL)
        return process.wait()
