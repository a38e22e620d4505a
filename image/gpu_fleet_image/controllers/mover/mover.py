"""One pass of the mover: read, decide, record, carry out.

A pass records its decisions before it carries them out: first the state, under the condition that no other
pass wrote it meanwhile, then a line in the ledger for each decision. The next pass finishes one that was cut
off in between.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from gpu_fleet_image.controllers.meter import team_budgets
from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.freeze_rules import FreezeStage
from gpu_fleet_image.controllers.meter.spending import Spending
from gpu_fleet_image.controllers.mover import growth
from gpu_fleet_image.controllers.mover.growth import GROWTH
from gpu_fleet_image.controllers.mover.placement import decide, totals, wants_money
from gpu_fleet_image.controllers.mover.pool_view import Action, MoneyLeft, PlacementDecision, PoolView, Site
from gpu_fleet_image.core.calls import TRANSIENT, Failure
from gpu_fleet_image.core.capacity import (
    LEDGER,
    MOST_REFUSED,
    REQUEST_KEY,
    REQUESTS,
    STALE,
    STATE,
    Coming,
    MoverState,
    Request,
    Trouble,
    asked,
    caller_in,
)
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.model import Group, Inventory
from gpu_fleet_image.core.policy import Policy, PoolPolicy
from gpu_fleet_image.core.queue_need import (
    FIRST_AFTER,
    LONGEST,
    QUEUE,
    SILENT_AFTER,
    PoolNeed,
    needs_of,
    trouble_of,
)
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, DeadlineError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

# More wait for the next pass; what is longer is no request.
_MOST_REQUESTS, LONGEST_REQUEST = 100, 4096
_NO_REQUEST = frozenset({"Malformed", "InvalidRange", "416"})
# Another activity of the group still runs: next minute (ESS, error codes).
LATER = frozenset({"ScalingActivityInProgress", "IncorrectScalingGroupStatus"})
_HEAR = "hear the queue"  # of whose failure nobody would know but by an alarm
_METER = "read the meter"
_NO_METER = (
    "nobody knows yet what is spent: the first sweep, within 10 minutes of the stack's first `up`, finds out"
)


class Groups(Protocol):
    """Changes of scaling groups, on either cloud; each method raises CloudError."""

    def start(self, group: str, number: int) -> str:
        """Raise a group by ``number``; return the cloud's name of that activity, where it has one."""

    def withdraw(self, group: str, number: int) -> None:
        """Lower a group by ``number``, never below its members, so that no instance is terminated."""

    def failure(self, group: str, activities: Collection[str]) -> Trouble | None:
        """Return the newest failed launch if none succeeded since; of these activities, if any is known."""


