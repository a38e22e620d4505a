"""The sweep's policy: ``policy.json`` as frozen dataclasses, with all problems of a file reported at once."""

import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from gpu_fleet_image.core import budget_policy as budgets
from gpu_fleet_image.core.json_fields import Fields
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

    start_minute: int
    end_minute: int


@dataclass(frozen=True)
class SensorPolicy:
    """Thresholds of activity on a pool's instances; the agents read them, the sweep does not.

    Attributes:
        watch: names of programs that count as activity while they run.
        command: a program with its arguments that reports whether the instance is busy; empty for none.
        command_timeout_s: its time limit.
        cpu_cores: mean of a minute that counts as activity.
    """

    watch: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    command_timeout_s: float = 5.0
    cpu_cores: float = 0.1
    disk_kib_per_s: float = 100.0
    network_kib_per_s: float = 64.0


@dataclass(frozen=True)
class CapacityPolicy:
    """Growth of a pool (``gpu_fleet_image.controllers.mover``).

    Attributes:
        groups: the stack's names of its scaling groups, in order of preference.
        max_size: maximum number of instances of the whole pool.
        spare: idle instances that are kept ready for the next user.
        together: the instances of one request start in the same group, so that they are close together.
        scale_out_alarms: alarms whose ALARM state requests one more instance.
        on_demand_fallback: of a spot pool: buy on demand if there is no spot capacity.
        queue_gpus: GPUs of each instance, if the stack's queue uses the pool; None without a queue.
        queue_cpus: CPUs of each such instance, as Slurm counts them.
        queue_memory_mib: memory for jobs on each such instance.
    """

    groups: tuple[str, ...]
    max_size: int
    spare: int = 0
    together: bool = False
    scale_out_alarms: tuple[str, ...] = ()
    on_demand_fallback: bool = False
    queue_gpus: int | None = None
    queue_cpus: int | None = None
    queue_memory_mib: int | None = None


@dataclass(frozen=True)
class PoolPolicy:
    """Rules of one pool: when an instance counts as idle, and the action then.

    Attributes:
        market: purchase option of the pool's instances.
        min_size: instances of the pool that are never terminated.
        idle_after_hours: idle time before the mark.
        grace_minutes: time between the mark, which notifies the owner, and the action.
        min_uptime_minutes: an instance started more recently is left alone.
        coverage_percent: minimum share of the window's heartbeats for a decision.
        action: ``stop`` or ``terminate``.
        terminate_stopped_after_days: age of a stop after which the instance is terminated; None for never.
        quiet_hours: daily spans without marks and actions.
        quiet_weekends: no marks and actions from Saturday 00:00 to Monday 00:00 either.
        instance_store_scratch: a stop would lose data of the instances.
        max_lifetime_hours: age at which the owner is asked to replace the instance; None for never.
        scale_in_alarm: an alarm whose ALARM state requests one idle instance less; None for none.
        require_acknowledgement: stop or terminate a running instance only after its agent has confirmed for
            this mark that /scratch/keep is saved and nothing runs (``handshake.py``). It is false only for
            agents older than that.
        hourly_price: instance type -> on-demand price of an hour; None if it is unknown.
        sensors: thresholds of activity.
        capacity: growth of the pool; None in older policies, which leave it to the groups.
    """

    market: str
    min_size: int
    idle_after_hours: float
    grace_minutes: int
    min_uptime_minutes: int
    coverage_percent: int
    action: str
    terminate_stopped_after_days: int | None
    quiet_hours: tuple[QuietHours, ...]
    quiet_weekends: bool
    instance_store_scratch: bool
    max_lifetime_hours: int | None
    scale_in_alarm: str | None
    require_acknowledgement: bool
    hourly_price: dict[str, Decimal | None]
    sensors: SensorPolicy = field(default_factory=SensorPolicy)
    capacity: CapacityPolicy | None = None


