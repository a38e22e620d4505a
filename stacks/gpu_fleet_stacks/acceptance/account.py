"""Protocol of a cloud account in an acceptance run on either cloud."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from gpu_fleet_image.core.model import Instance


@dataclass(frozen=True)
class CommandOutput:
    """Result of a command on an instance.

    Attributes:
        output: standard output, cut to what the cloud keeps (24,000 characters on AWS).
    """

    code: int
    output: str
    error: str = ""


@dataclass(frozen=True)
class Orphan:
    """Something of the stack that still exists.

    Attributes:
        kind: ``instance``, ``volume``, ``nat gateway``, ``public address``, ``bucket``...
        state: the cloud's name of its state; empty where the cloud gives none.
        priced_as: its name in the catalog or the price list; empty where it is not paid by the hour.
    """

    kind: str
    id: str
    state: str = ""
    priced_as: str = ""
    units: Decimal = Decimal(1)
    note: str = ""


NO_ANSWER = "NoAnswer"  # in place of an error code


@dataclass(frozen=True)
class Call:
    """One API call, as evidence.

    Attributes:
        at: when it was made, aware UTC.
        name: service and operation, ``ec2.describe_instances``.
        request_id: the cloud's own; empty where the cloud did not answer.
        error: the cloud's error code; empty where the call succeeded.
    """

    at: datetime
    name: str
    request_id: str
    error: str
    doc: str


@dataclass(frozen=True)
class Kept:
    """A setting of a scaling group: the requested value and the cloud's value."""

    group: str
    setting: str
    asked: object
    actual: object


class SpotInterruption(Protocol):
    """Interruptions of spot instances by the cloud itself; every method raises ``CannotCheckError``."""

    def interrupt(self, instance_id: str) -> str:
        """Have the cloud interrupt a spot instance; return a description of the request, for the evidence."""

    def forget_interruption(self) -> None:
        """Remove what ``interrupt`` made, if anything."""


class Cleanup(Protocol):
    """Removal of what a run may leave behind; every method raises ``CannotCheckError``."""

    def orphans(self) -> Sequence[Orphan]:
        """Return everything that still carries the stack's tag."""

    def end_stragglers(self) -> Sequence[str]:
        """Terminate the stack's instances that outlived their groups; return their ids."""

    def let_keys_go(self) -> Sequence[str]:
        """Schedule the deletion of the stack's keys once they encrypt nothing; return their ARNs."""

    def empty_buckets(self) -> int:
        """Remove every object and version from the stack's buckets; return their number."""


class Account(Protocol):
    """One stack's part of a cloud account; every method raises ``CannotCheckError``.

    Attributes:
        calls: every call made so far, in order.
        interruption: interrupts a spot instance; None where the cloud offers no such call.
        watches: the kinds of ``watched`` that a stack must have on this cloud.
    """

    calls: list[Call]
    interruption: SpotInterruption | None
    cleanup: Cleanup
    watches: tuple[str, ...]

    def identity(self) -> str:
        """Return the account's id for the credentials in use."""

    def instances(self) -> Sequence[Instance]:
        """Return every instance with the stack's tag; terminated ones for as long as the cloud lists them."""

    def kept(self, groups: Mapping[str, Sequence[str]]) -> Sequence[Kept]:
        """Compare the groups' settings with the requested ones; ``groups``: pool -> its groups."""

    def raise_empty(self, groups: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Request an instance in each group made with 0 that grows by request; return those groups."""

    def logged(self) -> Mapping[str, float]:
        """Return the highest recent inflow of each log store, in bytes per second; 0 where nothing arrived.

        Lists only stores that the cloud may create with a key which it then cannot use.
        """

    def why_none(self, group: str) -> str:
        """Return the scaling group's message about its last launch; empty where it gave none."""

    def run(self, instance_id: str, script: str) -> str:
        """Start a shell script as root; return the command's id.

        Raises NotReachableError if the instance takes no commands yet.
        """

    def said(self, command_id: str, instance_id: str) -> CommandOutput | None:
        """Return the script's result; None while it runs."""

    def newest_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the newest heartbeat of the instance's agent since ``since``; None if there was none."""

    def first_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        """Return the first heartbeat of the instance's agent since ``since``; None if there was none."""

    def tag(self, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags."""

    def untag(self, instance_id: str, keys: Sequence[str]) -> None:
        """Remove tags."""

    def keys(self, uri: str) -> Mapping[str, datetime]:
        """Return every object below ``s3://bucket/prefix`` (or ``oss://``): key -> time of writing."""

    def read(self, uri: str) -> bytes:
        """Return one object."""

    def watched(self, topic: str) -> Mapping[str, Sequence[str]]:
        """Return the monitoring of the stack: kind (``alarms``...) -> names; ``recipients`` -> their states.

        Args:
            topic: the stack's output that names where alarms are sent.
        """
