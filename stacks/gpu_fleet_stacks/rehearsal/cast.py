"""The instances of the reaper's act, what their users do, and the agents that watch them."""

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_fleet_stacks.rehearsal import first_boot, processes
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.instances import LaunchedInstance
from gpu_fleet_stacks.rehearsal.metadata import MetadataService, metadata_service

if TYPE_CHECKING:
    from subprocess import Popen

META_DATA = "/latest/meta-data"
TAGS = f"{META_DATA}/tags/instance"
KEPT_FILE = "notes.txt"
# Real seconds that an agent takes for a phase of any length: its clock runs that much faster. A phase of few
# heartbeats needs less; the agent still has to see a process twice.
PHASE_S, SHORTEST_PHASE_S, SECONDS_A_HEARTBEAT = 4.0, 1.5, 0.3
LONGEST_PHASE_S = 120.0
ANSWERS_MAY_TAKE_S = 60

WORKS = (sys.executable, "-c", "while True: pass")
RESTS = ("sleep", "infinity")


@dataclass(frozen=True)
class Part:
    """The role of an instance in the act.

    Attributes:
        does: the process that its users left running.
        goes: whether the sweep has to terminate it.
        share: the part of the time before the mark in which its agent runs; 0 for an instance that is
            launched later.
        kept: whether its owner asked to keep it.
    """

    name: str
    does: Sequence[str]
    goes: bool = False
    share: float = 1.0
    kept: bool = False


PARTS = (
    Part("busy", WORKS),
    Part("idle", RESTS, goes=True),
    Part("silent", RESTS, share=0.5),
    Part("kept", RESTS, kept=True),
    Part("just started", RESTS, share=0.0),
)


@dataclass(frozen=True)
class Player:
    """An instance with its role.

    Attributes:
        folder: its ``/scratch/keep`` and logs.
        root: the folder of its first boot: files of the user data, agent and commands of the payload.
        watched: the process that its users left running.
    """

    part: Part
    instance: LaunchedInstance
    metadata: MetadataService
    folder: Path
    root: Path
    watched: "Popen[bytes]"

    def mirror_tags(self, clients: RegionClients) -> None:
        """Show the instance its current tags, as ``instance_metadata_tags`` does on EC2."""
        own = [{"Name": "resource-id", "Values": [self.instance.id]}]
        described = clients("ec2").describe_tags(Filters=own)["Tags"]
        tags = {f"{TAGS}/{tag['Key']}": tag["Value"] for tag in described}
        gone = {path for path in self.metadata.answers if path.startswith(f"{TAGS}/")} - tags.keys()
        for path in gone:
            del self.metadata.answers[path]
        self.metadata.answers |= tags

    def agent(self, begin: datetime, end: datetime) -> list[str]:
        """Return the agent's command, as its unit starts it, for a time span on a fast clock."""
        span_s = (end - begin).total_seconds()
        real_s = min(PHASE_S, max(SHORTEST_PHASE_S, span_s / 60 * SECONDS_A_HEARTBEAT))
        return [
            *first_boot.service(self.root, first_boot.AGENT),
            *("--watch-pid", str(self.watched.pid), "--keep-folder", str(self.folder / "keep")),
            *("--clock-start", begin.isoformat(), "--clock-speed", str(max(1.0, span_s / real_s))),
            *("--duration", str(span_s)),
        ]

    def listening(self, now: datetime) -> list[str]:
        """Return the agent's command, as its unit starts it, on a clock of normal speed."""
        return [
            *first_boot.service(self.root, first_boot.AGENT),
            *("--watch-pid", str(self.watched.pid), "--keep-folder", str(self.folder / "keep")),
            *("--clock-start", now.isoformat()),
        ]

    def environment(self) -> dict[str, str]:
        """Return the instance's own environment; the metadata service has the keys of its role."""
        return first_boot.own_environment(self.root, services(self.metadata))


def services(metadata: MetadataService) -> dict[str, str]:
    """Return the variables with the addresses of moto and of the instance's metadata service."""
    return {
        "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.endpoint,
    }


