"""Demand of a stack when every pool is at its maximum. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog.instance_types import InstanceType
from gpu_fleet_stacks.settings import CapacityReservation, Market, Pool, Stack
from gpu_fleet_stacks.settings.quantities import Level, instances, on_demand_instances
from gpu_fleet_stacks.settings.schema import MOMENT

# Paid in advance, under limits of their own.
OUTSIDE_OF_QUOTAS = frozenset({Market.CAPACITY_BLOCK})


@dataclass(frozen=True)
class Demand:
    """Demand of a stack on one quota.

    Attributes:
        vcpus: virtual CPUs with every pool at its maximum.
    """

    vcpus: int
    pools: tuple[str, ...]


def vcpus(stack: Stack, quota_of: Callable[[InstanceType, Market], str | None]) -> dict[str, Demand]:
    """Return the virtual CPUs of all pools, by the quota that limits them.

    Args:
        quota_of: the quota of a type in a market; None where there is none.
    """
    demands: dict[str, Demand] = {}
    for pool in stack.pools:
        for market, count in by_market(stack, pool):
            largest: dict[str, int] = {}
            for kind in types_of(pool):
                quota = quota_of(kind, market)
                if quota is not None and count:
                    largest[quota] = max(kind.vcpu, largest.get(quota, 0))
            for quota, cpus in largest.items():
                before = demands.get(quota, Demand(0, ()))
                demands[quota] = Demand(before.vcpus + cpus * count, (*before.pools, pool.name))
    return demands


def reservation_subject(pool: Pool, held: CapacityReservation) -> str:
    """Return the subject of a reservation's finding."""
    return f"reservation {held.id} of {pool.name}" if pool.reservations else f"reservation of {pool.name}"


def reservation_key(pool: Pool) -> str:
    """Return the key of the stack file that names a pool's reservations."""
    return "pools.reservations" if pool.reservations else "pools.reservation_id"


def end_unlike(pool: Pool, held: CapacityReservation, ends: datetime | None) -> str:
    """Return that a reservation ends at another minute than the stack file says; empty where it does not.

    Args:
        ends: its end by the cloud; None for none.
    """
    said = None if ends is None else ends.astimezone(UTC).replace(second=0, microsecond=0)
    if not pool.reservations or said == held.ends_at:
        return ""
    there = "has no end" if said is None else f"ends {said:{MOMENT}}"
    return f"{there}, and {reservation_key(pool)} says until {held.until or 'null'}"


def by_market(stack: Stack, pool: Pool) -> Iterator[tuple[Market, int]]:
    """Yield the most instances that a pool buys in each market."""
    if pool.market in OUTSIDE_OF_QUOTAS:
        return
    most = instances(stack, pool)[Level.MAX]
    if pool.market is Market.SPOT:
        certain = on_demand_instances(stack, pool)[Level.MAX]
        yield Market.ON_DEMAND, certain
        yield Market.SPOT, most - certain
        if pool.on_demand_fallback:
            yield Market.ON_DEMAND, most - certain
    else:
        yield pool.market, most


def types_of(pool: Pool) -> list[InstanceType]:
    """Return the catalog's entries of a pool's types."""
    known = catalog.load()
    return [known.get(name) for name in pool.types]
