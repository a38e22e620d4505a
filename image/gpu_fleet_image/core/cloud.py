"""Protocols of a cloud for sweep, meter and commands, and the connection to it.

``providers/aws/connect.py`` and ``providers/alicloud/connect.py`` have the same functions. Neither is
imported here: the archive of one cloud's sweep carries no code of the other's.
"""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

from gpu_fleet_image.core.calls import Calls, Failure
from gpu_fleet_image.core.holds import Tagging
from gpu_fleet_image.core.metrics import Figure
from gpu_fleet_image.core.model import Instance, Inventory, OrphanedResource
from gpu_fleet_image.core.notify.notifier import Notifier
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Store

COMPLETE = "Complete"
MAX_POINTS = 100_800  # of one GetMetricData answer (API GetMetricData)
MAX_QUERIES = 500  # of one GetMetricData call
Statistic = Literal["Minimum", "Average", "Sum"]


@dataclass(frozen=True)
class Query:
    """One metric of one instance.

    Attributes:
        period_s: length of a period; its smallest value is asked for unless ``statistic`` differs.
        enough_below_s: the newest value alone is enough if it lies between 0 and this: on a cloud where that
            is cheaper to ask for, the rest of the window may stay unread.
    """

    instance_id: str
    metric: str
    period_s: int
    enough_below_s: float = 0.0
    statistic: Statistic = "Minimum"


@dataclass
class Answer:
    """Data points of one query.

    Attributes:
        points: (start of the period, its value), in any order, possibly repeated.
    """

    points: list[tuple[datetime, float]] = field(default_factory=list)
    status: str = "Missing"

    @property
    def complete(self) -> bool:
        """True if every point is here."""
        return self.status == COMPLETE


@dataclass(frozen=True)
class Span:
    """Time span of a query."""

    start: datetime
    end: datetime


def give_up(batch: Sequence[Query], answers: Mapping[Query, Answer], error: CloudError) -> list[Failure]:
    """Mark these queries as failed, and return a failure for each."""
    for query in batch:
        answers[query].status = "Failed"
    return [Failure(query.instance_id, "read heartbeats", str(error)) for query in batch]


CLOUDS = ("aws", "alicloud")


class FreezableGroups(Protocol):
    """Changes of a freeze to a scaling group; each raises CloudError."""

    def limit(self, group: str, max_size: int) -> None:
        """Limit a group to ``max_size`` instances; it terminates none."""

    def close(self, group: str) -> None:
        """Keep a group from starting instances."""

    def open(self, group: str) -> None:
        """Let a group start instances again."""


class Instances(Tagging, FreezableGroups, Protocol):
    """The managed instances of one stack. Every method raises CloudError where the cloud refuses."""

    end_batch: int
    detach_batch: int

    def fleet(self) -> Inventory:
        """Every managed instance of the stack, and its scaling groups."""

    def again(self, ids: Sequence[str], group_names: Sequence[str]) -> Inventory:
        """Read the same instances and groups again; ``gone`` lists the terminated ones."""

    def lock(self, instance_id: str, action: str) -> str:
        """Return why the cloud would not stop or terminate an instance, if its listing does not say it."""

    def alarms_firing(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of the alarms that are in the state ALARM."""

    def detach(self, group: str, ids: Sequence[str], *, replaced: bool = False) -> None:
        """Remove instances from their group, and lower its desired capacity unless ``replaced``."""

    def attach(self, group: str, ids: Sequence[str]) -> None:
        """Put instances back into their group, and raise its desired capacity."""

    def stop(self, ids: Sequence[str]) -> None:
        """Stop instances; their disks stay."""

    def terminate(self, ids: Sequence[str], *, stopped: bool = False) -> None:
        """Terminate instances; with ``stopped`` no running one, if the call can express that."""


class Heartbeats(Protocol):
    """The metrics of one stack."""

    def read(self, queries: Sequence[Query], span: Span) -> tuple[dict[Query, Answer], list[Failure]]:
        """Return an answer for every query, incomplete if a call failed; and the failures."""

    def publish(self, figures: Sequence[Figure]) -> None:
        """Publish the figures of the sweep and its meter; raises CloudError."""


class OrphanedResources(Protocol):
    """Orphaned resources of the stack's instances. Every method raises CloudError if the cloud refuses."""

    def find(self, stopped: Sequence[Instance] = ()) -> list[OrphanedResource]:
        """Return unattached volumes, unassociated addresses, stopped instances with their disks' size."""

    def snapshots(self, volume_ids: Sequence[str]) -> dict[str, datetime]:
        """Return volume id -> start of its newest complete snapshot."""

    def written(self, since: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
        """Return volume id -> last write after a given moment, if ``find`` does not show it.

        A volume that is attached and detached again between two polls keeps the note of the first poll.
        """

    def remove(self, orphan: OrphanedResource) -> None:
        """Delete a volume or release an address."""


@dataclass(frozen=True)
class SweepCloud:
    """Connection of a sweep to its cloud.

    Attributes:
        notifier: notifies users; None only in a dry run.
        store: holds lease and ledger; None only in a dry run.
        spot_prices: returns the spot price of an hour of some types now, in the policy's currency, without
            types that have no price; raises CloudError. None if the policy's own prices are the only ones.
    """

    calls: Calls
    instances: Instances
    heartbeats: Heartbeats
    orphans: OrphanedResources
    notifier: Notifier | None = None
    store: Store | None = None
    spot_prices: Callable[[Sequence[str]], Mapping[str, Decimal]] | None = None


def module(cloud: str) -> ModuleType:
    """Return the module that connects to a cloud.

    It has ``connect(policy, calls, environ, made=None) -> Cloud``,
    ``instances(region, calls, stack="") -> Instances``, ``account_id(region, calls)`` of the credentials,
    ``bucket_client(region)``, an S3 client of boto3, and ``store(region, calls, uri) -> Store``.
    """
    return importlib.import_module(f"gpu_fleet_image.providers.{cloud}.connect")


def bucket_client(cloud: str, region: str) -> Any:
    """Return boto3's S3 client for the cloud's buckets."""
    return module(cloud).bucket_client(region)


LEDGER_URI = "GPU_FLEET_LEDGER_URI"
TOPIC_ARN = "GPU_FLEET_TOPIC_ARN"
POLICY_FILE = "GPU_FLEET_POLICY_FILE"
# policy.json lies beside the package: at the root of the function's archive.
_BESIDE_PACKAGE = Path(__file__).resolve().parents[2] / "policy.json"


def policy_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the policy, unless a flag sets it."""
    return Path(environ.get(POLICY_FILE) or _BESIDE_PACKAGE)


def connect(
    policy: Policy,
    clock: Callable[[], datetime],
    *,
    deadline: datetime | None = None,
    read_only: bool = False,
    environ: Mapping[str, str] = os.environ,
    made: Any = None,
) -> SweepCloud:
    """Return a connection to the stack's cloud.

    Args:
        deadline: no call is made after it.
        read_only: refuse calls that change anything.
        made: the cloud's ``Clients`` to use instead of new ones.

    Raises ConfigurationError if a variable is malformed.
    """
    calls = Calls(clock, deadline, read_only=read_only)
    connected: SweepCloud = module(policy.cloud).connect(policy, calls, environ, made)
    return connected
