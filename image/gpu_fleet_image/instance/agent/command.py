"""``gpu-fleet agent``: assemble clock, sensors and publisher, and run them."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil

from gpu_fleet_image.core import instance_file, keys, paths
from gpu_fleet_image.core.handshake import Exchange
from gpu_fleet_image.core.holds import KeepTarget
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.options import IsoTime
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.shared_options import FiniteRange
from gpu_fleet_image.instance.agent import activity_file, kept_files
from gpu_fleet_image.instance.agent import cloud as agent_cloud
from gpu_fleet_image.instance.agent.answers import SAVE_AGAIN_AFTER, Seen, seen
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.listening import NoticeListener, Senses, Target, answers, long_ago
from gpu_fleet_image.instance.agent.loop import Agent, Clock, stop_on_terminate
from gpu_fleet_image.instance.agent.notices import Notices
from gpu_fleet_image.instance.agent.publish import Publisher, passed, reporter
from gpu_fleet_image.instance.agent.requests import BUSY, Requests, line
from gpu_fleet_image.instance.agent.sensors.counters import OwnUse, TreeCounters
from gpu_fleet_image.instance.agent.sensors.poll import Sensors, watched_tree, whole_instance
from gpu_fleet_image.instance.agent.sensors.processes import trainers
from gpu_fleet_image.instance.agent.sensors.reading import Reading
from gpu_fleet_image.instance.agent.service_models import use_small_models
from gpu_fleet_image.instance.agent.stack_policy import StackPolicy
from gpu_fleet_image.instance.agent.user_socket import UserSocket
from gpu_fleet_image.instance.agent.users import Users

_LISTEN_EVERY_S = 5.0
_LISTEN_EVERY_FAST_S = 0.2  # on a rehearsal's clock
# No housekeeping runs in one process tree: CPU time or data beyond a timer's is its own activity.
_TREE_LIMITS = Limits(cpu_cores=0.02, disk_bytes_per_s=16 * 1024)

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentOptions:
    """Options of the command; see their help."""

    instance_id: str | None
    keep_folder: Path
    watch_pid: int | None
    duration: float | None
    clock_start: datetime | None
    clock_speed: float

    @property
    def is_rehearsal(self) -> bool:
        """True if the clock is not the wall clock."""
        return self.clock_start is not None or self.clock_speed != 1.0

    @property
    def is_play(self) -> bool:
        """True if another computer plays an instance: its terminals are not for the messages."""
        return self.is_rehearsal or self.watch_pid is not None

    @property
    def watch(self) -> str:
        """Subject of the agent, for users."""
        return f"process tree of {self.watch_pid}" if self.watch_pid else "the whole instance"


@click.command(name="agent", epilog="\b\nExample:\n  gpu-fleet agent --duration 3600")
@click.option("--instance-id", metavar="ID", help="The instance's id; by default from the metadata service.")
@click.option(
    "--keep-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=kept_files.KEEP_FOLDER,
    show_default=True,
    help="Folder that is saved before the instance is terminated.",
)
@click.option(
    "--watch-pid", type=click.IntRange(min=1), help="Look only at this process and its descendants."
)
@click.option("--duration", type=FiniteRange(min=1), help="End after this many seconds of the agent's clock.")
@click.option("--clock-start", type=IsoTime(), help="Rehearsal: start time of the clock.")
@click.option("--clock-speed", type=FiniteRange(min=1), default=1.0, help="Rehearsal: speed of the clock.")
def command(**options: Any) -> None:
    """Watch this instance: read sensors every 5 s, judge every minute, publish a heartbeat.

    Saves the keep folder before the scaling group or the spot market terminates the instance.
    """
    logging.getLogger("botocore").setLevel(logging.WARNING)
    # A missing decision is an answer, and is asked for every few seconds.
    logging.getLogger("gpu_fleet_image.core.calls").setLevel(logging.WARNING)
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    run(AgentOptions(**options))


def run(options: AgentOptions) -> None:
    """Assemble the agent and run it.

    Raises ReaperError if the instance file, an option, the metadata service or the cloud is not usable.
    """
    use_small_models()
    instance = _loaded_instance()
    metadata = reached(Metadata(instance.cloud), options.instance_id)
    instance_id = options.instance_id or _instance_id_of(metadata)
    LOG.info("event=start instance=%s pool=%s watch=%r", instance_id, instance.pool, options.watch)
    tree = TreeCounters(options.watch_pid) if options.watch_pid else None
    cloud = agent_cloud.connect(instance, metadata)
    publisher = Publisher(cloud.metrics(), instance.metric_namespace, batched=options.is_rehearsal)
    clock = Clock(options.clock_start, options.clock_speed)
    users = None
    notice_listener, own, policy = None, OwnUse(), policy_of(instance, cloud, clock.real_s)
    limits = (lambda: _TREE_LIMITS) if tree else policy.limits
    sensors = sensors_of(instance, metadata, tree, own, real_s=clock.real_s, policy=policy)
    if metadata:
        cloud.harden(metadata, instance_id)
        running = partial(trainers, tree.pids if tree else None)
        senses = Senses(running, own, fresh_poll(sensors.poll, clock, limits))
        users = Users(partial(cloud.name_users, instance_id), paths.users_file(), clock.real_s)
        target = Target(instance, instance_id)
        notice_listener = listener(cloud, metadata, target, senses=senses, clock=clock, options=options)
    notices = notice_listener.notices if notice_listener else None
    door = user_socket(cloud, Target(instance, instance_id), notices, policy)
    agent = Agent(
        clock,
        sensors,
        reporter(instance, instance_id, options.watch, publisher, users),
        activity_file.restore(paths.activity_file(), clock.start, instance_id),
        limits,
    )
    _watch_until_ended(agent, notice_listener, clock, options)
    door.close()
    publisher.flush()
    LOG.info("event=end")


def listener(
    cloud: agent_cloud.AgentCloud,
    metadata: Metadata,
    target: Target,
    *,
    senses: Senses,
    clock: Clock,
    options: AgentOptions,
) -> NoticeListener:
    """Return the agent's second thread for this instance. Raises ConfigurationError as of ``answers``."""
    shown_in = paths.run_dir() / "terminals" if options.is_play else None
    replies = answers(cloud, target, options.keep_folder, senses, shown_in)
    notices = cloud.notices(metadata, target.instance_id, clock.now)
    booted_at = long_ago if options.is_rehearsal else boot_time  # its clock does not know this boot
    return NoticeListener(notices, replies, clock.now, SAVE_AGAIN_AFTER * clock.speed, booted_at)


