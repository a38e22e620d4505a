"""Limits of growth: ``capacity/growth.json``, which the mover writes for users' commands. Pure.

It lets ``gpu-fleet submit`` refuse at once a job whose instances nothing but an operator would bring.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from gpu_fleet_image.controllers.mover.pool_view import MoneyLeft
from gpu_fleet_image.core import keys
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import format_time, parse_time

GROWTH = keys.GROWTH
SCHEMA = 1
# The mover says so each minute; what an older word says may be over.
FRESH = timedelta(minutes=5)
LONGEST = 1 << 20  # bytes of the object


@dataclass(frozen=True)
class Growth:
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


def to_json(money: MoneyLeft, totals: Mapping[str, int], now: datetime) -> dict[str, Any]:
    """Return the content of the object."""
    return {
        "schema_version": SCHEMA,
        "at": format_time(now),
        "left": None if money.left is None else str(money.left),
        "prices": {pool: str(price) for pool, price in sorted(money.prices.items()) if price is not None},
        "frozen": sorted(money.frozen),
        "currency": money.currency,
        "totals": dict(sorted(totals.items())),
        "teams": dict(sorted(money.frozen_teams.items())),
    }


def growth_of(raw: Mapping[str, Any]) -> Growth:
    """Read what ``to_json`` wrote. Raises CloudError if it is damaged."""
    try:
        return Growth(
            parse_time(raw["at"]),
            None if raw["left"] is None else Decimal(raw["left"]),
            {str(pool): Decimal(price) for pool, price in raw["prices"].items()},
            frozenset(map(str, raw["frozen"])),
            str(raw["currency"]),
            {str(pool): int(total) for pool, total in raw["totals"].items()},
            {str(team): str(why) for team, why in raw["teams"].items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidOperation) as error:
        raise CloudError(f"{GROWTH}: {error!r}", "Malformed") from error


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
