"""Limits of growth: ``capacity/growth.json``, which the mover writes for users' commands. Pure.

It lets ``gpu-fleet submit`` refuse at once a job whose instances nothing but an operator would bring.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpu_fleet_image.controllers.mover.pool_view import MoneyLeft
from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import MAY_LACK, Record

GROWTH = keys.GROWTH
SCHEMA = 1
# The mover says so each minute; what an older word says may be over.
FRESH = timedelta(minutes=5)
LONGEST = 1 << 20  # bytes of the object


@dataclass(frozen=True)
class Growth(Record):
    """Money and sizes of the stack as of the mover's last pass.

    Attributes:
        left: budget less what is spent this month; None where nobody knows yet.
        prices: pool -> what an hour of an instance costs at most; without those that nobody knows.
        frozen: pools that take no instances now.
        totals: pool -> instances that it has or is about to have; without those that nobody knows.
        teams: team that starts nothing now -> why.
    """

    at: datetime
    left: Decimal | None
    prices: Mapping[str, Decimal]
    frozen: frozenset[str]
    currency: str
    totals: Mapping[str, int] = field(default_factory=dict)
    teams: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = field(default=SCHEMA, metadata=MAY_LACK)


def of(money: MoneyLeft, totals: Mapping[str, int], now: datetime) -> Growth:
    """Return the limits after a pass."""
    prices = {pool: price for pool, price in money.prices.items() if price is not None}
    return Growth(now, money.left, prices, money.frozen, money.currency, totals, money.frozen_teams)


def refusal(growth: Growth, pool: str, nodes: int, now: datetime) -> str:
    """Return why a pool cannot grow until an operator changes that; empty where it can, or nobody knows."""
    number = max(0, nodes - growth.totals.get(pool, nodes))
    if number == 0 or abs(now - growth.at) > FRESH:
        return ""
    new_month = f"; the new month begins at {_next_month(now):%Y-%m-%d %H:%M} UTC"
    if pool in growth.frozen:
        return (
            f"--pool {pool!r}: frozen, since the budget is spent, and {number} more of its instances are "
            f"needed; allowed after gpu-fleet unfreeze, or with a higher budget.monthly{new_month}"
        )
    if growth.left is None:
        return ""
    price = growth.prices.get(pool)
    if price is None:
        return f"--pool {pool!r}: nobody knows what it costs: budget.assume in the stack file says it"
    left = max(growth.left, Decimal(0))
    if price * number > left:
        return (
            f"--pool {pool!r}: the instances that are missing, {number}, cost {price * number:,.2f} "
            f"{growth.currency} an hour; allowed: the {left:,.2f} that are left of budget.monthly this month"
            f"{new_month}"
        )
    return ""


def _next_month(now: datetime) -> datetime:
    """Return the start of the next month, when the meter begins at zero."""
    first = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=31)).replace(day=1)
