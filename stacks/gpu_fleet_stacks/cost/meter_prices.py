"""Prices for the sweep's meter: the budget, and an hour of each instance. Pure.

One instance costs the estimate of a pool of one; shared parts cost the estimate of an empty stack.
"""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from gpu_fleet_image.core.budget_policy import BudgetPolicy, PaidReservation, PoolPrices, TeamBudget
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import Cost
from gpu_fleet_stacks.settings import Market, Pool, Purpose, Size, Stack, ThresholdKind
from gpu_fleet_stacks.settings.pools import group_plans
from gpu_fleet_stacks.settings.quantities import CostKind, Level, reserved_instances

SMALLEST = Decimal("0.000001")  # currency units an hour
ONE_INSTANCE = Size(min=0, desired=1, max=1)


def budget(stack: Stack) -> BudgetPolicy:
    """Return what a month may cost and what the meter counts with, in the budget's currency.

    Raises CurrencyError if a price has no rate to that currency.
    """
    said = stack.budget
    types = dict.fromkeys(name for pool in stack.pools for name in pool.types)
    cost = estimate(stack)
    return BudgetPolicy(
        monthly=Decimal(said.monthly),
        percents=tuple(at.percent for at in said.thresholds if at.kind is ThresholdKind.ACTUAL),
        on_exceeded=str(said.on_exceeded),
        shared_per_hour=_shared(cost),
        pools={pool.name: _pool(stack, pool) for pool in stack.pools},
        teams={
            name: TeamBudget(Decimal(team.monthly), str(team.on_exceeded))
            for name, team in sorted(stack.teams.items())
            if team.monthly is not None
        },
        assumed={name: said.assume[name] for name in types if name in said.assume},
        lacks=tuple(sorted({each.what for each in cost.unknown if each.what.split()[0] not in types})),
        borrowed=tuple(sorted({quote.region for quote in cost.elsewhere})),
    )


def _pool(stack: Stack, pool: Pool) -> PoolPrices:
    """Return the prices of a pool's types; 0 for a prepaid capacity block."""
    usual = Market.ON_DEMAND if pool.market is Market.SPOT else pool.market
    return PoolPrices(
        freezes=pool.purpose is Purpose.TRAINING,
        on_demand=dict(_prices(stack, pool, usual)),
        spot=dict(_prices(stack, pool, Market.SPOT)) if pool.market is Market.SPOT else {},
        disk_per_hour=_hour(_of_one(stack, pool, pool.types[0], usual), pool, CostKind.DISKS) or Decimal(0),
        gpus={name: catalog.load().get(name).gpu_count for name in pool.types},
        reserved=reserved_instances(pool),
        drains=pool.drains,
        reservations=tuple(_reservations(stack, pool)),
    )


def _reservations(stack: Stack, pool: Pool) -> Iterator[PaidReservation]:
    """Yield the reservations of a pool with several; each has a group of its own."""
    plans = {plan.reservation: plan for plan in group_plans(stack, pool)}
    for held in pool.reservations:
        group = naming.prefixed(stack.name, plans[held.id].label)
        yield PaidReservation(held.id, held.count, group, held.ends_at)


def _prices(stack: Stack, pool: Pool, market: Market) -> Iterator[tuple[str, Decimal | None]]:
    """Yield (type, highest price of an hour without disks); the price is None where none is public.

    Prices that the stack file assumes are in ``assumed`` instead.
    """
    for name in pool.types:
        if market is Market.CAPACITY_BLOCK:
            yield name, Decimal(0)
        elif name in stack.budget.assume:
            yield name, None
        else:
            yield name, _hour(_of_one(stack, pool, name, market), pool, CostKind.COMPUTE)


def _of_one(stack: Stack, pool: Pool, name: str, market: Market) -> Cost:
    single = replace(
        pool,
        types=(name,),
        market=market,
        reservations=(),
        size=ONE_INSTANCE,
        on_demand_base=0,
        on_demand_fallback=False,
    )
    return estimate(replace(stack, pools=(single,)))


def _hour(cost: Cost, pool: Pool, kind: CostKind) -> Decimal | None:
    """Return the highest hourly price of the pool's lines of a kind; None where a price is unknown."""
    lines = [line for line in cost.of_pool(pool.name) if line.kind is kind]
    if any(line.months is None for line in lines):
        return None
    return cost.hour(Level.NOW, lines).worst.amount.quantize(SMALLEST)


def _shared(cost: Cost) -> Decimal:
    return cost.hour(Level.MIN, cost.of_pool(None)).worst.amount.quantize(SMALLEST)
