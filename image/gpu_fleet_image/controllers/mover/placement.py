"""Where the next instance of each pool starts. Pure.

In: a ``PoolView`` (groups, instances, money, what users ask for) and the ``MoverState`` that the pass before
left. Out: the state after, and ``PlacementDecision``s in the order in which they are carried out.

A pool's groups are in its order of preference, zone after zone; the order of types is a group's own. An
instance starts in the first group that is open, has room below its limit, and could start something lately.
Where the cloud says that there is no room, or nothing comes for some minutes, the group gives the instance up
and the next one is tried, until whoever asked would not wait any longer.

Desired capacity rises by ``Action.START`` alone. It never passes the pool's ``size.max``, nor rises while the
pool is frozen or the money does not last. ``Action.WITHDRAW`` withdraws what never started.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import count

from gpu_fleet_image.core.capacity import (
    QUEUED,
    REMEMBERED,
    SHARED,
    SPARE,
    TAG_TAKEN,
    Coming,
    Fate,
    MoverState,
    Request,
    Trouble,
)
from gpu_fleet_image.core.marks import hold_of
from gpu_fleet_image.core.model import (
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_OWNER,
    TAG_TAKEN_AT,
    Group,
    Instance,
)
from gpu_fleet_image.core.policy import CapacityPolicy, Policy
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.core.times import format_time, parse_time

# How long a request without room is tried in every group again.
WAIT = timedelta(minutes=15)
# An Auto Scaling group says within a minute that there is no room; one that says nothing has some minutes.
SILENT = timedelta(minutes=5)
# A group without room is not tried again sooner, while another may have some.
COOL_OFF = timedelta(minutes=5)
LOAD_COOLDOWN = timedelta(minutes=5)
# Clocks differ, and Alibaba Cloud reports whole minutes.
CLOCK = timedelta(minutes=1)
SPARE_HELD, SPARE_RENEWED = timedelta(days=7), timedelta(days=1)
SPARE_REASON = "hot spare"
LIVING = frozenset({"pending", "running"})
# Purposes of what a pool starts for itself.
OWN = frozenset({SPARE, SHARED, QUEUED})


class Action(StrEnum):
    """What a decision does."""

    START = "start"
    WITHDRAW = "withdraw"
    GIVE = "give"
    RELEASE = "release"
    KEEP = "keep"
    ACCEPT = "accept"
    REFUSE = "refuse"
    FAIL = "fail"
    HOLD = "hold"


@dataclass(frozen=True)
class PlacementDecision:
    """One line of the ledger, and what carries it out.

    Attributes:
        reason: why, for a user.
        group: the scaling group, if one is changed.
        coming: ids of the instances on their way that it is about.
        desired: desired capacity of the group before; None where none is changed.
        instance: that gets tags, if one does.
        owner: who asked; empty for the pool itself.
    """

    action: Action
    pool: str
    reason: str
    group: str = ""
    coming: tuple[str, ...] = ()
    desired: int | None = None
    instance: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    untag: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class Site:
    """A scaling group where a pool may start instances.

    Attributes:
        label: what its stack calls it: the pool, with the zone where there is a group for each.
        failed: its newest failed launch and what the cloud said; None without any of late.
    """

    group: Group
    label: str
    failed: Trouble | None = None


@dataclass(frozen=True)
class MoneyLeft:
    """What may still be spent this month.

    Attributes:
        left: budget less what is spent; None where nobody knows.
        why: why nobody knows, or why the pool may not grow at all.
        prices: pool -> what an hour of an instance costs at most; None where nobody knows.
        frozen: pools that take no instances now.
    """

    left: Decimal | None
    prices: Mapping[str, Decimal | None]
    frozen: frozenset[str] = frozenset()
    why: str = ""
    currency: str = "USD"


@dataclass(frozen=True)
class PoolView:
    """All that a decision rests on, beside the state.

    Attributes:
        now: aware UTC.
        sites: pool -> its groups in order of preference.
        instances: those of the stack that are not gone.
        money: what may be spent.
        requests: that no pass has seen yet.
        firing: pools whose load asks for an instance more.
        queue: pool -> what waits for its instances, on a stack with a queue; None without one.
    """

    now: datetime
    policy: Policy
    sites: Mapping[str, tuple[Site, ...]]
    instances: Sequence[Instance]
    money: MoneyLeft
    requests: Sequence[Request] = ()
    firing: frozenset[str] = frozenset()
    queue: Mapping[str, PoolNeed] | None = None


def decide(view: PoolView, before: MoverState) -> tuple[MoverState, list[PlacementDecision]]:
    """The state after, and what is done on the way there."""
    made = _wanted(view, before)
    made.place()
    return made.state(), made.decisions


def totals(view: PoolView, before: MoverState) -> dict[str, int]:
    """Pool -> instances that it has or is about to have, booting ones too, once ``decide`` has decided.

    Of pools whose groups are there.
    """
    made = _wanted(view, before)
    return {pool: made.total(pool) for pool, sites in view.sites.items() if sites}


def _wanted(view: PoolView, before: MoverState) -> "_Pass":
    """A pass that knows what shall be there, and not yet where."""
    made = _Pass(view, before)
    made.arrive()
    made.adopt()
    made.withdraw()
    made.accept()
    made.spares()
    made.load()
    made.queue()
    made.expire()
    made.release()
    return made


def wants_money(view: PoolView, before: MoverState) -> bool:
    """Whether a pass may start anything, so that it must know what is spent."""
    waiting = any(not coming.group for coming in before.coming)
    spares = any(pool.capacity and pool.capacity.spare for pool in view.policy.pools.values())
    troubled = any(coming.group for coming in before.coming)
    jobs = any(need.jobs for need in (view.queue or {}).values())
    return bool(waiting or troubled or spares or view.requests or view.firing or jobs)


class _Pass:
    """One pass on its way: the state as it changes, and the decisions so far."""

    def __init__(self, view: PoolView, before: MoverState) -> None:
        self._view, self._now = view, view.now
        self._requests = dict(before.requests)
        self._coming = list(before.coming)
        self._trouble = {
            key: trouble for key, trouble in before.trouble.items() if view.now - trouble.at < COOL_OFF
        }
        for site in self._all_sites():
            if site.failed is not None and view.now - site.failed.at < COOL_OFF:
                self._trouble[site.group.name] = site.failed
        self._loads = dict(before.raised_for_load)
        self._held = dict(before.held)
        self._given = dict[str, str]()  # instance -> what it was given for in this pass
        self._rises = Counter[str]()  # group -> instances that this pass starts there
        self._falls = Counter[str]()
        self._numbers = count(1)
        self.decisions: list[PlacementDecision] = []
        for coming in before.coming:
            there = self._site(coming.group)
            if there is not None and not coming.started and there.group.desired >= coming.goal:
                # raised by a pass that was cut off before it could say so
                self._replace(coming, replace(coming, started=True))

    def state(self) -> MoverState:
        """What the next pass is given."""
        kept = {
            key: request
            for key, request in self._requests.items()
            if request.fate is Fate.OPEN
            or self._now - request.at < max(REMEMBERED, timedelta(hours=request.hours or 0))
        }
        return MoverState(kept, tuple(self._coming), self._trouble, self._loads, self._held)

    def arrive(self) -> None:
        """Give each new instance to the one that waits longest for it in its group."""
        for coming in sorted(
            (arrival for arrival in self._coming if arrival.started), key=lambda arrival: arrival.asked_at
        ):
            new = next(self._new_in(coming), None)
            if new is not None:
                self._coming.remove(coming)
                self._give(new, coming.purpose, coming.pool, "came", coming.group)
        self._give_again()

    def adopt(self) -> None:
        """Follow what groups want by themselves: the first ``size.desired``, or a replacement.

        A group asks its own zone for ever, and what it wants counts against ``size.max`` meanwhile.
        """
        for pool, _ in self._pools():
            for site in () if pool in self._view.money.frozen else self._view.sites.get(pool, ()):
                group = site.group
                on_way = sum(coming.started and coming.group == group.name for coming in self._coming)
                for _ in range(group.desired - max(group.size, group.min_size) - on_way):
                    here = Coming(self._name(pool), pool, SHARED, self._now)
                    self._coming.append(
                        replace(here, group=group.name, since=self._now, goal=group.desired, started=True)
                    )

    def _give_again(self) -> None:
        """Write once more what a pass before decided and could not write."""
        for request in self._requests.values():
            for instance in self._view.instances:
                mine = instance.id in request.instances and instance.id not in self._given
                if mine and instance.tags.get(TAG_TAKEN) != request.key:
                    self._note_gift(instance, request, "is")

    def _new_in(self, coming: Coming) -> Iterator[Instance]:
        """Instances that the group started for nobody yet, oldest first."""
        group = next((site.group for site in self._all_sites() if site.group.name == coming.group), None)
        if group is None or coming.since is None:
            return
        for instance in sorted(
            self._view.instances, key=lambda instance: (instance.launched_at, instance.id)
        ):
            fresh = instance.launched_at >= coming.since - CLOCK and instance.state in LIVING
            if instance.id in group.members and fresh and not self._purpose_of(instance):
                yield instance

    def _purpose_of(self, instance: Instance) -> str:
        return self._given.get(instance.id) or instance.tags.get(TAG_TAKEN, "")

    def _give(self, instance: Instance, purpose: str, pool: str, why: str, group: str = "") -> None:
        self._given[instance.id] = purpose
        if purpose in self._requests:
            request = self._requests[purpose]
            came = (*request.instances, instance.id)
            fate = Fate.FILLED if len(came) >= request.count else request.fate
            self._requests[purpose] = replace(request, instances=came, fate=fate)
            self._note_gift(instance, request, why, group)
            return
        tags = {TAG_TAKEN: purpose} | (self._spare_hold() if purpose == SPARE else {})
        said = f"{instance.id} {why} for {_who('', purpose)}"
        self._note(Action.GIVE, pool, said, group=group, instance=instance.id, tags=tags)

    def _note_gift(self, instance: Instance, request: Request, why: str, group: str = "") -> None:
        owner = request.owner
        # a spare was idle all the time: for its user the idle time begins now
        tags = {TAG_TAKEN: request.key, TAG_OWNER: owner, TAG_TAKEN_AT: format_time(self._now)}
        tags |= self._hold(request)
        held = request.hours is None and TAG_KEEP_UNTIL in instance.tags
        untag = (TAG_KEEP_UNTIL, TAG_KEEP_REASON) if held else ()
        said = f"{instance.id} {why} for {owner}"
        pool = request.pool
        self._note(
            Action.GIVE, pool, said, group=group, instance=instance.id, tags=tags, untag=untag, owner=owner
        )

    def _hold(self, request: Request) -> dict[str, str]:
        if request.hours is None:
            return {}
        until = self._now + min(timedelta(hours=request.hours), timedelta(days=14) - CLOCK)
        return {TAG_KEEP_UNTIL: format_time(until), TAG_KEEP_REASON: f"taken by {request.owner}"}

    def _spare_hold(self) -> dict[str, str]:
        return {TAG_KEEP_UNTIL: format_time(self._now + SPARE_HELD), TAG_KEEP_REASON: SPARE_REASON}

    def withdraw(self) -> None:
        """Withdraw from groups what they cannot start, so that it may start elsewhere."""
        for coming in [other for other in self._coming if other.started and other.since is not None]:
            why = self._failure_of(coming)
            if why:
                self._trouble[coming.group] = Trouble(self._now, why)
                self._take_back(coming, f"{self._label(coming.group)}: {why}")

    def _failure_of(self, coming: Coming) -> str:
        site = self._site(coming.group)
        since = coming.since or self._now
        if site is None:
            return "the group is gone"
        if site.failed is not None and site.failed.at >= since - timedelta(seconds=5):
            return site.failed.why
        return f"nothing started within {SILENT.seconds // 60} minutes" if self._now - since >= SILENT else ""

    def _take_back(self, coming: Coming, why: str) -> None:
        if coming.purpose in self._requests:
            request = self._requests[coming.purpose]
            tried = tuple(dict.fromkeys((*request.tried, why)))
            self._requests[coming.purpose] = replace(request, tried=tried)
        self._lower(coming, f"no room in {why}")

    def _lower(self, coming: Coming, why: str) -> None:
        """Let its group want one less."""
        desired = self._desired(coming.group)
        self._replace(coming, coming.back())
        if self._site(coming.group) is not None:
            self._falls[coming.group] += 1
            self._note(
                Action.WITHDRAW,
                coming.pool,
                why,
                group=coming.group,
                coming=(coming.id,),
                desired=desired,
            )

    def accept(self) -> None:
        """Take requests on, or refuse them; spares go to them at once."""
        asked = [request for request in self._view.requests if request.key not in self._requests]
        for request in asked:
            if request.withdraws:
                self._take_off(request)
        # a withdrawal may be read before its request
        withdrawn = {request.withdraws for request in self._requests.values()}
        for request in asked:
            if request.withdraws:
                continue
            off = f"withdrawn by {request.owner}" if request.key in withdrawn else ""
            refusal = request.reason or off or self._refusal(request)
            fate = Fate.REFUSED if refusal else Fate.OPEN
            self._requests[request.key] = replace(request, fate=fate, reason=refusal)
            said = refusal or f"{request.count} of {request.pool} for {request.owner}"
            action = Action.REFUSE if refusal else Action.ACCEPT
            self._note(action, request.pool, said, owner=request.owner)
            if not refusal:
                self._fill(request)

    def _take_off(self, withdrawal: Request) -> None:
        """Start no more for a request that its user withdraws; what came stays as where room ends."""
        self._requests[withdrawal.key] = replace(withdrawal, fate=Fate.FILLED)
        request = self._requests.get(withdrawal.withdraws)
        if request is None or request.fate is not Fate.OPEN:
            return
        why = f"withdrawn by {request.owner}"
        for coming in [other for other in self._coming if other.purpose == request.key]:
            if coming.started:
                self._lower(coming, f"{self._label(coming.group)}: {why}")
        self._end(request, why)

    def _end(self, request: Request, why: str, detail: str = "") -> None:
        """Wait for nothing more of a request."""
        self._coming = [coming for coming in self._coming if coming.purpose != request.key]
        kept = () if self._is_together(request.pool) else request.instances
        reason = f"{why}{_what_came(request, kept)}{detail}"
        self._requests[request.key] = replace(
            self._requests[request.key], fate=Fate.FAILED, reason=reason, instances=kept
        )
        self._note(Action.FAIL, request.pool, reason, owner=request.owner)

    def _refusal(self, request: Request) -> str:
        """Why a request is not taken on; empty where it is."""
        capacity = self._capacity(request.pool)
        if capacity is None:
            pools = ", ".join(name for name, pool in self._view.policy.pools.items() if pool.capacity)
            return f"no such pool: {request.pool}; this stack has {pools}"
        if request.count > capacity.max_size:
            return f"{request.count} are more than size.max of {request.pool}, which is {capacity.max_size}"
        cap, has = self._view.policy.take_max_per_person, self._held_by(request.owner)
        if has + request.count > cap:
            return (
                f"{request.owner} has {has} and asks for {request.count}; take.max_per_person is {cap}: "
                "gpu-fleet give-back returns one"
            )
        short = request.count - len(self._spares(request.pool))
        return self._may_not_grow(request.pool, max(0, short), request.hours, paid=request.count)

    def _held_by(self, owner: str) -> int:
        """Instances that a user took, here or on their way."""
        mine = {key for key, request in self._requests.items() if request.owner == owner}
        here = sum(
            self._purpose_of(instance) not in ("", SPARE, SHARED, QUEUED) and self._owner(instance) == owner
            for instance in self._view.instances
        )
        return here + sum(coming.purpose in mine for coming in self._coming)

    def _owner(self, instance: Instance) -> str:
        given = self._requests.get(self._given.get(instance.id, ""))
        return given.owner if given else instance.owner

    def _fill(self, request: Request) -> None:
        spares = self._spares_for(request)
        for instance in spares:
            self._give(instance, request.key, request.pool, "was spare, now")
        self._want(request.pool, request.key, request.count - len(spares))

    def _want(self, pool: str, purpose: str, number: int) -> None:
        for _ in range(number):
            self._coming.append(Coming(self._name(pool), pool, purpose, self._now))

    def _name(self, pool: str) -> str:
        """Of an instance on its way."""
        # two passes may fall into one second: the schedule's, and that of a launch that failed
        return f"{self._now:%Y%m%dT%H%M%S.%fZ}-{pool}-{next(self._numbers)}"

    def _spares(self, pool: str) -> list[Instance]:
        """Those that nobody took yet, the oldest first."""
        own = [
            instance
            for instance in self._view.instances
            if instance.pool == pool and instance.state == "running"
        ]
        spare = [instance for instance in own if self._purpose_of(instance) == SPARE]
        return sorted(spare, key=lambda instance: (instance.launched_at, instance.id))

    def _spares_for(self, request: Request) -> list[Instance]:
        """Those that a request gets: of a pool that stands together, from a group with room for the rest."""
        spares = self._spares(request.pool)
        if not self._is_together(request.pool):
            return spares[: request.count]
        for site in self._view.sites.get(request.pool, ()):
            own = [instance for instance in spares if instance.id in site.group.members][: request.count]
            if own and self._has_room(site, request.count - len(own)):
                return own
        return []

    def _has_room(self, site: Site, number: int) -> bool:
        """Whether a group may start so many more; anybody may be given what it has."""
        if number == 0:
            return True
        fits = self._desired(site.group.name) + number <= site.group.max_size
        return fits and not site.group.closed and site.group.name not in self._trouble

    def spares(self) -> None:
        """Keep as many hot spares as each pool wants."""
        for pool, capacity in self._pools():
            on_way = [
                arrival for arrival in self._coming if arrival.pool == pool and arrival.purpose == SPARE
            ]
            here = [
                instance
                for instance in self._view.instances
                if instance.pool == pool and instance.state in LIVING and self._purpose_of(instance) == SPARE
            ]
            surplus = len(here) + len(on_way) - capacity.spare
            for coming in [arrival for arrival in on_way if not arrival.group][: max(0, surplus)]:
                self._coming.remove(coming)
                surplus -= 1
            for instance in here[: max(0, surplus)]:
                self._given[instance.id] = SHARED
                self._note(
                    Action.RELEASE,
                    pool,
                    f"{instance.id} is no spare any more: pool.spare is {capacity.spare}",
                    instance=instance.id,
                    tags={TAG_TAKEN: SHARED},
                    untag=(TAG_KEEP_UNTIL, TAG_KEEP_REASON),
                )
            self._renew(
                [
                    instance
                    for instance in here
                    if self._purpose_of(instance) == SPARE and instance.id not in self._given
                ]
            )
            self._want_if_allowed(pool, SPARE, -surplus)

    def _renew(self, spares: Iterable[Instance]) -> None:
        for instance in spares:
            if not _held_beyond(instance, self._now + SPARE_RENEWED):
                self._note(
                    Action.KEEP,
                    instance.pool,
                    f"{instance.id} stays a spare",
                    instance=instance.id,
                    tags=self._spare_hold(),
                )

    def load(self) -> None:
        """One instance more where the load of a pool asks for it, and none within the cooldown."""
        for pool in sorted(self._view.firing):
            last = self._loads.get(pool)
            on_way = any(coming.pool == pool and coming.purpose == SHARED for coming in self._coming)
            if on_way or (last is not None and self._now - last < LOAD_COOLDOWN):
                continue
            if self._want_if_allowed(pool, SHARED, 1):
                self._loads[pool] = self._now

    def queue(self) -> None:
        """As many instances as the jobs that wait need; one that waits for a place and is not needed goes."""
        needs = self._view.queue
        for pool, capacity in self._pools() if needs is not None else ():
            need = (needs or {}).get(pool, PoolNeed(0, ()))
            missing = need.wanted(capacity.max_size) - self.total(pool)
            waits = [
                coming
                for coming in self._coming
                if coming.pool == pool and coming.purpose == QUEUED and not coming.group
            ]
            for coming in waits[: max(0, -missing)]:
                self._coming.remove(coming)
            self._want_if_allowed(pool, QUEUED, missing)

    def _want_if_allowed(self, pool: str, purpose: str, number: int) -> bool:
        """Want instances for the pool itself; what keeps it from them is noted once."""
        if number <= 0:
            return False
        why = self._may_not_grow(pool, number, None)
        if why:
            if pool not in self._held:
                self._held[pool] = why
                self._note(Action.HOLD, pool, f"{number} more ({purpose}): {why}")
            return False
        self._held.pop(pool, None)
        self._want(pool, purpose, number)
        return True

    def _may_not_grow(self, pool: str, number: int, hours: float | None, paid: int | None = None) -> str:
        """Why a pool gets no more instances, whatever room the cloud has; empty where it may.

        Args:
            pool: which.
            number: of instances that would start.
            hours: for how long they are asked for.
            paid: of instances that cost then, spares that only change hands included.
        """
        capacity, money = self._capacity(pool), self._view.money
        if capacity is None:
            return f"no such pool: {pool}"
        if pool in money.frozen:
            return f"{pool} is frozen, since the budget is spent: gpu-fleet unfreeze lifts it"
        total = self.total(pool)
        if number and total + number > capacity.max_size:
            return f"{pool} has {total} of size.max {capacity.max_size}, and {number} more are wanted"
        return self._too_dear(pool, number if paid is None else paid, hours)

    def _too_dear(self, pool: str, number: int, hours: float | None) -> str:
        money = self._view.money
        price = money.prices.get(pool)
        if money.left is None:
            return money.why
        if price is None:
            return f"nobody knows what {pool} costs: budget.assume in the stack file says it"
        needed = price * number * _billed(hours)
        promised = self._promised()
        left = money.left - promised
        if needed > left:
            beside = (
                f", beside {promised:.2f} that are promised to what was taken or began" if promised else ""
            )
            return (
                f"{needed:.2f} {money.currency} are needed, and {max(left, Decimal(0)):.2f} of the month's "
                f"budget are left{beside}"
            )
        return ""

    def _promised(self) -> Decimal:
        """What was taken will cost from now on, as far as it was said for how long; else an hour.

        Money of an instance is promised until its time ends, its hold ends, or it is gone; of one that is
        still to come until the request ends.
        """
        here = {instance.id: instance for instance in self._view.instances}
        whole = Decimal(0)
        for request in self._requests.values():
            price = self._view.money.prices.get(request.pool) or Decimal(0)
            ends = [self._promised_until(request, here[name]) for name in request.instances if name in here]
            if request.fate is Fate.OPEN:
                ends += [_ends(request, request.hours)] * (request.count - len(request.instances))
            left_s = sum(max(0.0, (end - self._now).total_seconds()) for end in ends)
            whole += price * Decimal(str(left_s)) / 3600
        return whole + self._begun()

    def _promised_until(self, request: Request, instance: Instance) -> datetime:
        """When the money of an instance that came is free again, if it lives so long.

        Who gives it back or releases it takes its hold off. Without the tag of the request nobody knows.
        """
        ends, hold = _ends(request, request.hours), hold_of(instance, self._now)
        if instance.tags.get(TAG_TAKEN) != request.key:
            return ends
        until = self._now if hold is None else hold.until or ends
        return min(ends, max(until, _ends(request, None)))

    def _begun(self) -> Decimal:
        """What is left of the first hour of each instance that the pools started for themselves."""
        hour = timedelta(hours=1)
        since = [
            (coming.pool, self._now) for coming in self._coming if coming.group and coming.purpose in OWN
        ]
        since += [
            (instance.pool, instance.launched_at)
            for instance in self._view.instances
            if instance.state in LIVING and self._purpose_of(instance) in OWN
        ]
        whole = Decimal(0)
        for pool, at in since:
            left = min(hour, max(timedelta(0), at + hour - self._now))
            price = self._view.money.prices.get(pool) or Decimal(0)
            whole += price * Decimal(str(left / hour))
        return whole

    def total(self, pool: str) -> int:
        """Instances that a pool has or is about to have."""
        groups = sum(self._desired(site.group.name) for site in self._view.sites.get(pool, ()))
        return groups + sum(coming.pool == pool and not coming.started for coming in self._coming)

    def _desired(self, name: str) -> int:
        site = self._site(name)
        if site is None:
            return 0
        # Alibaba Cloud counts what is being started only once it is there
        on_way = sum(coming.started and coming.group == name for coming in self._coming)
        group = site.group
        return max(group.desired - self._falls[name], group.size + on_way) + self._rises[name]

    def expire(self) -> None:
        """Give up what could not be found in time: by then the load is another, and users go elsewhere."""
        for coming in self._coming[:]:
            if coming.purpose == SHARED and not coming.started and self._now - coming.asked_at >= WAIT:
                self._coming.remove(coming)
                self._note(
                    Action.FAIL,
                    coming.pool,
                    f"no place for {_who('', SHARED)} within {WAIT.seconds // 60} minutes",
                )
        for request in [candidate for candidate in self._requests.values() if candidate.fate is Fate.OPEN]:
            missing = [coming for coming in self._coming if coming.purpose == request.key]
            if self._now - request.at < WAIT:
                continue
            for coming in missing:
                if coming.started:
                    self._take_back(
                        coming, f"{self._label(coming.group)}: not within {WAIT.seconds // 60} minutes"
                    )
            tried = "; ".join(self._requests[request.key].tried) or self._blocked(request.pool)
            self._end(request, "no capacity anywhere", f": {tried}")

    def release(self) -> None:
        """Leave a cluster that never was whole to the idle rules; tried until that is written."""
        for instance in self._view.instances:
            request = self._requests.get(self._purpose_of(instance))
            if request is None or request.fate is not Fate.FAILED or instance.id in request.instances:
                continue
            self._given[instance.id] = SHARED
            self._note(
                Action.RELEASE,
                request.pool,
                f"{instance.id} is nobody's: the rest of what {request.owner} asked for never started",
                instance=instance.id,
                tags={TAG_TAKEN: SHARED},
                untag=(TAG_OWNER, TAG_KEEP_UNTIL, TAG_KEEP_REASON),
            )

    def _blocked(self, pool: str) -> str:
        return self._may_not_grow(pool, 0, None) or f"every group of {pool} is full or closed"

    def place(self) -> None:
        """Find each that waits the first place with room, and what was decided before but not done again."""
        waiting = [coming for coming in self._coming if not coming.started]
        together = dict[tuple[str, str], str]()
        missing = Counter(coming.purpose for coming in waiting if coming.purpose in self._requests)
        for coming in sorted(waiting, key=lambda arrival: arrival.asked_at):
            capacity = self._capacity(coming.pool)
            if capacity is None:
                self._coming.remove(coming)
                continue
            cluster = (coming.pool, coming.purpose) if capacity.together else None
            number = max(1, missing[coming.purpose]) if cluster else 1
            site = self._place_for(coming, together.get(cluster, "") if cluster else "", number)
            missing[coming.purpose] -= 1
            if site is None:
                if coming.group:
                    self._replace(coming, coming.back())
                continue
            if cluster:
                together[cluster] = site.group.name
            self._start(coming, site)

    def _place_for(self, coming: Coming, only: str, number: int) -> Site | None:
        """The first group with room for so many: it and what has to stand close to it."""
        if self._limits(coming):
            return None
        companion = self._companions_group(coming)
        for site in self._view.sites.get(coming.pool, ()):
            name = site.group.name
            if companion not in ("", name) or only not in ("", name):
                continue
            if self._has_room(site, number):
                return site
        return None

    def _limits(self, coming: Coming) -> str:
        """Limits that may have changed since it was wanted; those waiting count in the total already."""
        if coming.pool in self._view.money.frozen:
            return "frozen"
        capacity = self._capacity(coming.pool)
        standing = sum(self._desired(site.group.name) for site in self._view.sites.get(coming.pool, ()))
        if capacity is None or standing + 1 > capacity.max_size:
            return "full"
        # money that a request was promised is its own; a pool's wants need new money
        if coming.purpose in self._requests:
            left = self._view.money.left
            return "" if left is not None and left > 0 else "spent"
        return self._too_dear(coming.pool, 1, None)

    def _companions_group(self, coming: Coming) -> str:
        """Where others stand that it has to stand close to: of its request, or of the pool itself."""
        if not self._is_together(coming.pool):
            return ""
        if coming.purpose in OWN:
            return self._own_group(coming)
        request = self._requests.get(coming.purpose)
        if request is None:
            return ""
        for other in self._coming:
            if other.purpose == coming.purpose and other.started:
                return other.group
        here = {name for name, purpose in self._given.items() if purpose == coming.purpose}
        came = here | set(request.instances)
        sites = self._view.sites.get(coming.pool, ())
        return next((site.group.name for site in sites if came & site.group.members.keys()), "")

    def _own_group(self, coming: Coming) -> str:
        """The group with most of what the pool started for itself; empty where it has nothing yet.

        A group asks again for what the cloud took of a request, and nobody asks for that elsewhere: alone in
        another zone it would be of no use.
        """
        living = [
            instance
            for instance in self._view.instances
            if instance.pool == coming.pool and instance.state in LIVING
        ]
        own = {instance.id for instance in living if self._purpose_of(instance) in (*OWN, "")}
        on_way = Counter(
            other.group for other in self._coming if other.id != coming.id and other.purpose in OWN
        )
        everything = {instance.id for instance in living} if coming.purpose == SHARED else own
        for standing in (own, everything):
            stand = {
                site.group.name: len(standing & site.group.members.keys()) + on_way[site.group.name]
                for site in self._view.sites.get(coming.pool, ())
            }
            if any(stand.values()):
                return max(stand, key=lambda name: stand[name])
        return ""

    def _start(self, coming: Coming, site: Site) -> None:
        name = site.group.name
        desired = self._desired(name)
        self._rises[name] += 1
        placed = replace(coming, group=name, since=self._now, goal=desired + 1)
        self._replace(coming, placed)
        owner = self._requests[coming.purpose].owner if coming.purpose in self._requests else ""
        said = f"in {site.label} for {_who(owner, coming.purpose)}"
        for number, decision in enumerate(self.decisions):
            if (decision.action, decision.group, decision.reason) == (Action.START, name, said):
                self.decisions[number] = replace(decision, coming=(*decision.coming, coming.id))
                return
        self._note(
            Action.START, coming.pool, said, group=name, coming=(coming.id,), desired=desired, owner=owner
        )

    def _replace(self, old: Coming, new: Coming) -> None:
        self._coming = [new if coming.id == old.id else coming for coming in self._coming]

    def _pools(self) -> Iterator[tuple[str, CapacityPolicy]]:
        for name, pool in self._view.policy.pools.items():
            if pool.capacity is not None:
                yield name, pool.capacity

    def _is_together(self, pool: str) -> bool:
        capacity = self._capacity(pool)
        return capacity is not None and capacity.together

    def _capacity(self, pool: str) -> CapacityPolicy | None:
        known = self._view.policy.pools.get(pool)
        return known.capacity if known else None

    def _all_sites(self) -> Iterator[Site]:
        for sites in self._view.sites.values():
            yield from sites

    def _site(self, group: str) -> Site | None:
        return next((site for site in self._all_sites() if site.group.name == group), None)

    def _label(self, group: str) -> str:
        site = self._site(group)
        return site.label if site else group

    def _note(
        self,
        action: Action,
        pool: str,
        reason: str,
        *,
        group: str = "",
        coming: tuple[str, ...] = (),
        desired: int | None = None,
        instance: str = "",
        tags: Mapping[str, str] | None = None,
        untag: tuple[str, ...] = (),
        owner: str = "",
    ) -> None:
        self.decisions.append(
            PlacementDecision(
                action, pool, reason, group, coming, desired, instance, tags or {}, untag, owner
            )
        )


def _what_came(request: Request, kept: Sequence[str]) -> str:
    """What a request that failed has to show, and whose it is now."""
    if not request.instances:
        return ""
    whose = "yours: gpu-fleet give-back returns it" if kept else "nobody's, since the rest is missing"
    return f" ({len(request.instances)} of {request.count} started, {', '.join(request.instances)}, {whose})"


def _billed(hours: float | None) -> Decimal:
    """Hours that a request is held against the budget with: an hour at least."""
    return Decimal(str(max(hours or 1, 1)))


def _ends(request: Request, hours: float | None) -> datetime:
    """When what a request asked for so many hours costs nothing more."""
    return request.at + timedelta(hours=float(_billed(hours)))


def _who(owner: str, purpose: str) -> str:
    return owner or {SPARE: "a hot spare", SHARED: "the pool itself", QUEUED: "the queue"}.get(
        purpose, purpose
    )


def _held_beyond(instance: Instance, moment: datetime) -> bool:
    try:
        return parse_time(instance.tags.get(TAG_KEEP_UNTIL, "")) > moment
    except ValueError:
        return False
