"""The policy of a stack: dataclasses that the stack writes as ``policy.json`` and everything else reads."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from gpu_fleet_image.core import document
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.document import CLOCK, FLAG, LEFT_OUT, PRICE, TEXT, ZONE, number, one_of, whole
from gpu_fleet_image.core.reaper_errors import PolicyError

KEY = "policy.json"  # in the records bucket, where the ledger is

CLOUDS = ("aws", "alicloud")
MARKETS = ("on-demand", "spot", "capacity-block", "reservation")
ACTIONS = ("stop", "terminate")
AFTER_A_DAY, BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE = "after-a-day", "by-operator", "by-operator-after-update"
BREAKER_RELEASES = (AFTER_A_DAY, BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE)
MAX_IDLE_AFTER_HOURS = 14 * 24  # CloudWatch keeps the 60 s heartbeats 15 days (API GetMetricData)


@dataclass(frozen=True)
class QuietHours:
    """A daily span without marks and actions, minutes since local midnight; may pass midnight."""

    start: Annotated[int, CLOCK]
    end: Annotated[int, CLOCK]


@dataclass(frozen=True)
class SensorPolicy:
    """What counts as activity on a pool's instances; the agents read it, the sweep does not.

    Attributes:
        watch: names of programs that are work while they run.
        command: a program that says whether the instance is busy, with its arguments; empty for none.
        command_timeout_s: how long it may take.
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
    """How a pool grows (``gpu_fleet_image.controllers.mover``).

    Attributes:
        groups: what the stack calls its scaling groups, in order of preference.
        max_size: instances of the whole pool, at most.
        spare: instances that are kept for whoever takes one next.
        together: the instances of one request start in the same group: they stand close together.
        scale_out_alarms: alarms whose ALARM state asks for an instance more.
        on_demand_fallback: of a spot pool: where no spot instance is to be had, it buys on demand.
        queue_gpus: GPUs of each instance, where the stack's queue fills the pool; None without a queue.
        queue_cpus: of each of these likewise, as Slurm counts them.
        queue_memory_mib: which jobs have of each.
    """

    groups: tuple[Annotated[str, TEXT], ...]
    max_size: Annotated[int, whole(1, 100_000)]
    spare: Annotated[int, whole(0, 100_000)] = 0
    together: Annotated[bool, FLAG] = False
    scale_out_alarms: tuple[Annotated[str, TEXT], ...] = ()
    on_demand_fallback: Annotated[bool, FLAG] = field(default=False, metadata=LEFT_OUT)
    queue_gpus: Annotated[int, whole(0, 1024)] | None = field(default=None, metadata=LEFT_OUT)
    queue_cpus: Annotated[int, whole(1, 4096)] | None = field(default=None, metadata=LEFT_OUT)
    queue_memory_mib: Annotated[int, whole(1, 1 << 30)] | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class PoolPolicy(document.Contradictory):
    """When an instance of one pool counts as forgotten, and what happens then.

    Attributes:
        market: how the pool's instances are bought.
        min_size: instances of the pool that always stay.
        idle_after_hours: idle time before the mark.
        grace_minutes: time between the mark, which notifies the owner, and the action.
        min_uptime_minutes: an instance started more recently is left alone.
        coverage_percent: share of the window's heartbeats without which nothing is decided.
        action: ``stop`` or ``terminate``.
        terminate_stopped_after_days: second stage after a stop; None for never.
        quiet_hours: daily spans without marks and actions.
        quiet_weekends: none from Saturday 00:00 to Monday 00:00 either.
        instance_store_scratch: the instances hold data that a stop would lose.
        max_lifetime_hours: age at which the owner is asked to replace the instance; None for never.
        scale_in_alarm: an alarm whose ALARM state asks for one idle instance less; None for none.
        require_acknowledgement: stop or terminate no running instance before its agent says, for this very
            mark, that /scratch/keep is saved and nothing runs there (``handshake.py``). Only for agents older
            than that is it false.
        hourly_price: instance type -> on-demand price of an hour; None where it is unknown.
        sensors: what counts as activity.
        capacity: how the pool grows; None in policies of before, which leave that to the groups.
    """

    market: Annotated[str, one_of(*MARKETS)]
    min_size: Annotated[int, whole(0, 100_000)]
    idle_after_hours: Annotated[float, number(0.05, MAX_IDLE_AFTER_HOURS)]
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

    def contradictions(self) -> Iterator[tuple[str, object, str]]:
        """A stop loses instance-store data, and the cloud refuses it for most spot requests."""
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
    """What one stack's sweep may do.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        region: the stack's region.
        stack: only instances tagged with this stack are looked at.
        metric_namespace: where its agents publish.
        currency: of every price in the file.
        dry_run: plan only.
        max_actions: stops and terminations in one sweep, at most.
        max_percent: the same as a share of the running fleet.
        time_zone: of the quiet hours.
        pools: pool -> its policy.
        leftovers: what to do with what is left over.
        watch_days: days from the first sweep in which nothing is marked, stopped or terminated.
        notify_users: the records say who is reached where (``roster.json``).
        budget: what a month may cost, and prices to meter with; None for a policy that meters nothing.
        take_max_per_person: instances that one user may have taken at once, in all pools.
        session_document: by which Session Manager opens shells as the caller's account; empty for its own.
        breaker_release: when an instance that the mass-idle breaker held may end.
        agents: the release of the agent that instances get from now on.
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
    breaker_release: Annotated[str, one_of(*BREAKER_RELEASES)] = BY_OPERATOR_AFTER_UPDATE
    agents: Annotated[str, TEXT] = field(default="", metadata=LEFT_OUT)
    schema_version: Annotated[int, one_of(1)] = 1

    @property
    def has_queue(self) -> bool:
        """Whether a queue starts jobs on the stack's instances."""
        return any(pool.capacity and pool.capacity.queue_gpus is not None for pool in self.pools.values())


def load(path: Path) -> Policy:
    """Read and check a policy file.

    Raises:
        PolicyError: naming every wrong key with its value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PolicyError(f"policy file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path}: not JSON: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str = "policy") -> Policy:
    """Check a policy's JSON text.

    Args:
        text: the JSON.
        name: what to call it in messages.

    Raises:
        PolicyError: as for ``load``.
    """
    return document.parse(Policy, text, PolicyError, name)


def unit_price(policy: Policy, pool: str, instance_type: str) -> Decimal | None:
    """Price of an hour in the policy's currency, or None where nobody said it."""
    known = policy.pools[pool].hourly_price if pool in policy.pools else {}
    return known.get(instance_type)