@dataclass(frozen=True)
class LeftoverPolicy:
    """Volumes, addresses and stopped instances that nobody uses.

    Attributes:
        older_than_days: age from which they are listed.
        remove: remove volumes that have a snapshot, and addresses, instead of only listing them.
    """

    older_than_days: int
    remove: bool


@dataclass(frozen=True)
class Policy:
    """Limits and settings of one stack's sweep.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        region: the stack's region.
        stack: the sweep looks only at instances tagged with this stack.
        metric_namespace: namespace of its agents' metrics.
        currency: of every price in the file.
        dry_run: plan only, do not act.
        max_actions: maximum number of stops and terminations in one sweep.
        max_percent: the same limit as a share of the running fleet.
        time_zone: of the quiet hours.
        pools: pool -> its policy.
        leftovers: handling of orphaned resources.
        watch_days: days from the first sweep in which nothing is marked, stopped or terminated.
        notify_users: the records hold users' addresses (``roster.json``).
        budget: the month's budget, and prices of the meter; None for a policy without a meter.
        take_max_per_person: maximum number of instances that one user may have at once, in all pools.
        session_document: document with which Session Manager opens shells as the caller's account; empty for
            its default.
        breaker_release: when the sweep may act on an instance that the mass-idle breaker held.
        agents: release of the agent for new instances.
    """

    cloud: str
    region: str
    stack: str
    metric_namespace: str
    currency: str
    dry_run: bool
    max_actions: int
    max_percent: int
    time_zone: ZoneInfo
    pools: dict[str, PoolPolicy]
    leftovers: LeftoverPolicy
    budget: budgets.BudgetPolicy | None = None
    watch_days: int = 0
    notify_users: bool = False
    take_max_per_person: int = 0
    session_document: str = ""
    breaker_release: str = BY_OPERATOR_AFTER_UPDATE
    agents: str = ""

    @property
    def has_queue(self) -> bool:
        """True if a queue starts jobs on the stack's instances."""
        return any(pool.capacity and pool.capacity.queue_gpus is not None for pool in self.pools.values())


def load(path: Path) -> Policy:
    """Read and check a policy file.

    Raises:
        PolicyError: names every wrong key with its value and what is allowed.
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
        name: its name in messages.

    Raises:
        PolicyError: as for ``load``.
    """
    try:
        raw = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise PolicyError(f"{name}: not JSON: {error}") from error
    fields = Fields(raw)
    policy = _policy(fields)
    if fields.problems:
        raise PolicyError("\n".join(f"{name}: {problem}" for problem in fields.problems))
    return policy


def _policy(fields: Fields) -> Policy:
    fields.choice("schema_version", (1,))
    policy = Policy(
        cloud=fields.choice("cloud", CLOUDS),
        region=fields.text("region"),
        stack=fields.text("stack"),
        metric_namespace=fields.text("metric_namespace"),
        currency=fields.text("currency"),
        dry_run=fields.flag("dry_run", default=False),
        max_actions=fields.integer("max_actions", 0, 100_000),
        max_percent=fields.integer("max_percent", 0, 100),
        time_zone=fields.zone("time_zone"),
        pools={name: _pool(pool) for name, pool in fields.tables("pools")},
        leftovers=_leftovers(fields.table("leftovers")),
        budget=budgets.read(table) if (table := fields.optional_table("budget")) else None,
        watch_days=fields.optional_integer("watch_days", 0, 90) or 0,
        notify_users=fields.flag("notify_users", default=False),
        take_max_per_person=fields.optional_integer("take_max_per_person", 0, 100_000) or 0,
        session_document=fields.optional_text("session_document") or "",
        breaker_release=_breaker_release(fields),
        agents=fields.optional_text("agents") or "",
    )
    fields.refuse_unknown()
    return policy


def _breaker_release(fields: Fields) -> str:
    """Return when the breaker releases; older policies get the default."""
    said = fields.optional_text("breaker_release") or BY_OPERATOR_AFTER_UPDATE
    if said not in BREAKER_RELEASES:
        fields.problem("breaker_release", said, ", ".join(BREAKER_RELEASES))
    return said