@contextmanager
def cast(
    clients: RegionClients, launched: Sequence[LaunchedInstance], user_data: Mapping[str, str], folder: Path
) -> Iterator[tuple[Player, ...]]:
    """Give each role to an instance that booted from its pool's user data; all end with the block.

    Args:
        launched: the stack's instances.
        user_data: pool -> the user data that cloud-init reads there.

    Raises:
        RehearsalError: there are fewer instances than roles.
        ChildError: a first boot fails.
    """
    if len(launched) < len(PARTS):
        raise RehearsalError(f"{len(PARTS)} instances are needed for the reaper's act, {len(launched)} run")
    with ExitStack() as stack:
        players = []
        for part, instance in zip(PARTS, launched, strict=False):
            home = folder / part.name.replace(" ", "-")
            (home / "keep").mkdir(parents=True)
            (home / "keep" / KEPT_FILE).write_text(f"notes of the users of {instance.id}\n")
            metadata = stack.enter_context(metadata_service())
            metadata.give_role(instance.pool)
            metadata.answers[f"{META_DATA}/instance-id"] = instance.id
            metadata.answers[f"{META_DATA}/instance-type"] = instance.type
            root = home / "root"
            first_boot.boot(user_data[instance.pool], root, services(metadata), home / "boot.log")
            watched = stack.enter_context(processes.child(part.does, home / "people.log"))
            os.setpriority(os.PRIO_PROCESS, watched.pid, 10)  # still busy, but after the agents
            players.append(Player(part, instance, metadata, home, root, watched))
            players[-1].mirror_tags(clients)
        yield tuple(players)


def live(players: Sequence[tuple[Player, datetime, datetime]]) -> None:
    """Run the agents of some players side by side, each over its span. Raises ChildError."""
    with ExitStack() as stack:
        running = []
        for player, begin, end in players:
            command = player.agent(begin, end)
            log = player.folder / f"agent-{begin:%H%M%S}.log"
            started = processes.child(command, log, player.environment(), inherit=False)
            running.append((stack.enter_context(started), command, log))
        for process, command, log in running:
            processes.finish(process, command, log, LONGEST_PHASE_S)


@contextmanager
def listening(players: Sequence[Player], now: datetime) -> Iterator[None]:
    """Run the agents of some players while the block runs, beginning at a moment."""
    with ExitStack() as stack:
        for player in players:
            log = player.folder / "agent-listening.log"
            command, environment = player.listening(now), player.environment()
            stack.enter_context(processes.child(command, log, environment, inherit=False))
        yield


def wait_for_answers(clients: RegionClients, ledger_uri: str, ids: Collection[str]) -> None:
    """Wait until the agents of some instances have reported, after this call, that nothing runs there.

    Args:
        ledger_uri: the ledger's URI in the function's environment.

    Raises RehearsalError if an agent has not reported.
    """
    since = datetime.now(UTC).replace(microsecond=0)
    bucket, _, prefix = ledger_uri.removeprefix("s3://").partition("/")
    silent = set(ids)
    for _ in range(ANSWERS_MAY_TAKE_S * 5):
        listed = clients("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/handshake/")
        fresh = [item["Key"] for item in listed.get("Contents", []) if item["LastModified"] >= since]
        silent -= {key.split("/")[-3].rpartition(":")[2] for key in fresh if key.endswith("/idle.json")}
        if not silent:
            return
        time.sleep(0.2)
    raise RehearsalError(f"no answer to the sweep's mark in {ANSWERS_MAY_TAKE_S} s: {', '.join(silent)}")


def keep(player: Player, span: str) -> None:
    """Keep an instance as its users do, by the agent, which has the right that they lack.

    Args:
        span: how long to keep it, such as ``8h``.

    Raises:
        ChildError: the command fails.
        RehearsalError: the agent does not start.
    """
    command = first_boot.people_command(player.root, "keep", span, "--reason", "results on Monday")
    door = player.root / "run/gpu-fleet/agent.sock"
    with listening([player], datetime.now(UTC)):
        for _ in range(ANSWERS_MAY_TAKE_S * 5):
            if door.is_socket():
                break
            time.sleep(0.2)
        else:
            raise RehearsalError(f"{door}: missing after {ANSWERS_MAY_TAKE_S} s: the agent takes no command")
        processes.run(command, player.folder / "keep.log", player.environment(), inherit=False)
