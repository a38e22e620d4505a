"""A month's savings and a day's GPU hours for programs; docs/reference/json.md has the keys. Pure."""

from decimal import Decimal
from typing import Any

from gpu_fleet_image.console.operators.monthly_savings import Summary
from gpu_fleet_image.controllers.meter.efficiency import Efficiency
from gpu_fleet_image.core.times import format_time

OF_A_MONTH = ("at", "instance", "pool", "owner", "price_per_hour", "saved", "until")
HOURS = ("rented", "computing", "idle", "unknown", "unused", "saved")
OF_A_DAY = ("pool", *HOURS, "cost", "sm_active")


def month(summary: Summary, stack: str) -> dict[str, Any]:
    """Return a month's stops and terminations, with what each has saved."""
    return {
        "stack": stack,
        "month": summary.month.name,
        "currency": summary.currency,
        "saved": str(summary.total),
        "unpriced": summary.unpriced,
        "rows": [
            {
                "at": format_time(saving.end.at),
                "instance": saving.end.instance_id,
                "pool": saving.end.pool,
                "owner": saving.end.owner,
                "price_per_hour": _text(saving.end.price_per_hour),
                "saved": _text(saving.amount),
                "until": format_time(saving.until),
            }
            for saving in summary.savings
        ],
    }


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)


def day(efficiency: Efficiency) -> dict[str, Any]:
    """Return a day's GPU hours and cost by pool."""
    return {
        "stack": efficiency.stack,
        "day": efficiency.name,
        "currency": efficiency.currency,
        "cost": f"{efficiency.total('cost'):.2f}",
        "saved_cost": f"{efficiency.saved_cost:.2f}",
        "unpriced": efficiency.unpriced,
        "rows": [
            {
                "pool": pool.pool,
                **{name: f"{getattr(pool, name):.2f}" for name in HOURS},
                "cost": f"{pool.cost:.2f}",
                "sm_active": None if pool.sm_active is None else f"{pool.sm_active:.2f}",
            }
            for pool in efficiency.pools
        ],
    }