def _pool(fields: Fields) -> PoolPolicy:
    pool = PoolPolicy(
        market=fields.choice("market", MARKETS),
        min_size=fields.integer("min_size", 0, 100_000),
        idle_after_hours=fields.number("idle_after_hours", 0.05, MAX_IDLE_AFTER_HOURS),
        grace_minutes=fields.integer("grace_minutes", 0, 7 * 24 * 60),
        min_uptime_minutes=fields.integer("min_uptime_minutes", 0, 14 * 24 * 60),
        coverage_percent=fields.integer("coverage_percent", 1, 100),
        action=fields.choice("action", ACTIONS),
        terminate_stopped_after_days=fields.optional_integer("terminate_stopped_after_days", 1, 3650),
        quiet_hours=tuple(QuietHours(*span) for span in fields.spans("quiet_hours")),
        quiet_weekends=fields.flag("quiet_weekends", default=False),
        instance_store_scratch=fields.flag("instance_store_scratch", default=True),
        max_lifetime_hours=fields.optional_integer("max_lifetime_hours", 24, 100_000),
        scale_in_alarm=fields.optional_text("scale_in_alarm"),
        require_acknowledgement=fields.flag("require_acknowledgement", default=True),
        hourly_price=fields.prices("hourly_price"),
        sensors=sensors(table) if (table := fields.optional_table("sensors")) else SensorPolicy(),
        capacity=_capacity(table) if (table := fields.optional_table("capacity")) else None,
    )
    fields.refuse_unknown()
    _refuse_unsafe_stop(fields, pool)
    return pool


def _capacity(fields: Fields) -> CapacityPolicy:
    capacity = CapacityPolicy(
        groups=fields.words("groups"),
        max_size=fields.integer("max_size", 1, 100_000),
        spare=fields.integer("spare", 0, 100_000),
        together=fields.flag("together", default=False),
        scale_out_alarms=fields.words("scale_out_alarms"),
        on_demand_fallback=fields.flag("on_demand_fallback", default=False),
        queue_gpus=fields.optional_integer("queue_gpus", 0, 1024),
        queue_cpus=fields.optional_integer("queue_cpus", 1, 4096),
        queue_memory_mib=fields.optional_integer("queue_memory_mib", 1, 1 << 30),
    )
    fields.refuse_unknown()
    return capacity


def sensors(fields: Fields) -> SensorPolicy:
    """Read a pool's ``sensors``; add what is wrong with them to the fields' problems."""
    read = SensorPolicy(
        watch=fields.words("watch"),
        command=fields.words("command"),
        command_timeout_s=fields.number("command_timeout_s", 1, 20),
        cpu_cores=fields.number("cpu_cores", 0.01, 64),
        disk_kib_per_s=fields.number("disk_kib_per_s", 1, 2**20),
        network_kib_per_s=fields.number("network_kib_per_s", 1, 2**20),
    )
    fields.refuse_unknown()
    return read


def _refuse_unsafe_stop(fields: Fields, pool: PoolPolicy) -> None:
    """Refuse a stop that loses instance-store data, or that the cloud refuses for most spot requests."""
    if pool.action != "stop":
        return
    if pool.market == "spot":
        fields.problem("action", "stop", "terminate, because market is spot")
    if pool.instance_store_scratch:
        fields.problem("action", "stop", "terminate, because instance_store_scratch is true")


def _leftovers(fields: Fields) -> LeftoverPolicy:
    leftovers = LeftoverPolicy(
        older_than_days=fields.integer("older_than_days", 1, 3650),
        remove=fields.flag("remove", default=False),
    )
    fields.refuse_unknown()
    return leftovers


def unit_price(policy: Policy, pool: str, instance_type: str) -> Decimal | None:
    """Return the price of an hour in the policy's currency, or None if it is unknown."""
    known: dict[str, Any] = policy.pools[pool].hourly_price if pool in policy.pools else {}
    return known.get(instance_type)
