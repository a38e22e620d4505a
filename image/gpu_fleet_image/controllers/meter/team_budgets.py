"""Budgets of teams: the cost of each team this month, and the teams that start nothing more.

A team pays for the instances of its members, and for the time of their jobs in the queue. The sweep counts,
once a budget names a team, and writes ``team-budgets.json``. The mover and the queue's controller follow it:
a frozen team takes no instance and starts no job of the queue. Other teams go on, and what it holds stays and
may be used.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import ClassVar

from gpu_fleet_image.controllers.meter import chargeback, daily_report
from gpu_fleet_image.controllers.meter.freezer import RECORDS, Actor
from gpu_fleet_image.controllers.meter.meter import DAY
from gpu_fleet_image.controllers.meter.meter_state import MeterReading
from gpu_fleet_image.core import job_use, keys, roster
from gpu_fleet_image.core.budget_policy import FREEZE, BudgetPolicy, TeamBudget
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.document import MAY_LACK, Record
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.roster import NO_TEAM
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

LOG = logging.getLogger(__name__)
KEY = "team-budgets.json"
SCHEMA_VERSION = 1
_SWEEP = Actor("sweep", "by the team's budget")
_WRITTEN_WITHIN = timedelta(hours=1)
_ALL = (100,)  # percent, of a budget without thresholds of what is spent


@dataclass(frozen=True)
class TeamSpending(Record):
    """A team's cost compared with its budget.

    Attributes:
        passed: highest threshold that the cost has passed, in percent; 0 for none.
        frozen: it takes no instance and starts no job.
        lifted: a user lifted the freeze for this month.
    """

    spent: Decimal
    monthly: Decimal
    passed: int = 0
    frozen: bool = False
    lifted: bool = False

    def sentence(self, team: str, currency: str) -> str:
        """Return the spending in words."""
        share = f"{self.spent:,.2f} of {self.monthly:,} {currency} this month"
        return f"team {team} has spent {share}{', and is frozen' * self.frozen}"


@dataclass(frozen=True)
class TeamBudgets(Record):
    """The month of all teams, as the bucket holds it.

    Attributes:
        month: ``2026-11``.
        days: day that ended -> team -> cost.
        teams: team with a budget -> its spending.
        unread: those of the days whose record of the queue's jobs cannot be read, the next to try first.
    """

    IF_DAMAGED: ClassVar[str] = "; delete it to count the month again"
    month: str
    days: Mapping[str, Mapping[str, Decimal]] = field(default_factory=dict)
    teams: Mapping[str, TeamSpending] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION, metadata=MAY_LACK)

    @property
    def frozen(self) -> dict[str, TeamSpending]:
        """Teams that start nothing."""
        return {name: team for name, team in self.teams.items() if team.frozen}


def read(store: Store, now: datetime) -> tuple[TeamBudgets, str | None]:
    """Return the present month in the bucket, and its version for a replacement; raises CloudError."""
    stored, month = store.get(KEY), f"{now.astimezone(UTC):%Y-%m}"
    if stored is None:
        return TeamBudgets(month), None
    before = TeamBudgets.from_json(stored.content, KEY)
    return (before if before.month == month else TeamBudgets(month)), stored.version


def follow(
    before: TeamBudgets, days: Mapping[str, Mapping[str, Decimal]], budget: BudgetPolicy
) -> TeamBudgets:
    """Return the month after the costs of its days. Pure.

    Args:
        days: day -> team -> cost, with the present day.
    """
    teams = {}
    for name, own in budget.teams.items():
        spent = sum((costs.get(name, Decimal(0)) for costs in days.values()), Decimal(0))
        known = before.teams.get(name)
        teams[name] = _stage(own, spent, budget.percents or _ALL, lifted=bool(known and known.lifted))
    return replace(before, teams=teams)


def _stage(own: TeamBudget, spent: Decimal, percents: tuple[int, ...], *, lifted: bool) -> TeamSpending:
    passed = max((percent for percent in percents if spent * 100 >= own.monthly * percent), default=0)
    frozen = own.on_exceeded == FREEZE and passed == percents[-1] and not lifted
    return TeamSpending(spent, own.monthly, passed, frozen, lifted)


def settle(cloud: SweepCloud, policy: Policy, reading: MeterReading, *, act: bool) -> list[Failure]:
    """Count the month of each team with a budget, and notify of a threshold that one has passed.

    Without such a team it reads nothing.

    Args:
        act: allows to write; false in a dry run.

    Raises:
        CloudError: something could not be read or written; the next sweep counts again.
    """
    budget, store = policy.budget, cloud.store
    if budget is None or store is None or not budget.teams or not act:
        return []
    before, version = read(store, reading.until)
    teams = members_of(store)
    closed, unread = _closed_days(store, before, reading, teams, policy)
    today = chargeback.team_costs(reading.day, teams, job_use.load_readable(store, reading.day.name))
    kept = {day: costs for day, costs in closed.items() if _is_settled(day, reading.until)}
    after = replace(
        follow(before, {**closed, reading.day.name: today}, budget),
        days=kept,
        unread=tuple(day for day in unread if day in kept),
    )
    if store.move_on(KEY, after.to_json(), version) is None:
        return []  # another sweep counted at the same time
    failures = []
    for name, team in after.teams.items():
        known = before.teams.get(name, TeamSpending(Decimal(0), team.monthly))
        if team.passed > known.passed or team.frozen is not known.frozen:
            _record(store, policy, name, team, at=reading.until, actor=_SWEEP)
            failures += _notify(cloud, policy, name, team)
    return failures


def _closed(reading: MeterReading) -> Iterable[str]:
    """Return the days of the month before the present one."""
    first = reading.day.date.replace(day=1)
    return [f"{first + number * DAY:%Y-%m-%d}" for number in range((reading.day.date - first).days)]


def _is_settled(day: str, now: datetime) -> bool:
    """Return whether a day's record of the queue is whole: its controller ends it after midnight."""
    return now >= datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) + DAY + _WRITTEN_WITHIN


