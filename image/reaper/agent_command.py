"""``gpu-reaper agent``: puts clock, sensors and publisher together and runs them."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import click
import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from image.reaper import activity_file, instance_file, paths
from image.reaper.agent import Agent, stop_on_terminate
from image.reaper.clock import Clock
from image.reaper.errors import CloudError, ConfigurationError
from image.reaper.gpu import GpuSensor
from image.reaper.instance_file import Machine
from image.reaper.judge import Judgement, Limits
from image.reaper.metadata import Metadata
from image.reaper.publish import Publisher, cloudwatch, heartbeat
from image.reaper.sensors.look import Look
from image.reaper.sensors.machine import MachineCounters, RateSensor
from image.reaper.sensors.process_table import ProcessTable
from image.reaper.sensors.process_tree import TreeCounters
from image.reaper.times import parse_time

# No housekeeping runs in one process tree: any CPU time or data beyond a timer's is its work.
TREE_LIMITS = Limits(cpu_cores=0.02, disk_bytes_per_s=16 * 1024)

LOG = logging.getLogger(__name__)


def checked_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> datetime | None:
    """Check ``--clock-start``."""
    try:
        return parse_time(value) if value is not None else None
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; allowed: ISO 8601 with a zone, 2026-11-21T08:00:00+00:00 say"
        ) from error


@click.command(name="agent")
@click.option("--instance-id", metavar="ID", help="This machine's id; by default the metadata service tells.")
@click.option(
    "--watch-pid", type=click.IntRange(min=1), help="Look only at this process and its descendants."
)
@click.option(
    "--duration", type=click.FloatRange(min=1), help="End after so many seconds of the agent's clock."
)
@click.option(
    "--clock-start", callback=checked_time, metavar="ISO", help="Rehearsal: what the clock shows first."
)
@click.option("--clock-speed", type=click.FloatRange(min=1), default=1.0, help="Rehearsal: how fast it runs.")
def command(
    instance_id: str | None,
    watch_pid: int | None,
    duration: float | None,
    clock_start: datetime | None,
    clock_speed: float,
) -> None:
    """Watch this machine: look every 5 s, judge every minute, publish a heartbeat."""
    logging.getLogger("botocore").setLevel(logging.WARNING)
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    machine = instance_file.load(paths.instance_file())
    metadata = Metadata(machine.cloud)
    instance_id = instance_id or metadata.get("instance-id")
    if not instance_id:
        raise CloudError("the metadata service knows no instance-id; name it with --instance-id")
    folder = prepared_run_dir()
    watch = f"process tree of {watch_pid}" if watch_pid else "the whole machine"
    LOG.info(
        "event=start instance=%s stack=%s pool=%s watch=%r", instance_id, machine.stack, machine.pool, watch
    )
    if machine.cloud != "aws":
        raise ConfigurationError(f"cloud = {machine.cloud!r}: heartbeats go to CloudWatch alone so far")
    publisher = Publisher(
        cloudwatch(machine.region),
        machine.metric_namespace,
        batched=clock_start is not None or clock_speed != 1.0,
    )
    type_name = None if watch_pid else instance_type(metadata)
    clock = Clock(clock_start, clock_speed)
    until = clock.start + timedelta(seconds=duration) if duration else None
    agent = Agent(
        clock,
        watched_tree(watch_pid, clock) if watch_pid else whole_machine(machine, type_name, clock),
        reporter(machine, instance_id, watch, publisher),
        activity_file.restore(folder / "activity.json", clock.start, instance_id),
        TREE_LIMITS if watch_pid else Limits(),
    )
    stop_on_terminate()
    try:
        agent.run(until)
    except KeyboardInterrupt:
        LOG.info("event=stopped-by-signal")
    publisher.flush()
    LOG.info("event=end")


def prepared_run_dir() -> Path:
    """The run folder, made when it is missing.

    Raises:
        ConfigurationError: when it cannot be made.
    """
    folder = paths.run_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"GPU_FLEET_RUN_DIR={folder}: {error.strerror}") from error
    return folder


def instance_type(metadata: Metadata) -> str | None:
    """This machine's type, or None where the metadata service is silent: then less is expected of it."""
    try:
        return metadata.get("instance-type")
    except CloudError as error:
        LOG.warning("event=instance-type-unknown reason=%r", str(error))
        return None


def whole_machine(machine: Machine, type_name: str | None, clock: Clock) -> Look:
    """Sensors for everything on this machine."""
    gpus = GpuSensor(pynvml, machine.gpus_expected(type_name), clock.real_s)
    people = ProcessTable(lambda: gpus.pids, clock.real_s)
    return Look(RateSensor(MachineCounters(), clock.real_s), gpus, people)


def watched_tree(pid: int, clock: Clock) -> Look:
    """Sensors for one process tree: its CPU time and data, and the GPUs it is on where there are any."""
    tree = TreeCounters(pid)
    return Look(RateSensor(tree, clock.real_s), GpuSensor(pynvml, 0, clock.real_s, tree.pids), None)


def reporter(
    machine: Machine, instance_id: str, watch: str, publisher: Publisher
) -> Callable[[Judgement], None]:
    """What happens with each judgement: the file for people, the heartbeat for the sweep."""

    def report(judgement: Judgement) -> None:
        activity_file.write(paths.activity_file(), judgement, instance_id, watch)
        publisher.add(heartbeat(judgement, instance_id, machine.pool), judgement.at)

    return report