@dataclass(frozen=True)
class MoveResult:
    """Result of one pass.

    Attributes:
        decisions: what was decided, in order.
        failures: what could not be done.
    """

    decisions: tuple[PlacementDecision, ...]
    failures: tuple[Failure, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the result for the log and for the caller."""
        return {
            "decisions": [
                f"{decision.action} {decision.pool}: {decision.reason}" for decision in self.decisions
            ],
            "failed": [
                f"{failure.instance_id}: {failure.step}: {failure.error}" for failure in self.failures
            ],
        }


def move(cloud: SweepCloud, groups: Groups, policy: Policy, clock: Callable[[], datetime]) -> MoveResult:
    """Run one pass.

    Raises:
        CloudError: what is there could not be read, or not written down; no group was raised.
        ConfigurationError: no ledger is named.
    """
    if cloud.store is None:
        raise ConfigurationError("the mover needs GPU_FLEET_LEDGER_URI")
    return _Mover(cloud, cloud.store, groups, policy, clock).once()


class _Mover:
    """One pass."""

    def __init__(
        self, cloud: SweepCloud, store: Store, groups: Groups, policy: Policy, clock: Callable[[], datetime]
    ) -> None:
        self._cloud, self._store, self._groups, self._policy = cloud, store, groups, policy
        self._clock = clock
        self._failures: list[Failure] = []

    def once(self) -> MoveResult:
        """Read, decide, record, carry out."""
        now = self._clock()
        stored = self._store.get(STATE)
        before = MoverState.from_json(stored.content, STATE) if stored else MoverState()
        requests = self._requests(now, before.requests)
        fleet = self._cloud.instances.fleet()
        queue, unheard = self._queue(now, before.unheard)
        view = PoolView(
            now,
            self._policy,
            self._sites(fleet, before),
            fleet.instances,
            MoneyLeft(None, {}, why=_NO_METER),
            requests,
            self._firing(),
            queue,
        )
        if wants_money(view, before) or self._policy.has_queue:
            view = replace(view, money=self._money(fleet, now))
            self._say_growth(view, before)
        after, decisions = decide(view, before)
        after = replace(after, unheard=unheard)
        if after == before and not decisions:
            return MoveResult((), tuple(self._failures))
        version = self._store.move_on(STATE, after.to_json(), stored.version if stored else None)
        if version is None:
            raise CloudError("another pass of the mover was quicker; this one did nothing")
        for number, decision in enumerate(decisions):
            self._record(number, decision, now)
        done = self._carry_out(after, decisions)
        if done != after and self._store.replace(STATE, done.to_json(), version) is None:
            self._failures.append(Failure("*", "write the state", "another pass was quicker"))
        return MoveResult(tuple(decisions), tuple(self._failures))

    def _requests(self, now: datetime, known: Mapping[str, Request]) -> list[Request]:
        """Read the requests of users that no pass has seen yet, malformed ones too.

        Those of a caller who had many refused within the hour stay unread, but for the newest of each pass:
        it may be the one that waits, or withdraw what is being started.
        """
        keys = dict[str, str]()
        days = sorted({f"{moment:%Y-%m-%d}" for moment in (now - STALE, now, now + STALE)})
        for day in days:
            for listed in self._store.listed(f"{REQUESTS}/{day}/"):
                key = listed.key.removeprefix(f"{REQUESTS}/").removesuffix(".json")
                if listed.age <= STALE and key not in known and REQUEST_KEY.fullmatch(key):
                    keys[key] = listed.key
        refused = Counter(
            caller_in(key)
            for key, request in known.items()
            if request.is_refused and now - request.at <= STALE
        )
        newest = {caller_in(key): key for key in sorted(keys) if refused[caller_in(key)] >= MOST_REFUSED}
        read = [key for key in in_turn(keys, known) if newest.get(caller_in(key), key) == key]
        unread = Counter(map(caller_in, keys.keys() - set(read)))
        for caller, number in unread.items():
            text = f"{counted(number, 'request')} not read: {refused[caller]} of this hour were refused"
            self._failures.append(Failure(caller, "read requests", text))
        return [self._request(key, keys[key], now) for key in read[:_MOST_REQUESTS]]

    def _request(self, key: str, where: str, now: datetime) -> Request:
        try:
            written = self._store.beginning(where, LONGEST_REQUEST)
            return asked(key, written.content if written else {}, now)
        except CloudError as error:
            if error.code not in _NO_REQUEST:
                raise
            return asked(key, {}, now)

    def _sites(self, fleet: Inventory, before: MoverState) -> dict[str, tuple[Site, ...]]:
        """Return pool -> its groups in order; failures are read only where something is on its way."""
        busy: dict[str, set[str]] = {coming.group: set() for coming in before.coming if coming.group}
        for coming in before.coming:
            if coming.activity:
                busy[coming.group].add(coming.activity)
        sites = {}
        for pool, settings in self._policy.pools.items():
            labels = settings.capacity.groups if settings.capacity else ()
            by_label: dict[str, list[Site]] = {label: [] for label in labels}
            for group in fleet.groups:
                label = self._label(group, labels) if group.pool == pool else None
                if label is not None:
                    running = busy.get(group.name)
                    failed = None if running is None else self._groups.failure(group.name, running)
                    by_label[label].append(Site(group, label, failed))
            sites[pool] = tuple(site for label in labels for site in by_label[label])
        return sites

    def _label(self, group: Group, labels: Iterable[str]) -> str | None:
        """Return the longest label that a group's title begins with: one may begin with another."""
        titles = {label: f"gpu-fleet-{self._policy.stack}-{label}" for label in labels}
        fit = (
            label
            for label, title in titles.items()
            if group.title == title or group.title.startswith(f"{title}-")
        )
        return max(fit, key=len, default=None)

    def _firing(self) -> frozenset[str]:
        alarms = {
            alarm: name
            for name, pool in self._policy.pools.items()
            for alarm in (pool.capacity.scale_out_alarms if pool.capacity else ())
        }
        if not alarms:
            return frozenset()
        try:
            firing = self._cloud.instances.alarms_firing(sorted(alarms))
        except CloudError as error:
            self._failures.append(Failure("*", "read alarms", str(error)))
            return frozenset()
        return frozenset(alarms[name] for name in firing if name in alarms)

    def _queue(
        self, now: datetime, unheard: datetime | None
    ) -> tuple[dict[str, PoolNeed] | None, datetime | None]:
        """Read the queue's newest need, none where its controller is silent; and since when none was read."""
        if not self._policy.has_queue:
            return None, None
        why, after = "the queue's controller has not reported", FIRST_AFTER
        try:
            if (said := self._store.newest(QUEUE, LONGEST)) is not None:
                needs = needs_of(said.content, said.age)
                if trouble := trouble_of(said.content, now, said.age):
                    self._failures.append(Failure("*", _HEAR, trouble))
                return needs, None
        except CloudError as error:
            why, after = f"nobody can read what the queue wants ({error})", SILENT_AFTER
            self._failures.append(Failure("*", "read what the queue wants", str(error)))
        since = unheard or now
        if now - since > after:
            text = f"{why} since {format_time(since)}: no job gets an instance"
            self._failures.append(Failure("*", _HEAR, text))
        return {}, since

    def _money(self, fleet: Inventory, now: datetime) -> MoneyLeft:
        """Read the budget that is left; nothing may be spent where it cannot be read."""
        try:
            spending = read_spending(self._cloud, self._policy, fleet, now)
        except (CloudError, DeadlineError) as error:
            self._failures.append(Failure("*", _METER, str(error)))
            return MoneyLeft(None, {}, why=f"nobody knows what is spent: {error}")
        if spending is None:
            return MoneyLeft(None, {}, why=_NO_METER)
        budget, teams = spending.budget, _frozen_teams(spending)
        frozen = spending.freeze is not None and spending.freeze.stage is not FreezeStage.OPEN
        return MoneyLeft(
            budget.monthly - spending.reading.month_cost,
            prices(self._policy, now),
            frozenset(name for name, pool in budget.pools.items() if frozen and pool.freezes),
            currency=spending.currency,
            frozen_teams=teams,
            teams=self._members() if teams else None,
        )

    def _members(self) -> dict[str, str] | None:
        """Return user -> team; None if the accounts could not be read."""
        try:
            return team_budgets.members_of(self._store)
        except (CloudError, DeadlineError) as error:
            self._failures.append(Failure("*", "read who is in a frozen team", str(error)))
            return None

    def _say_growth(self, view: PoolView, before: MoverState) -> None:
        """Write sizes and budget for users' commands, and the frozen teams for the queue.

        Where the meter cannot be read the last report stands: without its teams Slurm would start the jobs
        of a frozen one.
        """
        if self._policy.has_queue and all(failure.step != _METER for failure in self._failures):
            try:
                self._store.put(GROWTH, growth.of(view.money, totals(view, before), view.now).to_json())
            except CloudError as error:
                self._failures.append(Failure("*", "say what may grow", str(error)))

    def _record(self, number: int, decision: PlacementDecision, now: datetime) -> None:
        name = f"{now:%Y%m%dT%H%M%S.%fZ}-{number:03d}-{decision.action}-{decision.pool}"
        self._store.create(f"{LEDGER}/{now:%Y/%m/%d}/{name}.json", record_of(decision, self._policy, now))

    def _carry_out(self, state: MoverState, decisions: Iterable[PlacementDecision]) -> MoverState:
        """Carry decisions out; return the state with what was started, and without a group where that failed.

        A start counts on what its pool withdraws elsewhere: where that failed it waits for the next pass, or
        the pool would want more than its ``size.max``.
        """
        not_withdrawn = set[str]()
        for decision in decisions:
            if decision.action is Action.START and decision.pool in not_withdrawn:
                state = replace(state, coming=_without_place(state, decision))
                continue
            try:
                activity = self._do(decision)
            except (CloudError, DeadlineError) as error:
                self._failures.append(
                    Failure(decision.instance or decision.group, decision.action, str(error))
                )
                if decision.action is Action.WITHDRAW:
                    not_withdrawn.add(decision.pool)
                state = _failed(state, decision, self._clock(), error)
            else:
                state = _done(state, decision, activity)
        return state

    def _do(self, decision: PlacementDecision) -> str:
        activity = ""
        if decision.action is Action.START:
            activity = self._groups.start(decision.group, len(decision.coming))
        elif decision.action is Action.WITHDRAW:
            self._groups.withdraw(decision.group, len(decision.coming))
        if decision.untag:
            self._cloud.instances.untag([decision.instance], decision.untag)
        if decision.tags:
            self._cloud.instances.tag([decision.instance], decision.tags)
        return activity


def in_turn(new: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the keys of new requests: first those whose callers have made the fewest. Pure.

    One caller who writes hundreds keeps nobody else waiting.
    """
    made = Counter(map(caller_in, known))
    turns = []
    for key in sorted(new):
        made[caller_in(key)] += 1
        turns.append((made[caller_in(key)], key))
    return [key for _, key in sorted(turns)]


def _frozen_teams(spending: Spending) -> dict[str, str]:
    """Return team -> why it starts nothing now."""
    return {
        name: f"{team.sentence(name, spending.currency)}: gpu-fleet unfreeze --team {name} lifts it"
        for name, team in spending.teams.items()
        if team.frozen
    }


def prices(policy: Policy, now: datetime) -> dict[str, Decimal | None]:
    """Return pool -> the highest hourly price of one instance more with its disks; None for unknown. Pure.

    A reservation is paid for in any case: one more instance of it costs its disks alone.
    """
    if policy.budget is None:
        return {}
    highest: dict[str, Decimal | None] = {}
    for name, pool in policy.budget.pools.items():
        if pool.paid(now):
            highest[name] = pool.disk_per_hour
            continue
        spot = _buys_spot_alone(policy.pools.get(name))
        types = pool.spot if spot else pool.on_demand
        known = [policy.budget.price_of(name, kind, spot=spot) for kind in types]
        hours = [price for price in known if price is not None]
        highest[name] = max(hours) + pool.disk_per_hour if hours and len(hours) == len(known) else None
    return highest


def _buys_spot_alone(pool: PoolPolicy | None) -> bool:
    if pool is None or pool.market != "spot":
        return False
    return pool.capacity is None or not pool.capacity.on_demand_fallback


def record_of(decision: PlacementDecision, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return a record of the ledger, in the form of the reaper's."""
    price = prices(policy, now).get(decision.pool)
    return {
        "schema_version": 1,
        "at": format_time(now),
        "stack": policy.stack,
        "region": policy.region,
        "action": decision.action,
        "instance_id": decision.instance or None,
        "pool": decision.pool,
        "owner": decision.owner,
        "group": decision.group or None,
        "reason": decision.reason,
        "coming": list(decision.coming),
        "desired_before": decision.desired,
        "desired": _after(decision),
        "currency": policy.currency,
        "price_per_hour": None if price is None else str(price),
    }


def _after(decision: PlacementDecision) -> int | None:
    change = {Action.START: 1, Action.WITHDRAW: -1}.get(decision.action, 0)
    return None if decision.desired is None else decision.desired + change * len(decision.coming)


def _done(state: MoverState, decision: PlacementDecision, activity: str) -> MoverState:
    if decision.action is not Action.START:
        return state
    started = tuple(
        replace(coming, started=True, activity=activity) if coming.id in decision.coming else coming
        for coming in state.coming
    )
    return replace(state, coming=started)


def _without_place(state: MoverState, decision: PlacementDecision) -> tuple[Coming, ...]:
    """Return what is on its way; that of a decision waits for a group again."""
    return tuple(arrival.back() if arrival.id in decision.coming else arrival for arrival in state.coming)


def _failed(state: MoverState, decision: PlacementDecision, now: datetime, error: Exception) -> MoverState:
    """Pass over a group that refused to be raised for a while; ask a busy one again.

    Where only the answer is missing the group may be raised: what it was to start keeps its place, and the
    next pass sees by the group's desired capacity whether it starts there (``PassState``).
    """
    if decision.action is not Action.START:
        return state
    is_unknown = isinstance(error, DeadlineError) or getattr(error, "code", "") in TRANSIENT
    coming = state.coming if is_unknown else _without_place(state, decision)
    if isinstance(error, CloudError) and error.code in LATER:
        return replace(state, coming=coming)
    trouble = {**state.trouble, decision.group: Trouble(now, str(error))}
    return replace(state, coming=coming, trouble=trouble)


def log(result: MoveResult) -> Mapping[str, Any]:
    """Log one JSON object a line, as the sweep does; return the whole.

    Raises:
        CloudError: the queue's controller is silent, or cannot read a job: the pass is done, and an alarm.
    """
    content = result.to_json()
    lines: Sequence[tuple[str, Sequence[str]]] = (
        ("decision", content["decisions"]),
        ("failure", content["failed"]),
    )
    for event, texts in lines:
        for text in texts:
            sys.stdout.write(json.dumps({"event": event, "text": text}) + "\n")
    if unheard := [failure.error for failure in result.failures if failure.step == _HEAR]:
        raise CloudError(unheard[0], "QueueUnheard")
    return content