def _closed_days(
    store: Store, before: TeamBudgets, reading: MeterReading, teams: Mapping[str, str], policy: Policy
) -> tuple[dict[str, Mapping[str, Decimal]], list[str]]:
    """Return the days of the month before the present one, and those whose record of jobs cannot be read.

    Of these one is tried again at each sweep, in turn: of its jobs no team pays until then.
    """
    again, unread = before.unread[:1], list(before.unread[1:])
    closed: dict[str, Mapping[str, Decimal]] = {}
    for name in _closed(reading):
        if name in before.days and name not in again:
            closed[name] = before.days[name]
            continue
        use, day = job_use.load_readable(store, name), daily_report.load_metered(store, name)
        closed[name] = {} if day is None else chargeback.team_costs(day, teams, use)
        if day is not None and use is None and not policy.queued.isdisjoint(day.pools):
            LOG.error("event=queue-use-unread day=%s", name)
            unread.append(name)
    return closed, unread


def with_team(members: Mapping[str, str]) -> dict[str, str]:
    """Return account -> team, of those that have one."""
    return {name: team for name, team in members.items() if team != NO_TEAM}


def members_of(store: Store) -> dict[str, str]:
    """Return account -> team, or ``NO_TEAM``, of the accounts of the stack's instances now.

    Raises CloudError if the list of accounts is malformed, or could not be read.
    """
    stored = store.newest(keys.ACCOUNTS)
    try:
        users = roster.parse(stored.content) if stored is not None else ()
    except roster.RosterError as error:
        raise CloudError(str(error), "Malformed") from error
    return {user.name: user.team or NO_TEAM for user in users}


def lift(store: Store, policy: Policy, name: str, now: datetime, actor: Actor) -> TeamSpending:
    """Lift a team's freeze until the month ends; return its spending before. Raises CloudError."""
    before, version = read(store, now)
    team = before.teams.get(name)
    if team is None:
        known = ", ".join(sorted(before.teams)) or "there are none"
        raise CloudError(f"--team {name!r}: no budget of it is counted; allowed: {known}")
    after = replace(team, frozen=False, lifted=True)
    _record(store, policy, name, after, at=now, actor=actor)
    if store.move_on(KEY, replace(before, teams={**before.teams, name: after}).to_json(), version) is None:
        raise CloudError("a sweep counted at the same time; try again")
    return team


def _record(
    store: Store,
    policy: Policy,
    name: str,
    team: TeamSpending,
    *,
    at: datetime,
    actor: Actor,
) -> None:
    record = {
        "schema_version": SCHEMA_VERSION,
        "at": format_time(at),
        "stack": policy.stack,
        "region": policy.region,
        "action": "freeze" if team.frozen else "unfreeze" if team.lifted else "notify",
        "team": name,
        "by": actor.name,
        "reason": actor.reason,
        "currency": policy.currency,
        **team.to_json(),
    }
    store.create(f"{RECORDS}/{at:%Y/%m/%d}/{at:%Y%m%dT%H%M%SZ}-team-{name}.json", record)


def _notify(cloud: SweepCloud, policy: Policy, name: str, team: TeamSpending) -> list[Failure]:
    if cloud.notifier is None:
        return []
    said = team.sentence(name, policy.currency)
    text = f"{said}."
    if team.frozen:
        text += (
            " It takes no instance and starts no job. Its jobs and instances stay, and other teams go on. "
            f'gpu-fleet unfreeze --team {name} --reason "..." lifts it for this month.'
        )
    try:
        cloud.notifier.send(f"{policy.stack}: {said}", text)
    except (CloudError, DeadlineError) as error:
        return [Failure("*", f"notify of the budget of team {name}", str(error))]
    return []
