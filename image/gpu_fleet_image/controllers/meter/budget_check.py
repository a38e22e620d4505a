"""Budget check after each sweep: count the stack's costs, and compare them with the budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_fleet_image.controllers.meter import daily_report, freezer, meter, team_budgets
from gpu_fleet_image.controllers.meter.freeze_rules import Freeze
from gpu_fleet_image.controllers.meter.meter_state import MeterReading
from gpu_fleet_image.controllers.meter.spending import Spending
from gpu_fleet_image.controllers.meter.team_budgets import TeamSpending
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.model import Inventory
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.store import Store

KEY = "meter.json"
TRIES = 3  # another sweep may write at the same time; then this one continues from its count


@dataclass(frozen=True)
class SweptFleet:
    """State after a sweep, to be counted.

    Attributes:
        fleet: the fleet as the sweep saw it, with terminated instances.
        ended: ids of instances that it stopped or terminated.
    """

    now: datetime
    fleet: Inventory
    ended: Sequence[str]


def settle(
    cloud: SweepCloud, policy: Policy, swept: SweptFleet, *, act: bool
) -> tuple[Spending | None, list[Failure]]:
    """Count the costs, compare them with the budget, and report the days that ended.

    Args:
        act: allows changes of groups; false in a dry run.

    Returns:
        The spending, None if the policy has no budget, there is no bucket, or the meter could not be read;
        and the failures.
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
    try:  # also where nothing freezes any more: what a freeze or a drain has closed opens again
        freeze, failed = _hold(cloud, policy, swept, reading, act=act)
        failures += failed
    except (CloudError, DeadlineError) as error:
        failures.append(Failure("*", "freeze", str(error)))
    teams: Mapping[str, TeamSpending] = {}
    try:
        failures += team_budgets.settle(cloud, policy, reading, act=act)
        teams = _teams(store, budget, reading.until)
    except (CloudError, DeadlineError) as error:
        failures.append(Failure("*", "budgets of teams", str(error)))
    spending = replace(_spending(policy, budget, reading, swept.fleet, freeze), teams=teams)
    try:
        if reported := daily_report.report(cloud, store, policy, reading):
            _forget_reported(store, reported)
    except (CloudError, DeadlineError) as error:
        failures.append(Failure("*", "report the day", str(error)))
    return spending, failures


def read_spending(cloud: SweepCloud, policy: Policy, fleet: Inventory, now: datetime) -> Spending | None:
    """Return the stack's costs at this time, writing nothing; None if nothing is metered.

    Raises CloudError if the meter or the freeze could not be read.
    """
    store = cloud.store
    if policy.budget is None or store is None:
        return None
    before = standing(store)
    if before is None:
        return None
    # Without an answer, spot instances count at their maximum price; the sweep's own report has the failure.
    budget, _ = _at_market_prices(cloud, policy.budget, fleet)
    reading, _ = meter.advance(before, fleet, budget, policy.currency, now)
    freeze = freezer.read(store, now)[0] if budget.freezes else None
    return replace(_spending(policy, budget, reading, fleet, freeze), teams=_teams(store, budget, now))


def _teams(store: Store, budget: BudgetPolicy, now: datetime) -> Mapping[str, TeamSpending]:
    """Return the spending of teams with a budget as last counted; nothing is read where none has one."""
    return team_budgets.read(store, now)[0].teams if budget.teams else {}


def _at_market_prices(
    cloud: SweepCloud, budget: BudgetPolicy, fleet: Inventory
) -> tuple[BudgetPolicy, list[Failure]]:
    """Return the budget at the market's spot prices, which it limits; unchanged without an answer."""
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
    reserved = meter.reserved_in_use(reading.running.values(), budget, reading.until)
    rates = meter.per_hour(fleet.instances, budget, reserved, reading.running)
    unpriced = meter.unpriced(fleet.instances, budget, reading.running)
    return Spending(policy.currency, budget, reading, rates, unpriced, freeze, tuple(reserved))


def _count(store: Store, policy: Policy, budget: BudgetPolicy, swept: SweptFleet) -> MeterReading:
    """Advance the meter in the bucket to the sweep's time. Raises CloudError."""
    for _ in range(TRIES):
        before, version = _read(store)
        reading, days = meter.advance(before, swept.fleet, budget, policy.currency, swept.now)
        reading = meter.note_ends(reading, swept.ended, swept.now)
        # A day is recorded before the meter passes it; an existing record stays.
        for day in days:
            daily_report.keep(store, day)
        reading = replace(reading, unreported=(*reading.unreported, *(day.name for day in days)))
        if store.move_on(KEY, reading.to_json(), version) is not None:
            return reading
    raise CloudError("other sweeps changed the meter at the same time, several times")


def standing(store: Store) -> MeterReading | None:
    """Return the meter's reading; None if nothing was metered. Raises CloudError."""
    return _read(store)[0]


def _read(store: Store) -> tuple[MeterReading | None, str | None]:
    stored = store.get(KEY)
    return (None, None) if stored is None else (MeterReading.from_json(stored.content, KEY), stored.version)


def _forget_reported(store: Store, reported: Iterable[str]) -> None:
    """Remove reported days from the meter.

    If another sweep writes at the same time, the marker of the day's report keeps users from two notices.
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
