"""The policy of a stack's functions, from its settings: what is idle, what may be done, what it costs."""

from decimal import Decimal
from zoneinfo import ZoneInfo

from gpu_fleet_image.core.document import CLOCK, text_of
from gpu_fleet_image.core.policy import (
    CapacityPolicy,
    LeftoverPolicy,
    Policy,
    PoolPolicy,
    QuietHours,
    SensorPolicy,
)
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.cost import meter_prices
from gpu_fleet_stacks.payload.sweep_archive import agents_release
from gpu_fleet_stacks.settings import Idle, Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import group_plans, high_load_alarms, low_load_alarm

MIB_PER_GIB = 1024
# What of a type's memory Slurm finds on each instance at least: firmware and kernel have the rest.
FOR_JOBS = Decimal("0.95")


def policy_text(stack: Stack) -> str:
    """Return the policy as text for the function's archive, the records bucket and the output ``policy``."""
    return text_of(policy(stack))


def policy(stack: Stack) -> Policy:
    """Return the policy of a stack."""
    reaper = stack.reaper
    return Policy(
        cloud=str(stack.cloud),
        region=stack.region,
        stack=stack.name,
        metric_namespace=naming.metric_namespace(stack.name),
        currency=stack.budget.currency,
        dry_run=reaper.dry_run,
        max_actions=reaper.max_actions,
        max_percent=reaper.max_percent,
        time_zone=ZoneInfo(reaper.time_zone),
        pools={pool.name: _pool(stack, pool) for pool in stack.pools},
        leftovers=LeftoverPolicy(reaper.leftovers.older_than_days, reaper.leftovers.remove),
        budget=meter_prices.budget(stack),
        watch_days=reaper.watch_days,
        notify_users=stack.notify.anybody,
        take_max_per_person=stack.take.max_per_person,
        session_document=naming.session_document(stack.name) if by_account(stack) else "",
        breaker_release=str(reaper.breaker_release),
        agents=agents_release(stack.cloud),
    )


def by_account(stack: Stack) -> bool:
    """Return whether sessions open as the user's own account, by a document of the stack (AWS)."""
    return stack.cloud is Cloud.AWS and stack.access.accounts


def _pool(stack: Stack, pool: Pool) -> PoolPolicy:
    idle = pool.idle
    return PoolPolicy(
        market=str(pool.market),
        min_size=pool.size.min,
        idle_after_hours=idle.after_hours,
        grace_minutes=idle.grace_minutes,
        min_uptime_minutes=idle.min_uptime_minutes,
        coverage_percent=idle.coverage_percent,
        action=str(idle.action),
        terminate_stopped_after_days=idle.terminate_stopped_after_days,
        quiet_hours=tuple(
            QuietHours(CLOCK.read(span.start), CLOCK.read(span.end)) for span in idle.quiet_hours
        ),
        quiet_weekends=idle.quiet_weekends,
        instance_store_scratch=any(catalog.load().get(name).instance_store_scratch for name in pool.types),
        max_lifetime_hours=pool.max_lifetime_hours,
        scale_in_alarm=low_load_alarm(stack, pool),
        require_acknowledgement=True,
        hourly_price={name: _price(stack, pool, name) for name in pool.types},
        sensors=_sensors(idle),
        capacity=_capacity(stack, pool) if stack.image.managed else None,
    )


def _sensors(idle: Idle) -> SensorPolicy:
    return SensorPolicy(
        watch=tuple(idle.watch),
        command=tuple(idle.command),
        command_timeout_s=idle.command_timeout_s,
        cpu_cores=idle.limits.cpu_cores,
        disk_kib_per_s=idle.limits.disk_kib_per_s,
        network_kib_per_s=idle.limits.network_kib_per_s,
    )


def _capacity(stack: Stack, pool: Pool) -> CapacityPolicy:
    """Return how the mover grows a pool; it needs the agent, which reports that an instance came up.

    The queue counts an instance of the pool as the least of any of its types.
    """
    types = [catalog.load().get(name) for name in pool.types] if stack.queued else []
    return CapacityPolicy(
        groups=tuple(plan.label for plan in group_plans(stack, pool)),
        max_size=pool.size.max,
        spare=pool.spare,
        together=pool.efa or pool.erdma,
        scale_out_alarms=tuple(high_load_alarms(stack, pool)),
        on_demand_fallback=pool.on_demand_fallback,
        queue_gpus=min((known.gpu_count for known in types), default=None),
        queue_cpus=min((known.vcpu for known in types), default=None),
        queue_memory_mib=min(
            (int(known.memory_gib * MIB_PER_GIB * FOR_JOBS) for known in types), default=None
        ),
    )


def _price(stack: Stack, pool: Pool, name: str) -> Decimal | None:
    """Return what one hour less saves; None where the price is unknown.

    The stack file's assumption comes first; a list price counts only in its own region and currency. Only
    pools on demand have a price here: spot prices change by the hour, and a reservation costs the same
    unused.
    """
    if pool.market is not Market.ON_DEMAND:
        return None
    if (assumed := stack.budget.assume.get(name)) is not None:
        return assumed
    price = catalog.load().get(name).price
    if price is None or price.currency != stack.budget.currency or price.region != stack.region:
        return None
    return price.amount_per_hour
