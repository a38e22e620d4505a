"""Budget freeze: some pools do not scale out once the month has cost too much. Pure.

A freeze stops and terminates no instance. The two highest of the budget's percentages trigger it. At the
lower one, groups are capped at their present size. At the higher one they are closed: they start no instance,
and instances that leave are not replaced. A group's limit never falls below its running instances. A new
month, a larger budget or a user's ``gpu-fleet unfreeze`` restores every group's limit; an ``unfreeze`` of the
lower stage does not prevent the higher one.

The groups of a pool that drains (``size.max`` is 0) are closed in the same way, whatever is spent. They open
once the pool takes instances again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from typing import Annotated

from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.cloud import FreezableGroups
from gpu_fleet_image.core.document import MAY_LACK, Form, Record
from gpu_fleet_image.core.model import Group


class FreezeStage(IntEnum):
    """Stage of a freeze; the metric ``FreezeStage``."""

    OPEN = 0
    CAPPED = 1
    CLOSED = 2

    @property
    def word(self) -> str:
        """Name of the stage, for users and records."""
        return self.name.lower()


def _stage(word: object) -> FreezeStage:
    stages = {stage.word: stage for stage in FreezeStage}
    if str(word) not in stages:
        raise ValueError
    return stages[str(word)]


_WORD = Form("open, capped, closed", _stage, lambda stage: stage.word)


@dataclass(frozen=True)
class Before(Record):
    """State of a group before a freeze.

    Attributes:
        closed: an operator had closed it, so it stays closed.
        cap: its limit while the pools are capped.
    """

    max_size: int
    closed: bool
    cap: int


@dataclass(frozen=True)
class Freeze(Record):
    """A stack's freeze, as the bucket holds it.

    Attributes:
        month: its month, ``2026-11``.
        lifted: highest stage that a user lifted this month.
        groups: group -> its state before.
    """

    month: str
    stage: Annotated[FreezeStage, _WORD] = FreezeStage.OPEN
    since: datetime | None = None
    lifted: Annotated[FreezeStage, _WORD] = FreezeStage.OPEN
    groups: Mapping[str, Before] = field(default_factory=dict)
    schema_version: int = field(default=1, metadata=MAY_LACK)


def due(spent: Decimal, budget: BudgetPolicy) -> FreezeStage:
    """Return the stage for the money spent."""
    if not budget.freezes:
        return FreezeStage.OPEN
    *_, cap_at, close_at = (budget.monthly * percent / 100 for percent in budget.percents)
    return (
        FreezeStage.CLOSED
        if spent >= close_at
        else FreezeStage.CAPPED
        if spent >= cap_at
        else FreezeStage.OPEN
    )


def follow(before: Freeze, spent: Decimal, budget: BudgetPolicy, now: datetime) -> Freeze:
    """Return the freeze from now on; its groups are not changed yet.

    Args:
        before: the freeze until now.
        spent: in the month of ``now``.
        now: aware UTC.
    """
    month = f"{now:%Y-%m}"
    lifted = before.lifted if before.month == month else FreezeStage.OPEN
    called_for = due(spent, budget)
    stage = called_for if called_for > lifted else FreezeStage.OPEN
    since = before.since if stage is before.stage else now
    return replace(before, month=month, stage=stage, since=since, lifted=lifted)


def lift(before: Freeze, spent: Decimal, budget: BudgetPolicy, now: datetime) -> Freeze:
    """Return the freeze after a user lifted it: the present spending freezes nothing more this month."""
    called_for = max(due(spent, budget), before.stage)
    return replace(
        before, month=f"{now:%Y-%m}", stage=FreezeStage.OPEN, since=now, lifted=max(before.lifted, called_for)
    )


def stage_of(freeze: Freeze, group: Group, budget: BudgetPolicy) -> FreezeStage:
    """Return the stage of one group; that of a pool that the policy does not name follows the freeze."""
    pool = budget.pools.get(group.pool)
    if pool is not None and pool.drains:
        return FreezeStage.CLOSED
    return freeze.stage if pool is None or pool.freezes else FreezeStage.OPEN


def note(freeze: Freeze, groups: Iterable[Group], budget: BudgetPolicy) -> Freeze:
    """Return the freeze with each group's present state, recorded before anything is changed.

    A limit above the one from before the freeze was set by users: no freeze sets one so high.
    """
    known = dict(freeze.groups)
    for group in groups:
        if group.name in known:
            known[group.name] = replace(
                known[group.name], max_size=max(known[group.name].max_size, group.max_size)
            )
        elif group.pool in budget.pools and stage_of(freeze, group, budget) is not FreezeStage.OPEN:
            known[group.name] = Before(group.max_size, group.closed, _room(group))
    return replace(freeze, groups=known)


@dataclass(frozen=True)
class GroupChange:
    """One change to a group: a new limit, or closed (True) or opened (False)."""

    group: str
    max_size: int | None = None
    closed: bool | None = None

    def __str__(self) -> str:
        """Return the change for the report."""
        if self.max_size is not None:
            return f"max of {self.group} = {self.max_size}"
        return f"{'close' if self.closed else 'open'} {self.group}"

    def take(self, groups: FreezableGroups) -> None:
        """Make the change; raises CloudError."""
        if self.max_size is not None:
            groups.limit(self.group, self.max_size)
        elif self.closed:
            groups.close(self.group)
        else:
            groups.open(self.group)


def steps(freeze: Freeze, groups: Iterable[Group], budget: BudgetPolicy) -> Iterator[GroupChange]:
    """Yield the changes that bring the groups in line with the freeze; none if they are."""
    for group in groups:
        before = freeze.groups.get(group.name)
        if before is None:
            continue
        stage = stage_of(freeze, group, budget)
        closed = stage is FreezeStage.CLOSED or before.closed
        if closed != group.closed:
            yield GroupChange(group.name, closed=closed)
        max_size = _limit(stage, group, before)
        if max_size != group.max_size:
            yield GroupChange(group.name, max_size=max_size)


def _limit(stage: FreezeStage, group: Group, before: Before) -> int:
    if stage is FreezeStage.OPEN:
        return before.max_size
    if stage is FreezeStage.CAPPED:
        return max(before.cap, _room(group))
    return _room(group)


def _room(group: Group) -> int:
    """Return the smallest limit that terminates no instance."""
    return max(group.size, group.min_size)
