"""Plan of a pool on either cloud: scaling groups, load alarms and tags. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings.schema import Grouping, Market, Pool, Size, Stack

CPU_OUT_PERCENT = 80
CPU_IN_PERCENT = 30
GPU_OUT_PERCENT = 80
COOLDOWN_OUT_S = 300
COOLDOWN_IN_S = 600
PERIOD_S = 60


@dataclass(frozen=True)
class GroupPlan:
    """One scaling group of a pool, before any id is known.

    Attributes:
        label: the pool's name, with the zone where the pool has a group for each.
        zones: where it may start instances.
        size: its size. Of a pool with a group for each zone, the first zone's group gets the pool's minimum
            and desired size; the others start empty and are used when the first zone has no capacity.
        first: whether it is the pool's first.
        market: how it buys.
        reservation: the reservation in which alone it starts instances; None for none.
    """

    label: str
    zones: tuple[str, ...]
    size: Size
    first: bool = True
    market: Market = Market.ON_DEMAND
    reservation: str | None = None


def group_plans(stack: Stack, pool: Pool) -> tuple[GroupPlan, ...]:
    """Return the scaling groups of a pool, in the order in which they try to start instances."""
    usual = _usual_plans(stack, pool)
    if not (pool.on_demand_fallback and stack.cloud is Cloud.AWS):
        return usual  # a group of Alibaba Cloud buys on demand itself where it finds no spot instance
    return usual + tuple(
        GroupPlan(f"{plan.label}-{Market.ON_DEMAND}", plan.zones, _empty(pool), False, Market.ON_DEMAND)
        for plan in usual
    )


def _usual_plans(stack: Stack, pool: Pool) -> tuple[GroupPlan, ...]:
    """Return one group for all zones, one for each, or one for each reservation; all in the pool's market."""
    if pool.reservations:
        return tuple(_reserved_plans(pool))
    zones, held = stack.zones_of(pool), pool.reservation_id
    if pool.grouping is Grouping.SINGLE:
        return (GroupPlan(pool.name, zones, pool.size, market=pool.market, reservation=held),)
    return tuple(
        GroupPlan(
            f"{pool.name}-{zone}",
            (zone,),
            _empty(pool) if index else pool.size,
            index == 0,
            pool.market,
            held,
        )
        for index, zone in enumerate(zones)
    )


def _reserved_plans(pool: Pool) -> Iterator[GroupPlan]:
    """Yield a group for each of several reservations: a full one sends the mover to the next.

    A launch template names one reservation. One that names a group of them (AWS) lets EC2 buy on demand once
    they are full. The first groups get the pool's minimum and desired size.
    """
    least, desired = pool.size.min, pool.size.desired
    for index, held in enumerate(pool.reservations):
        most = min(held.count, pool.size.max)
        size = Size(min=min(least, most), desired=min(desired, most), max=most)
        least, desired = least - size.min, desired - size.desired
        label = f"{pool.name}-{held.id}"
        yield GroupPlan(label, (held.zone,), size, index == 0, pool.market, held.id)


def _empty(pool: Pool) -> Size:
    return Size(min=0, desired=0, max=pool.size.max)


@dataclass(frozen=True)
class LoadAlarm:
    """One alarm on the load of a scaling group.

    Attributes:
        of_gpus: it watches how much the pool's GPUs compute, which agents publish, instead of the group's
            CPUs. Their memory would say nothing: one process fills it ahead, and may not compute.
        high: whether it watches for too much load, or for too little.
        for_s: how long the load must last.
    """

    label: str
    of_gpus: bool
    high: bool
    percent: int
    for_s: int

    @property
    def asks(self) -> str:
        """The effect of the alarm, for users."""
        return "one instance more" if self.high else "the sweep may terminate an idle instance"


_CPU_HIGH = LoadAlarm("cpu-high", of_gpus=False, high=True, percent=CPU_OUT_PERCENT, for_s=COOLDOWN_OUT_S)
_CPU_LOW = LoadAlarm("cpu-low", of_gpus=False, high=False, percent=CPU_IN_PERCENT, for_s=COOLDOWN_IN_S)
_GPU_HIGH = LoadAlarm("gpu-high", of_gpus=True, high=True, percent=GPU_OUT_PERCENT, for_s=COOLDOWN_OUT_S)
LOAD_ALARMS = (_CPU_HIGH, _CPU_LOW, _GPU_HIGH)


def load_alarms(plan: GroupPlan) -> tuple[LoadAlarm, ...]:
    """Return the alarms of a group: CPU for scale-out and scale-in, GPUs for scale-out.

    The GPUs are the whole pool's, so only its first group has that alarm: otherwise the groups of all zones
    would launch an instance at once.
    """
    return tuple(alarm for alarm in LOAD_ALARMS if plan.first or not alarm.of_gpus)


def alarm_name(stack: Stack, plan: GroupPlan, alarm: LoadAlarm) -> str:
    """Return an alarm's full name."""
    return naming.prefixed(stack.name, plan.label, alarm.label)


def low_load_alarm(stack: Stack, pool: Pool) -> str | None:
    """Return the alarm that asks the sweep for one instance less; None for a pool that does not scale.

    A pool has one such alarm, on its first group. A pool with a group for each zone launches in the first
    zone, and in others only where the first has no capacity: low load there is low load of the pool.
    """
    return alarm_name(stack, group_plans(stack, pool)[0], _CPU_LOW) if pool.scales else None


def high_load_alarms(stack: Stack, pool: Pool) -> tuple[str, ...]:
    """Return the alarms that ask the mover for one instance more; none for a pool that does not scale."""
    if not pool.scales:
        return ()
    return tuple(
        alarm_name(stack, plan, alarm)
        for plan in group_plans(stack, pool)
        for alarm in load_alarms(plan)
        if alarm.high
    )


def instance_tags(stack: Stack, pool: Pool) -> dict[str, str]:
    """Return the tags of an instance and its parts; ``managed`` allows the reaper to terminate it.

    Without an agent (``image.mode: none``) nothing reports whether the instance is used, so it has no
    ``managed``.
    """
    owner = pool.owner or stack.owner
    licence = {"managed": "true"} if stack.image.managed else {}
    name = naming.prefixed(stack.name, pool.name)
    return stack.tags | naming.tags(stack.name, owner, Name=name, pool=pool.name, **licence)
