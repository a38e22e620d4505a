"""State of one pass of the mover: what waits, what was given, and what each group will want. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count

from gpu_fleet_image.controllers.mover.pool_view import Action, PlacementDecision, PoolView, Site
from gpu_fleet_image.core.capacity import (
    MOST_REFUSED,
    QUEUED,
    REMEMBERED,
    SHARED,
    SPARE,
    STALE,
    TAG_TAKEN,
    Coming,
    Fate,
    MoverState,
    caller_in,
)
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, Instance
from gpu_fleet_image.core.policy import CapacityPolicy
from gpu_fleet_image.core.times import format_time

# A group without room is not tried again sooner, while another may have some.
COOL_OFF = timedelta(minutes=5)
# Clocks differ, and Alibaba Cloud reports whole minutes.
CLOCK = timedelta(minutes=1)
# An instance that is no node of the queue by then, counted from its start, runs no jobs.
JOINS_WITHIN = timedelta(minutes=20)
_SPARE_HELD, SPARE_RENEWED = timedelta(days=7), timedelta(days=1)
_SPARE_REASON = "hot spare"
LIVING = frozenset({"pending", "running"})
# Purposes of what a pool starts for itself.
OWN = frozenset({SPARE, SHARED, QUEUED})


class PassState:
    """State of one pass as it changes, and the decisions so far."""

    def __init__(self, view: PoolView, before: MoverState) -> None:
        self.view, self.now = view, view.now
        self.requests = dict(before.requests)
        self.coming = list(before.coming)
        self.trouble = {
            key: trouble for key, trouble in before.trouble.items() if view.now - trouble.at < COOL_OFF
        }
        for site in self.all_sites():
            if site.failed is not None and view.now - site.failed.at < COOL_OFF:
                self.trouble[site.group.name] = site.failed
        self.loads = dict(before.raised_for_load)
        self.held = dict(before.held)
        self._untagged = {instance.id for instance in view.instances if TAG_TAKEN not in instance.tags}
        # instance -> what it was given for, in this pass, or by one whose tag nobody sees yet
        self.given = {name: given for name, given in before.gifts.items() if name in self._untagged}
        for key, request in self.requests.items():
            own = [instance for instance in view.instances if instance.id in request.instances]
            unseen = [instance.id for instance in own if instance.tags.get(TAG_TAKEN, "") in ("", *OWN)]
            self.given |= dict.fromkeys(unseen, key)
        self.unseen = dict(self.given)
        self.rises = Counter[str]()  # group -> instances that this pass starts there
        self.falls = Counter[str]()
        self._numbers = count(1)
        self.decisions: list[PlacementDecision] = []
        for coming in before.coming:
            there = self.site(coming.group)
            if there is not None and not coming.started and there.group.desired >= coming.goal:
                # raised by a pass that was cut off before it could say so
                self.update(coming, replace(coming, started=True))

    def after(self) -> MoverState:
        """Return the state for the next pass; requests that ended are kept for a while.

        Of many refused ones of a caller only the newest are kept, and those that a pass may still read.
        """
        kept = {
            key: request
            for key, request in self.requests.items()
            if request.fate is Fate.OPEN
            or self.now - request.at < max(REMEMBERED, timedelta(hours=request.hours or 0))
        }
        refused = Counter[str]()
        for key, request in sorted(kept.items(), key=lambda item: item[1].at, reverse=True):
            refused[caller_in(key)] += request.is_refused
            if (
                request.is_refused
                and refused[caller_in(key)] > MOST_REFUSED
                and self.now - request.at > STALE
            ):
                del kept[key]
        own = {name: given for name, given in self.given.items() if given in OWN}
        gifts = {name: given for name, given in own.items() if name in self._untagged}
        return MoverState(kept, tuple(self.coming), self.trouble, self.loads, self.held, gifts)

    def purpose_of(self, instance: Instance) -> str:
        """Return what an instance is for: a request's key, or a purpose of the pool; empty if unused."""
        return self.given.get(instance.id) or instance.tags.get(TAG_TAKEN, "")

    def want(self, pool: str, purpose: str, number: int) -> None:
        """Add instances that no group was asked for yet."""
        for _ in range(number):
            self.coming.append(Coming(self.name(pool), pool, purpose, self.now))

    def waiting(self, pool: str, purpose: str) -> list[Coming]:
        """Return what a pool wants for a purpose and no group was asked for yet."""
        return [
            coming
            for coming in self.coming
            if coming.pool == pool and coming.purpose == purpose and not coming.group
        ]

    def take_waiting(self, pool: str, purpose: str) -> list[Coming]:
        """Return what `waiting` does, and want it no more."""
        waits = self.waiting(pool, purpose)
        self.coming = [coming for coming in self.coming if coming not in waits]
        return waits

    def name(self, pool: str) -> str:
        """Return a new id for an instance on its way."""
        # two passes may run in one second: the scheduled one, and that of a failed launch
        return f"{self.now:%Y%m%dT%H%M%S.%fZ}-{pool}-{next(self._numbers)}"

    def spares(self, pool: str) -> list[Instance]:
        """Return the running hot spares of a pool, the oldest first."""
        own = [
            instance
            for instance in self.view.instances
            if instance.pool == pool and instance.state == "running"
        ]
        spare = [instance for instance in own if self.purpose_of(instance) == SPARE]
        return sorted(spare, key=lambda instance: (instance.launched_at, instance.id))

    def spare_hold(self) -> dict[str, str]:
        """Return the tags that hold a spare from now on."""
        return {TAG_KEEP_UNTIL: format_time(self.now + _SPARE_HELD), TAG_KEEP_REASON: _SPARE_REASON}

    def has_room(self, site: Site, number: int) -> bool:
        """Return whether a group may start this many more instances; none more is always allowed."""
        if number == 0:
            return True
        fits = self.desired(site.group.name) + number <= site.group.max_size
        return fits and not site.group.closed and site.group.name not in self.trouble

    def total(self, pool: str) -> int:
        """Return the number of instances that a pool has or is about to have."""
        return self.standing(pool) + self._unstarted(pool)

    def standing(self, pool: str) -> int:
        """Return the number of instances that a pool has, or that its groups start."""
        groups = sum(self.desired(site.group.name) for site in self.view.sites.get(pool, ()))
        return groups + len(self.outside(pool))

    def _unstarted(self, pool: str) -> int:
        return sum(coming.pool == pool and not coming.started for coming in self.coming)

    def outside(self, pool: str) -> list[Instance]:
        """Return the running instances of a pool that are in no group.

        One was stopped by the sweep and started by its user, or could not be put back into its group.
        """
        members = self._members(pool)
        return [instance for instance in self._living(pool) if instance.id not in members]

    def serving(self, pool: str, nodes: frozenset[str] | None) -> int:
        """Return the number of instances that run jobs of the queue, or will soon.

        Those are its nodes, what has started lately, and what is to start.
        """
        if nodes is None:
            return self.total(pool)
        seen = {instance.id for instance in self.view.instances}
        on_way = self._unstarted(pool)
        for site in self.view.sites.get(pool, ()):
            on_way += max(0, self.desired(site.group.name) - site.group.size)
        on_way += len(self._members(pool) - seen - nodes)
        no_nodes = [instance for instance in self._living(pool) if instance.id not in nodes]
        young = sum(self.now - instance.launched_at < JOINS_WITHIN for instance in no_nodes)
        return len(nodes) + young + on_way

    def useless(self, pool: str, nodes: frozenset[str] | None) -> list[Instance]:
        """Return instances that count against ``size.max`` and run no jobs of the queue."""
        if nodes is None:
            return []
        old = [instance for instance in self._living(pool) if self.now - instance.launched_at >= JOINS_WITHIN]
        members = self._members(pool)
        stopped = [
            instance
            for instance in self.view.instances
            if instance.state not in LIVING and instance.id in members
        ]
        return [instance for instance in old + stopped if instance.id not in nodes]

    def _living(self, pool: str) -> list[Instance]:
        return [
            instance for instance in self.view.instances if instance.pool == pool and instance.state in LIVING
        ]

    def _members(self, pool: str) -> set[str]:
        return {name for site in self.view.sites.get(pool, ()) for name in site.group.members}

    def desired(self, name: str) -> int:
        """Return the desired capacity of a group, with what this pass changes."""
        site = self.site(name)
        if site is None:
            return 0
        # Alibaba Cloud counts what is being started only once it is there
        on_way = sum(coming.started and coming.group == name for coming in self.coming)
        group = site.group
        return max(group.desired - self.falls[name], group.size + on_way) + self.rises[name]

    def update(self, old: Coming, new: Coming) -> None:
        """Put a new state of an instance on its way in place of the old one."""
        self.coming = [new if coming.id == old.id else coming for coming in self.coming]

    def pools(self) -> Iterator[tuple[str, CapacityPolicy]]:
        """Return the pools that the mover may grow, with their capacity settings."""
        for name, pool in self.view.policy.pools.items():
            if pool.capacity is not None:
                yield name, pool.capacity

    def is_together(self, pool: str) -> bool:
        """Return whether the instances of a pool must start in one group."""
        capacity = self.capacity(pool)
        return capacity is not None and capacity.together

    def capacity(self, pool: str) -> CapacityPolicy | None:
        """Return the capacity settings of a pool; None for an unknown one."""
        known = self.view.policy.pools.get(pool)
        return known.capacity if known else None

    def all_sites(self) -> Iterator[Site]:
        """Return every group of every pool."""
        for sites in self.view.sites.values():
            yield from sites

    def site(self, group: str) -> Site | None:
        """Return a group by its name; None where it is gone."""
        return next((site for site in self.all_sites() if site.group.name == group), None)

    def label(self, group: str) -> str:
        """Return the stack's own name of a group."""
        site = self.site(group)
        return site.label if site else group

    def note(
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
        """Add a decision."""
        self.decisions.append(
            PlacementDecision(
                action, pool, reason, group, coming, desired, instance, tags or {}, untag, owner
            )
        )


def who(owner: str, purpose: str) -> str:
    """Return for whom an instance is, in words."""
    return owner or {SPARE: "a hot spare", SHARED: "the pool itself", QUEUED: "the queue"}.get(
        purpose, purpose
    )
