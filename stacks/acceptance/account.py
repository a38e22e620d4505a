"""What an acceptance run asks of a cloud, whichever it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from stacks.naming import PROJECT

TAG_STACK, TAG_POOL = f"{PROJECT}:stack", f"{PROJECT}:pool"
TAG_KEEP_UNTIL, TAG_KEEP_REASON = f"{PROJECT}:keep-until", f"{PROJECT}:keep-reason"
TAG_REAP_AFTER = f"{PROJECT}:reap-after"
ENDED = frozenset({"shutting-down", "terminated"})
# What an agent publishes every minute, see image/reaper/metrics.py
HEARTBEAT_METRIC = "SecondsSinceActivity"


@dataclass(frozen=True)
class TestedInstance:
    """One instance of the stack.

    Attributes:
        pool: the value of its tag ``gpu-fleet:pool``.
        state: ``pending``, ``running``, ``stopping``, ``stopped``, ``shutting-down`` or ``terminated``.
    """

    id: str
    pool: str
    type: str
    state: str
    spot: bool
    launched_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it is gone, or on its way out."""
        return self.state in ENDED


@dataclass(frozen=True)
class CommandOutput:
    """What a command on an instance came to.

    Attributes:
        output: of standard output, up to what the cloud keeps (24,000 characters on AWS).
    """

    code: int
    output: str
    error: str = ""


@dataclass(frozen=True)
class Left:
    """Something of the stack that still exists.

    Attributes:
        kind: what it is: ``instance``, ``volume``, ``nat gateway``, ``public address``, ``bucket``...
        id: the cloud's id or ARN.
        state: as the cloud calls it; empty where it names none.
        priced_as: the catalog's or price list's name of what an hour of it costs; empty where it is not
            paid by the hour.
    """

    kind: str
    id: str
    state: str = ""
    priced_as: str = ""
    units: Decimal = Decimal(1)
    note: str = ""


@dataclass(frozen=True)
class Call:
    """One call of a cloud's API, as evidence.

    Attributes:
        at: when it was made, aware UTC.
        name: service and operation, ``ec2.describe_instances``.
        request_id: the cloud's own; empty where it did not answer.
        error: its error code; empty where it agreed.
    """

    at: datetime
    name: str
    request_id: str
    error: str
    doc: str


@dataclass(frozen=True)
class Kept:
    """A setting of a scaling group, as it was asked for and as the cloud has it.

    Attributes:
        setting: in the cloud's word.
    """

    group: str
    setting: str
    asked: object
    actual: object


class Account(Protocol):
    """A cloud account, seen through one stack; every method raises ``CallRefusedError``.

    Attributes:
        calls: every call made so far, in order.
        interrupts_spot: whether the cloud can be asked to interrupt a spot instance.
        watches: kinds of ``watched`` that a stack must have there.
    """

    calls: list[Call]
    interrupts_spot: bool
    watches: tuple[str, ...]

    def identity(self) -> str:
        """The account's id, of the credentials in use."""

    def instances(self) -> Sequence[TestedInstance]:
        """Every instance that carries the stack's tag, terminated ones as long as the cloud lists them."""

    def kept(self, groups: Mapping[str, Sequence[str]]) -> Sequence[Kept]:
        """What each pool's groups have of what the program asked; pool -> its groups."""

    def raise_empty(self, groups: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Ask for an instance where a group was made for none and grows by request; gives those groups."""

    def logged(self) -> Mapping[str, float]:
        """Log store -> the most bytes per second that arrived in it lately, 0 where nothing did.

        Stores alone that the cloud may make with a key which it then cannot use.
        """

    def why_none(self, group: str) -> str:
        """What the scaling group said of its last launch; empty where it said nothing."""

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root; gives the command's id.

        Raises:
            NotReachableError: the instance takes no commands yet.
        """

    def said(self, command_id: str, instance_id: str) -> CommandOutput | None:
        """What the script came to; None while it runs."""

    def newest_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """When the instance's agent was last heard, if it was since then."""

    def first_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """When the instance's agent was first heard since then."""

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""

    def keys(self, uri: str) -> Mapping[str, datetime]:
        """Every object below ``s3://bucket/prefix`` (or ``oss://``): key -> when it was written."""

    def read(self, uri: str) -> bytes:
        """One object."""

    def watched(self, topic: str) -> Mapping[str, Sequence[str]]:
        """Kinds of watchers, ``alarms`` say, -> names; ``recipients`` -> states of their addresses.

        Args:
            topic: where alarms go, by the stack's output of it.
        """

    def interrupt(self, instance_id: str) -> str:
        """Have the cloud interrupt a spot instance; gives what it was asked, for the evidence."""

    def forget_interruption(self) -> None:
        """Remove what ``interrupt`` made; quiet where there is nothing."""

    def left(self) -> Sequence[Left]:
        """Everything that still carries the stack's tag."""

    def end_stragglers(self) -> Sequence[str]:
        """Terminate the stack's instances that outlived their groups; gives their ids."""

    def let_keys_go(self) -> Sequence[str]:
        """Schedule the deletion of the stack's keys once nothing is left that they encrypt; gives them."""

    def empty_buckets(self) -> int:
        """Remove every object and version from the stack's buckets; gives how many."""
