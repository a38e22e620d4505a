"""After each sweep: what the stack costs is counted, and held against its budget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_fleet_image.controllers.meter import daily_report, freezer, meter
from gpu_fleet_image.controllers.meter.freeze_rules import Freeze
from gpu_fleet_image.controllers.meter.meter_state import MeterReading, from_json
from gpu_fleet_image.controllers.meter.spending import Spending
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.model import Inventory
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.store import Store

KEY = "meter.json"
TRIES = 3  # another sweep may count at the same moment; then this one counts on from there


@dataclass(frozen=True)
class SweptFleet:
    """What a sweep leaves to be counted.

    Attributes:
        fleet: what was looked at, terminated instances included.
        ended: ids of those that it stopped or terminated.
    """

    now: datetime
    fleet: Inventory
    ended: Sequence[str]


def settle(
    cloud: SweepCloud, policy: Policy, swept: SweptFleet, *, act: bool
) -> tuple[Spending | None, list[Failure]]:
    """Count, hold against the budget, and report the days that ended.

    Args:
        act: groups may be changed; not in a dry run.

    Returns:
        The spending, None where the policy has no budget, there is no bucket, or the meter could not be
        read; and what failed.
    """
    store = cloud.store
    if policy.budget is None or store is None:
        return None, []
    budget, failures = _at_market_prices(cloud, policy.budget, swept.fleet)
    try:
        reading = _count(store, policy, budget, swept)
    except (CloudError, DeadlineError) as error:
        return None, [*failures, Failure("*", "meter", str(error))]
    freeze = None
    if budget.freezes:
        try:
            freeze, failed = _hold(cloud, policy, swept, reading, act=act)
            failures += failed
        except (CloudError, DeadlineError) as error:
            failures.append(Failure("*", "freeze", str(error)))
    spending = _spending(policy, budget, reading, swept.fleet, freeze)
    try:
        if reported := daily_report.report(cloud, store, policy, reading):
            _forget_reported(store, reported)
    except (CloudError, DeadlineError) as error:
        failures.append(Failure("*", "report the day", str(error)))
    return spending, failures


def read_spending(cloud: SweepCloud, policy: Policy, fleet: Inventory, now: datetime) -> Spending | None:
    """What the stack costs as of now, with nothing written; None where nothing is metered.

    Raises:
        CloudError: the meter or the freeze could not be read.
    """
    store = cloud.store
    if policy.budget is None or store is None:
        return None
    before = standing(store)
    if before is None:
        return None
    # Without an answer spot counts at most; that the sweep got none, its own report says.
    budget, _ = _at_market_prices(cloud, policy.budget, fleet)
    reading, _ = meter.advance(before, fleet, budget, policy.currency, now)
    freeze = freezer.read(store, now)[0] if budget.freezes else None
    return _spending(policy, budget, reading, fleet, freeze)


def _at_market_prices(
    cloud: SweepCloud, budget: BudgetPolicy, fleet: Inventory
) -> tuple[BudgetPolicy, list[Failure]]:
    """The budget with what spot instances cost now, at most what it says; without an answer it stays."""
    types = sorted(
        {instance.type for instance in fleet.instances if instance.spot and instance.state in meter.BILLED}
    )
    if cloud.spot_prices is None or not types:
        return budget, []
    try:
        market = cloud.spot_prices(types)
    except (CloudError, DeadlineError) as error:
        return budget, [Failure("*", "read spot prices", str(error))]
    return meter.with_spot_prices(budget, market), []


def _spending(
    policy: Policy, budget: BudgetPolicy, reading: MeterReading, fleet: Inventory, freeze: Freeze | None
) -> Spending:
    rates = meter.per_hour(fleet.instances, budget)
    unpriced = meter.unpriced(fleet.instances, budget)
    reserved = meter.reserved_in_use(fleet.instances, budget)
    return Spending(policy.currency, budget, reading, rates, unpriced, freeze, reserved)


def _count(store: Store, policy: Policy, budget: BudgetPolicy, swept: SweptFleet) -> MeterReading:
    """Move the meter in the bucket on to the sweep's moment.

    Raises:
        CloudError: it could not be read or written, or counts in another currency.
    """
    for _ in range(TRIES):
        before, version = _read(store)
        reading, days = meter.advance(before, swept.fleet, budget, policy.currency, swept.now)
        reading = meter.note_ends(reading, swept.ended, swept.now)
        # A day is on record before the meter moves past it; one that was written before stays as it is.
        for day in days:
            daily_report.keep(store, day)
        reading = replace(reading, unreported=(*reading.unreported, *(day.name for day in days)))
        if store.move_on(KEY, reading.to_json(), version) is not None:
            return reading
    raise CloudError("the meter was moved by others at the same moment, again and again")


def standing(store: Store) -> MeterReading | None:
    """Where the meter stands; None where nothing was metered. Raises CloudError."""
    return _read(store)[0]


def _read(store: Store) -> tuple[MeterReading | None, str | None]:
    stored = store.get(KEY)
    return (None, None) if stored is None else (from_json(stored.content, KEY), stored.version)


def _forget_reported(store: Store, reported: Iterable[str]) -> None:
    """A day that is reported stays so; where another sweep writes at the same moment, the marker of the day's
    report keeps users from two notices.
    """
    before, version = _read(store)
    if before is not None:
        left = tuple(name for name in before.unreported if name not in set(reported))
        store.move_on(KEY, replace(before, unreported=left).to_json(), version)


def _hold(
    cloud: SweepCloud, policy: Policy, swept: SweptFleet, reading: MeterReading, *, act: bool
) -> tuple[Freeze, list[Failure]]:
    if act:
        groups, spent = swept.fleet.groups, reading.month_cost
        return freezer.Freezer(cloud, policy, groups, spent).enforce(swept.now)
    assert cloud.store is not None, "the meter was just written there"
    return freezer.read(cloud.store, swept.now)[0], []
