"""Application of a freeze: recorded first, then applied to the groups, and notified."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from gpu_fleet_image.controllers.meter.freeze_rules import (
    Freeze,
    FreezeStage,
    follow,
    lift,
    note,
    stage_of,
    steps,
)
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.model import Group
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, DeadlineError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

KEY = "freeze.json"
RECORDS = "budget"  # prefix of records that are never overwritten
CENT = Decimal("0.01")
_SAYS = {
    FreezeStage.OPEN: "training pools start instances again",
    FreezeStage.CAPPED: "training pools are capped at their size",
    FreezeStage.CLOSED: "training pools start no new instances",
}
_UNFREEZE = 'Busy instances stay. gpu-fleet unfreeze --reason "..." lifts it for this month.'


@dataclass(frozen=True)
class Actor:
    """Author and reason of a change to a freeze."""

    name: str
    reason: str


SWEEP = Actor("sweep", "by the budget's thresholds")


def read(store: Store, now: datetime) -> tuple[Freeze, str | None]:
    """Return the freeze in the bucket, with its version for a replacement; raises CloudError."""
    stored = store.get(KEY)
    if stored is None:
        return Freeze(f"{now.astimezone(UTC):%Y-%m}"), None
    return Freeze.from_json(stored.content, KEY), stored.version


class Freezer:
    """Writer of one stack's freeze.

    Raises ConfigurationError if the cloud has no store, or the policy no budget.
    """

    def __init__(self, cloud: SweepCloud, policy: Policy, groups: Iterable[Group], spent: Decimal) -> None:
        if cloud.store is None or policy.budget is None:
            raise ConfigurationError("a freeze needs GPU_FLEET_LEDGER_URI and a policy with a budget")
        self._cloud, self._policy, self._spent = cloud, policy, spent
        self._store = cloud.store
        self._budget = policy.budget
        pools = self._budget.pools
        held = {name for name, pool in pools.items() if pool.freezes or pool.drains}
        self._names = {group.name for group in groups if group.pool in held}
        self._draining = any(pool.drains for pool in pools.values())

    def enforce(self, now: datetime) -> tuple[Freeze, list[Failure]]:
        """Bring the groups in line with the spending; if nothing is frozen, that costs one read.

        Returns:
            The freeze in force now, and the failed changes.

        Raises:
            CloudError: the freeze could not be read, or the change not be recorded; no group was changed.
        """
        before, version = read(self._store, now)
        after = follow(before, self._spent, self._budget, now)
        if after.stage is FreezeStage.OPEN and not after.groups and not self._draining:
            return after, []
        return self._change(before, after, version, SWEEP)

    def unfreeze(self, now: datetime, actor: Actor) -> tuple[Freeze, list[Failure]]:
        """Lift the freeze for the present spending; result and errors as for ``enforce``."""
        before, version = read(self._store, now)
        return self._change(before, lift(before, self._spent, self._budget, now), version, actor)

    def _change(
        self, before: Freeze, after: Freeze, version: str | None, actor: Actor
    ) -> tuple[Freeze, list[Failure]]:
        names = sorted(self._names | after.groups.keys())
        groups = self._cloud.instances.again((), names).groups if names else ()
        after = note(after, groups, self._budget)
        changed = after.stage is not before.stage or after.lifted > before.lifted
        if changed:
            self._record(before, after, actor)
        if after != before:
            version = self._write(after, version)
        failures = self._take_steps(after, groups)
        stages = {group.name: stage_of(after, group, self._budget) for group in groups}
        held = {
            name: state
            for name, state in after.groups.items()
            if stages.get(name, after.stage) is not FreezeStage.OPEN
        }
        if held != after.groups and not failures:
            after = replace(after, groups=held)
            self._write(after, version)
        if changed:
            failures += self._notify(after, actor)
        return after, failures

    def _take_steps(self, freeze: Freeze, groups: Iterable[Group]) -> list[Failure]:
        failures = []
        for step in steps(freeze, groups, self._budget):
            try:
                step.take(self._cloud.instances)
            except (CloudError, DeadlineError) as error:
                failures.append(Failure(step.group, str(step), str(error)))
        return failures

    def _write(self, freeze: Freeze, version: str | None) -> str:
        written = self._store.move_on(KEY, freeze.to_json(), version)
        if written is None:
            raise CloudError("another process changed the freeze at the same time; try again")
        return written

    def _record(self, before: Freeze, after: Freeze, actor: Actor) -> None:
        """Record the change before it is made, in an object that is never overwritten."""
        at = after.since or datetime.now(UTC)
        record = {
            "schema_version": 1,
            "at": format_time(at),
            "stack": self._policy.stack,
            "region": self._policy.region,
            "action": "freeze" if after.stage > before.stage else "unfreeze",
            "stage": after.stage.word,
            "stage_before": before.stage.word,
            "by": actor.name,
            "reason": actor.reason,
            "spent": str(self._spent.quantize(CENT)),
            "monthly": str(self._budget.monthly),
            "currency": self._policy.currency,
            "groups": sorted(after.groups),
        }
        self._store.create(f"{RECORDS}/{at:%Y/%m/%d}/{at:%Y%m%dT%H%M%SZ}-{after.stage.word}.json", record)

    def _notify(self, after: Freeze, actor: Actor) -> list[Failure]:
        if self._cloud.notifier is None:
            return []
        spent = f"{self._spent:.2f} of {self._budget.monthly} {self._policy.currency}"
        text = f"{spent} are spent in {after.month}: {_SAYS[after.stage]} ({actor.name}: {actor.reason})."
        if after.stage is not FreezeStage.OPEN:
            text += f"\n{_UNFREEZE}"
        try:
            self._cloud.notifier.send(f"{self._policy.stack}: {_SAYS[after.stage]}", text)
        except (CloudError, DeadlineError) as error:
            return [Failure("*", "notify of the freeze", str(error))]
        return []
