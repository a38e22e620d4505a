"""The policy of a stack: dataclasses that the stack writes as ``policy.json`` and everything else reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from gpu_fleet_image.core import document
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.document import CLOCK, FLAG, LEFT_OUT, PRICE, TEXT, ZONE, number, one_of, whole
from gpu_fleet_image.core.reaper_errors import PolicyError

CLOUDS = ("aws", "alicloud")
_MARKETS = ("on-demand", "spot", "capacity-block", "reservation")
ACTIONS = ("stop", "terminate")
AFTER_A_DAY, BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE = "after-a-day", "by-operator", "by-operator-after-update"
_BREAKER_RELEASES = (AFTER_A_DAY, BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE)
# An instance that was asked for is terminated when it is idle this long, and never two within the cooldown.
IDLE_ON_REQUEST = timedelta(minutes=30)
_COOLDOWN = timedelta(minutes=10)
# One that was given back is terminated when it is idle this long: the metric's periods of a heartbeat or two.
_IDLE_GIVEN_BACK = timedelta(minutes=5)
_MAX_IDLE_AFTER_HOURS = 14 * 24  # CloudWatch keeps the 60 s heartbeats 15 days (API GetMetricData)
_SATURDAY = 5


@dataclass(frozen=True)
class QuietHours:
    """A daily span without marks and actions, minutes since local midnight; may pass midnight."""

    start: Annotated[int, CLOCK]
    end: Annotated[int, CLOCK]


def is_quiet(now: datetime, spans: Sequence[QuietHours], zone: ZoneInfo, *, weekends: bool) -> bool:
    """Return whether users asked for quiet at this moment.

    Args:
        now: any aware time.
        spans: daily spans of local wall-clock minutes, end exclusive; one that starts after its end passes
            midnight, and one that starts at its end lasts all day.
    """
    local = now.astimezone(zone)
    if weekends and local.weekday() >= _SATURDAY:
        return True
    minute = local.hour * 60 + local.minute
    return any(_within(minute, span) for span in spans)


def _within(minute: int, span: QuietHours) -> bool:
    if span.start < span.end:
        return span.start <= minute < span.end
    return minute >= span.start or minute < span.end


@dataclass(frozen=True)
class SensorPolicy:
    """Thresholds of activity on a pool's instances; the agents read them, the sweep does not.

    Attributes:
        watch: names of programs that count as activity while they run.
        command: a program with its arguments that reports whether the instance is busy; empty for none.
        command_timeout_s: its time limit.
        cpu_cores: mean of a minute that counts as activity.
    """

    watch: tuple[Annotated[str, TEXT], ...] = ()
    command: tuple[Annotated[str, TEXT], ...] = ()
    command_timeout_s: Annotated[float, number(1, 20)] = 5.0
    cpu_cores: Annotated[float, number(0.01, 64)] = 0.1
    disk_kib_per_s: Annotated[float, number(1, 2**20)] = 100.0
    network_kib_per_s: Annotated[float, number(1, 2**20)] = 64.0


@dataclass(frozen=True)
class CapacityPolicy:
    """Growth of a pool (``gpu_fleet_image.controllers.mover``).

    Attributes:
        groups: the stack's names of its scaling groups, in order of preference.
        max_size: maximum number of instances of the whole pool; 0 for a pool that takes no new ones.
        spare: idle instances that are kept ready for the next user.
        together: the instances of one request start in the same group, so that they are close together.
        scale_out_alarms: alarms whose ALARM state requests one more instance.
        on_demand_fallback: of a spot pool: buy on demand if there is no spot capacity.
        queue_gpus: GPUs of each instance, if the stack's queue uses the pool; None without a queue.
        queue_cpus: CPUs of each such instance, as Slurm counts them.
        queue_memory_mib: memory for jobs on each such instance.
    """

    groups: tuple[Annotated[str, TEXT], ...]
    max_size: Annotated[int, whole(0, 100_000)]
    spare: Annotated[int, whole(0, 100_000)] = 0
    together: Annotated[bool, FLAG] = False
    scale_out_alarms: tuple[Annotated[str, TEXT], ...] = ()
    on_demand_fallback: Annotated[bool, FLAG] = field(default=False, metadata=LEFT_OUT)
    queue_gpus: Annotated[int, whole(0, 1024)] | None = field(default=None, metadata=LEFT_OUT)
    queue_cpus: Annotated[int, whole(1, 4096)] | None = field(default=None, metadata=LEFT_OUT)
    queue_memory_mib: Annotated[int, whole(1, 1 << 30)] | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class Terms:
    """Idle time and grace of an instance."""

    idle_after: timedelta
    grace: timedelta


@dataclass(frozen=True)
class PoolPolicy(document.Contradictory):
    """Rules of one pool: when an instance counts as idle, and the action then.

    Attributes:
        min_size: instances of the pool that are never terminated.
        grace_minutes: time between the mark, which notifies the owner, and the action.
        coverage_percent: minimum share of the window's heartbeats for a decision.
        action: ``stop`` or ``terminate``.
        terminate_stopped_after_days: age of a stop after which the instance is terminated; None for never.
        quiet_hours: daily spans without marks and actions.
        quiet_weekends: no marks and actions from Saturday 00:00 to Monday 00:00 either.
        instance_store_scratch: a stop would lose data of the instances.
        max_lifetime_hours: age at which the owner is asked to replace the instance; None for never.
        scale_in_alarm: an alarm whose ALARM state requests one idle instance less; None for none.
        require_acknowledgement: stop or terminate a running instance only after its agent has confirmed for
            this mark that /scratch/keep is saved and nothing runs (``handshake.py``). Every stack sets it.
        hourly_price: instance type -> on-demand price of an hour; None if it is unknown.
        capacity: growth of the pool; None for an image of the user's own, whose instances run no agent.
    """

    market: Annotated[str, one_of(*_MARKETS)]
    min_size: Annotated[int, whole(0, 100_000)]
    idle_after_hours: Annotated[float, number(0.05, _MAX_IDLE_AFTER_HOURS)]
    grace_minutes: Annotated[int, whole(0, 7 * 24 * 60)]
    min_uptime_minutes: Annotated[int, whole(0, 14 * 24 * 60)]
    coverage_percent: Annotated[int, whole(1, 100)]
    action: Annotated[str, one_of(*ACTIONS)]
    terminate_stopped_after_days: Annotated[int, whole(1, 3650)] | None
    quiet_hours: tuple[QuietHours, ...]
    quiet_weekends: Annotated[bool, FLAG]
    instance_store_scratch: Annotated[bool, FLAG]
    max_lifetime_hours: Annotated[int, whole(24, 100_000)] | None
    scale_in_alarm: Annotated[str, TEXT] | None
    require_acknowledgement: Annotated[bool, FLAG]
    hourly_price: dict[str, Annotated[Decimal, PRICE] | None]
    sensors: SensorPolicy = field(default_factory=SensorPolicy)
    capacity: CapacityPolicy | None = None

    def terms(self, *, requested: bool = False, given_back: bool = False) -> Terms:
        """Return the terms of an instance of the pool.

        Args:
            requested: a request to scale in asks for it.
            given_back: its owner gave it back, after which there is no grace.
        """
        idle_after, grace = timedelta(hours=self.idle_after_hours), timedelta(minutes=self.grace_minutes)
        if given_back:
            return Terms(min(idle_after, _IDLE_GIVEN_BACK), timedelta(0))
        if requested:
            return Terms(min(idle_after, IDLE_ON_REQUEST), max(grace, _COOLDOWN))
        return Terms(idle_after, grace)

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """Refuse a stop that loses instance-store data, or that the cloud refuses for most spot requests."""
        if self.action == "stop" and self.market == "spot":
            yield "action", "stop", "terminate, because market is spot"
        if self.action == "stop" and self.instance_store_scratch:
            yield "action", "stop", "terminate, because instance_store_scratch is true"


@dataclass(frozen=True)
class LeftoverPolicy:
    """Volumes, addresses and stopped instances that nobody uses.

    Attributes:
        older_than_days: age from which they are listed.
        remove: remove volumes that have a snapshot, and addresses, instead of only listing them.
    """

    older_than_days: Annotated[int, whole(1, 3650)]
    remove: Annotated[bool, FLAG]


@dataclass(frozen=True)
class Policy:
    """Limits and settings of one stack's sweep.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        stack: the sweep looks only at instances tagged with this stack.
        currency: of every price in the file.
        dry_run: plan only, do not act.
        max_percent: the same limit as a share of the running fleet.
        pools: pool -> its policy.
        watch_days: days from the first sweep in which nothing is marked, stopped or terminated.
        notify_users: the records hold users' addresses (``roster.json``).
        budget: the month's budget, and prices of the meter; None for a policy without a meter.
        take_max_per_person: maximum number of instances that one user may have at once, in all pools.
        session_document: document with which Session Manager opens shells as the caller's account; empty for
            its default.
        breaker_release: when the sweep may act on an instance that the mass-idle breaker held.
        agents: release of the agent for new instances.
    """

    cloud: Annotated[str, one_of(*CLOUDS)]
    region: Annotated[str, TEXT]
    stack: Annotated[str, TEXT]
    metric_namespace: Annotated[str, TEXT]
    currency: Annotated[str, TEXT]
    dry_run: Annotated[bool, FLAG]
    max_actions: Annotated[int, whole(0, 100_000)]
    max_percent: Annotated[int, whole(0, 100)]
    time_zone: Annotated[ZoneInfo, ZONE]
    pools: dict[str, PoolPolicy]
    leftovers: LeftoverPolicy
    budget: BudgetPolicy | None = None
    watch_days: Annotated[int, whole(0, 90)] = 0
    notify_users: Annotated[bool, FLAG] = False
    take_max_per_person: Annotated[int, whole(0, 100_000)] = 0
    session_document: Annotated[str, TEXT] = field(default="", metadata=LEFT_OUT)
    breaker_release: Annotated[str, one_of(*_BREAKER_RELEASES)] = BY_OPERATOR_AFTER_UPDATE
    agents: Annotated[str, TEXT] = field(default="", metadata=LEFT_OUT)
    schema_version: Annotated[int, one_of(1)] = 1

    @property
    def queued(self) -> frozenset[str]:
        """The pools on whose instances a queue starts jobs."""
        return frozenset(
            name
            for name, pool in self.pools.items()
            if pool.capacity and pool.capacity.queue_gpus is not None
        )

    @property
    def has_queue(self) -> bool:
        """True if a queue starts jobs on the stack's instances."""
        return bool(self.queued)


def load(path: Path) -> Policy:
    """Read and check a policy file. Raises PolicyError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError(f"policy file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: not UTF-8, at byte {error.start}; save it as UTF-8") from error
    return parse(text, str(path))


def parse(text: str, name: str = "policy") -> Policy:
    """Check a policy's JSON text.

    Raises PolicyError as for ``load``.
    """
    return document.parse(Policy, text, PolicyError, name)


def unit_price(policy: Policy, pool: str, instance_type: str) -> Decimal | None:
    """Return the price of an hour in the policy's currency, or None if it is unknown."""
    known = policy.pools[pool].hourly_price if pool in policy.pools else {}
    return known.get(instance_type)
