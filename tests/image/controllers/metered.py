"""Fleets and budgets for the tests of the meter and the freeze."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpu_fleet_image.controllers.meter.meter import advance
from gpu_fleet_image.controllers.meter.meter_state import MeterReading
from gpu_fleet_image.core.budget_policy import BudgetPolicy, PoolPrices
from gpu_fleet_image.core.model import TAG_OWNER, TAG_POOL, Instance, Inventory

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def prices(**changes: Any) -> PoolPrices:
    """Return the prices of a pool whose g5.xlarge costs 2 an hour, 1 on spot, its disks 0.10."""
    known: dict[str, Any] = {
        "freezes": False,
        "on_demand": {"g5.xlarge": Decimal(2), "p4d.24xlarge": Decimal(32)},
        "spot": {"g5.xlarge": Decimal(1), "p4d.24xlarge": None},
        "disk_per_hour": Decimal("0.10"),
        "gpus": {"g5.xlarge": 1, "p4d.24xlarge": 8},
    }
    return PoolPrices(**(known | changes))


def budget(**changes: Any) -> BudgetPolicy:
    """Return a budget of 1,000 a month for the pools ``dev`` and ``train``; the second freezes."""
    known: dict[str, Any] = {
        "monthly": Decimal(1000),
        "percents": (80, 100),
        "on_exceeded": "freeze",
        "shared_per_hour": Decimal("0.50"),
        "pools": {"dev": prices(), "train": prices(freezes=True)},
    }
    return BudgetPolicy(**(known | changes))


def make_instance(
    name: str = "i-1", pool: str = "dev", launched_at: datetime = NOON, **changes: Any
) -> Instance:
    """Return a running g5.xlarge."""
    tags = {TAG_POOL: pool, TAG_OWNER: "ada"}
    known: dict[str, Any] = {"type": "g5.xlarge", "state": "running", "tags": tags}
    return Instance(id=name, launched_at=launched_at, **(known | changes))


def fleet(*running: Instance, gone: tuple[Instance, ...] = ()) -> Inventory:
    """Return instances as the cloud lists them."""
    return Inventory(running, gone=gone)


def metered(before: MeterReading | None, seen: Inventory, now: datetime, **changes: Any) -> MeterReading:
    """Return the reading after a sweep, without its closed days."""
    return advance(before, seen, budget(**changes), "USD", now)[0]


def at_noon(*running: Instance) -> MeterReading:
    """Return a meter that began at noon, when these instances were launched."""
    return metered(None, fleet(*running), NOON)