def user_socket(
    cloud: agent_cloud.AgentCloud, target: Target, notices: Notices | None, policy: StackPolicy
) -> UserSocket:
    """Return the socket for users, open. A failure to open it is logged only: sensors matter more."""

    def hold() -> KeepTarget:
        def records(mark: datetime) -> Exchange:
            return Exchange(cloud.store(), cloud.caller(target.instance_id), mark)

        return KeepTarget(target.instance_id, cloud.tagging(), records)

    requests = Requests(target, hold, notices, lambda: policy.rule)
    made = UserSocket(paths.agent_socket(), requests.answer, line(error=BUSY))
    try:
        made.open()
    except OSError as error:
        LOG.error("event=no-socket path=%s reason=%r", paths.agent_socket(), str(error))
    return made


def policy_of(
    instance: InstanceFile, cloud: agent_cloud.AgentCloud, real_s: Callable[[], float]
) -> StackPolicy:
    """Return the stack's policy for the pool's sensors, which is read again while the agent runs."""

    def read() -> dict[str, Any] | None:
        stored = cloud.store().newest(keys.POLICY)
        return stored.content if stored else None

    return StackPolicy(read, instance.pool, real_s)


def sensors_of(
    instance: InstanceFile,
    metadata: Metadata | None,
    tree: TreeCounters | None,
    own: OwnUse,
    *,
    real_s: Callable[[], float],
    policy: StackPolicy,
) -> Sensors:
    """Return the sensors: of one process tree, or of the whole instance."""
    if tree is not None:
        return watched_tree(tree, real_s)
    type_name = metadata.instance_type() if metadata else None
    return whole_instance(instance.expected_of(type_name).gpus, own, real_s, policy.asked, policy.limits)


def fresh_poll(
    poll: Callable[[datetime], Reading], clock: Clock, limits: Callable[[], Limits]
) -> Callable[[datetime], Seen]:
    """Return a function that reads all sensors when it is called, for a mark that was due."""

    def polled(mark: datetime) -> Seen:
        unfit = passed(paths.ready_file()) is False
        return seen(poll(clock.now()), mark, limits(), unfit=unfit)

    return polled


def boot_time() -> datetime:
    """Return when this instance booted, by the present wall clock."""
    return datetime.fromtimestamp(psutil.boot_time(), UTC)


def _watch_until_ended(
    agent: Agent, notice_listener: NoticeListener | None, clock: Clock, options: AgentOptions
) -> None:
    """Run the loop, and beside it the thread that listens for notices and marks."""
    stop_on_terminate()
    try:
        LOG.info("event=watching from=%s", clock.start.isoformat())
        if notice_listener is not None:
            notice_listener.start(_LISTEN_EVERY_FAST_S if options.is_rehearsal else _LISTEN_EVERY_S)
        agent.run(clock.start + timedelta(seconds=options.duration) if options.duration else None)
        if notice_listener is not None:
            notice_listener.close()
    except KeyboardInterrupt:
        LOG.info("event=stopped-by-signal")


def _loaded_instance() -> InstanceFile:
    """Load the instance file and make the run folder.

    Raises:
        ConfigurationError: the run folder cannot be made.
        InstanceFileError: as for ``instance_file.load``.
    """
    instance = instance_file.load(paths.instance_file())
    try:
        paths.run_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"GPU_FLEET_RUN_DIR={paths.run_dir()}: {error.strerror}") from error
    return instance


def reached(metadata: Metadata, instance_id: str | None) -> Metadata | None:
    """Return the metadata service, or None if it does not answer and the instance's id is given.

    Raises CloudError if it does not answer, and no option names the instance.
    """
    try:
        metadata.get("instance-id")
    except CloudError as error:
        if instance_id is None:
            raise
        LOG.warning("event=no-metadata effect='no drain, no answer to a mark' reason=%r", str(error))
        return None
    return metadata


def _instance_id_of(metadata: Metadata | None) -> str:
    """Return this instance's id; raises CloudError if the service does not know it."""
    instance_id = metadata.get("instance-id") if metadata else None
    if not instance_id:
        raise CloudError("the metadata service knows no instance-id; name it with --instance-id")
    return instance_id
