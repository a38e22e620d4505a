"""Holdings of a stack, as its cloud reports them: instances, data stores, and other encrypted resources."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpu_fleet_image.core.model import (
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_PROTECTED,
    Instance,
)
from gpu_fleet_stacks.clients import buckets
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.state import StateResource

STOPPED = frozenset({"stopping", "stopped"})


@dataclass(frozen=True)
class HeldInstance:
    """One instance of the stack.

    Attributes:
        state: the cloud's name of its state, in lower case.
        pool: its pool, or empty.
        group: its scaling group; empty for an instance that the sweep detached.
        hold: why a user or an administrator keeps it; empty for no hold.
        managed: the sweep may terminate it; no instance of a stack with ``image.mode: none`` is managed.
    """

    id: str
    type: str
    state: str
    pool: str = ""
    group: str = ""
    hold: str = ""
    managed: bool = True

    @property
    def stopped(self) -> bool:
        """Return whether the instance is stopped or stopping, so that it can save nothing any more."""
        return self.state in STOPPED


def held(instance: Instance, group: str, now: datetime) -> HeldInstance:
    """Return an instance of either cloud with its group and its hold."""
    return HeldInstance(
        id=instance.id,
        type=instance.type,
        state=instance.state,
        pool=instance.pool,
        group=group,
        hold=hold_of(instance.tags, now),
        managed=instance.tags.get(TAG_MANAGED) == "true",
    )


@dataclass(frozen=True)
class DataStore:
    """A bucket or a file system of the stack, and its content.

    Attributes:
        kind: ``data``, ``checkpoints``, ``records``, ``access-logs``, ``home`` or ``scratch``.
        urn: its URN in the state.
        holds: its content, such as ``1,204 versions, 3.1 GiB``.
        empty: whether it is empty; only a bucket can prove that.
        protected: whether Pulumi refuses to delete it.
    """

    kind: str
    urn: str
    id: str
    holds: str
    empty: bool
    protected: bool


@dataclass(frozen=True)
class Remnant:
    """Something that the stack's key encrypts and that no state lists.

    Attributes:
        kind: ``snapshot``, ``image``, ``volume`` or ``backup``.
    """

    kind: str
    id: str


@dataclass(frozen=True)
class Holdings:
    """Everything that decides what a destroy may do.

    Attributes:
        builders: instances that build or test an image of the stack at the moment.
    """

    instances: tuple[HeldInstance, ...] = ()
    stores: tuple[DataStore, ...] = ()
    remnants: tuple[Remnant, ...] = ()
    builders: tuple[str, ...] = ()


Note = Callable[[str], None]


class TeardownCloud(Protocol):
    """The calls of a teardown; every method raises ``CannotCheckError`` where the cloud refuses one."""

    def look(self, resources: Sequence[StateResource], now: datetime) -> Holdings:
        """Return what the stack holds now; change nothing."""

    def instances(self, resources: Sequence[StateResource], now: datetime) -> tuple[HeldInstance, ...]:
        """Return the instances alone."""

    def drain(self, group: StateResource) -> None:
        """Set a group's size to 0; its lifecycle hook lets each instance save first."""

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate stopped instances that are in no group."""

    def empty(self, bucket: str, note: Note) -> None:
        """Delete every version of every object in a bucket."""

    def schedule_key_deletion(self, key: StateResource, days: int) -> None:
        """Schedule the key's deletion after this many days; do nothing where it is scheduled already."""


def hold_of(tags: Mapping[str, str], now: datetime) -> str:
    """Return why an instance is kept, from its tags; empty for no hold in force.

    A hold that cannot be read counts as a hold.
    """
    if TAG_PROTECTED in tags:
        return f"{TAG_PROTECTED} is set"
    until = tags.get(TAG_KEEP_UNTIL)
    if until is None:
        return ""
    try:
        over = datetime.fromisoformat(until) <= now
    except (ValueError, TypeError):  # TypeError: a time without a zone
        over = False
    reason = tags.get(TAG_KEEP_REASON, "no reason given")
    return "" if over else f"kept until {until}: {reason}"


def store_of(
    stack: str,
    resource: StateResource,
    *,
    size: Callable[[StateResource], str],
    ask: buckets.Ask,
    absent: Collection[str],
) -> DataStore:
    """Describe a bucket or a file system of the state, and what it holds.

    Args:
        ask: makes one call of boto3's S3 client.
        absent: error codes of a store that was deleted outside Pulumi.
    """
    try:
        holds, empty = (
            (size(resource), False) if resource.type in state.FILE_SYSTEMS else _bucket(ask, resource.id)
        )
    except CannotCheckError as error:
        if not any(code in str(error) for code in absent):
            raise
        holds, empty = "gone already", True
    kind = state.kind_of(stack, resource)
    return DataStore(kind, resource.urn, resource.id, holds, empty, resource.protected)


def _bucket(ask: buckets.Ask, name: str) -> tuple[str, bool]:
    """Return a bucket's content in words, and whether the bucket is empty."""
    versions, size, more = buckets.count(ask, name)
    words = f"{versions:,} versions of objects, {gib(size)}"
    return (f"at least {words}" if more else words), versions == 0


def gib(size_bytes: float) -> str:
    """Format a size: ``3.1 GiB``."""
    return f"{size_bytes / 2**30:,.1f} GiB"
