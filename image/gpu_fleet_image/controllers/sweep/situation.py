"""Input of a decision: ``Situation`` of the fleet, ``Case`` of one instance. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_fleet_image.core.document import AsList
from gpu_fleet_image.core.handshake import Replies, Reply, replies_of
from gpu_fleet_image.core.marks import is_given_back, mark_of, taken_at
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, Activity, Decision, Group, Instance, Inventory, Verdict
from gpu_fleet_image.core.policy import Policy, PoolPolicy, unit_price


@dataclass(frozen=True)
class Case:
    """One instance with everything that is known of it.

    Attributes:
        group: its scaling group, if any.
        activity: its heartbeats, if they were asked for and answered.
        idle_after: idle time from which it counts as forgotten.
        far_for: for how long its hold is known to be too far ahead.
    """

    now: datetime
    instance: Instance
    group: Group | None
    activity: Activity | None
    policy: Policy
    pool: PoolPolicy
    idle_after: timedelta
    grace: timedelta
    replies: Replies = field(default_factory=dict)
    far_for: timedelta = timedelta(0)

    @property
    def idle_s(self) -> float | None:
        """Proven seconds without activity."""
        return self._idle[1] if self._idle else None

    @property
    def idle_since(self) -> datetime | None:
        """Start of the idle time, late by at most the metric's period."""
        return self._idle[0] if self._idle else None

    @property
    def _idle(self) -> tuple[datetime, float] | None:
        """Start and seconds of the idle time by the newest heartbeat; being taken by a user is activity."""
        heard = self.activity
        if heard is None or heard.newest_at is None or heard.newest_value < 0:
            return None
        known_until = min(heard.newest_at + timedelta(seconds=heard.period_s), self.now)
        idle_s, taken = heard.newest_value, taken_at(self.instance)
        if taken is not None:
            idle_s = min(idle_s, max(0.0, (known_until - taken).total_seconds()))
        return known_until - timedelta(seconds=idle_s), idle_s

    def decide(self, verdict: Verdict, reason: str, *, alert: bool = False) -> Decision:
        """Return a decision on this instance."""
        mark = mark_of(self.instance)
        return Decision(
            instance=self.instance,
            verdict=verdict,
            reason=reason,
            idle_s=self.idle_s,
            idle_since=self.idle_since,
            reap_after=mark.reap_after if mark else None,
            alert=alert,
            hourly_price=unit_price(self.policy, self.instance.pool, self.instance.type),
        )


@dataclass(frozen=True)
class Usual:
    """Usual number of idle instances of each pool.

    Attributes:
        ended: instance that sweeps stopped or terminated within the last day -> its pool.
        idle: pool -> day of the last two weeks -> number of its instances that were idle then for certain:
            terminated by their own word after a day longer, or known to an operator.
    """

    ended: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def most(self, pools: Iterable[str]) -> int:
        """Return the most instances of these pools together that were idle on one day."""
        days = Counter[str]()
        for pool in pools:
            days.update(self.idle.get(pool, {}))
        return max(days.values(), default=0)


@dataclass(frozen=True)
class Withdrawn(AsList):
    """Marks of one instance that its agent withdrew, while its heartbeats showed no use.

    Attributes:
        first: when a sweep first found one withdrawn in this idle time.
        last: when it did last.
    """

    first: datetime
    last: datetime
    count: int


@dataclass(frozen=True)
class Situation:
    """Everything that a decision depends on.

    Attributes:
        fleet: the instances and their groups, in any order.
        activity: instance id -> its heartbeats.
        scale_in: pools whose load asks for an instance less.
        override_breaker: a user looked, and the many idle instances are idle.
        replaced: instance that a sweep replaced for a failed boot check within the last day -> its pool.
        usual: how many are idle in each pool at other times.
        withdrawn: instance -> its marks that were withdrawn, as far as the sweeps before know.
        far_holds: instance with a hold of more days than are allowed -> its text, and when it was first seen.
        watching: these are days in which only what its owner gave back is marked or terminated.
        unseen: instances whose agents may be of a release that no operator looked at.
    """

    now: datetime
    fleet: Inventory
    activity: Mapping[str, Activity]
    policy: Policy
    scale_in: frozenset[str] = frozenset()
    override_breaker: bool = False
    replies: Replies = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    usual: Usual = field(default_factory=Usual)
    withdrawn: Mapping[str, Withdrawn] = field(default_factory=dict)
    far_holds: Mapping[str, tuple[str, datetime]] = field(default_factory=dict)
    watching: bool = False
    unseen: frozenset[str] = frozenset()

    def far_for(self, instance: Instance) -> timedelta:
        """Return for how long the present hold of an instance has been known to be too far ahead."""
        text, since = self.far_holds.get(instance.id, ("", self.now))
        return self.now - since if instance.tags.get(TAG_KEEP_UNTIL) == text else timedelta(0)


def is_closed(replies: Replies, decision: Decision) -> bool:
    """Return whether the instance replied to this mark that it takes no work and nothing runs."""
    if decision.reap_after is None:
        return False
    return replies_of(replies, decision.instance.id, decision.reap_after).reply is Reply.CLOSED


def is_asked(policy: Policy, instance: Instance) -> bool:
    """Return whether an instance must acknowledge its end: every running one, where the pool requires it."""
    return instance.state == "running" and policy.pools[instance.pool].require_acknowledgement


def past_lifetime(instance: Instance, pool: PoolPolicy, now: datetime) -> bool:
    """Return whether a running instance is older than its pool allows, counted from its last start."""
    if pool.max_lifetime_hours is None or instance.state != "running":
        return False
    return now - instance.launched_at >= timedelta(hours=pool.max_lifetime_hours)


def shortest_idle_time(
    instance: Instance, pool: PoolPolicy, now: datetime, scale_in: Collection[str]
) -> timedelta:
    """Return the idle time from which fine heartbeats of the instance are read."""
    asked = instance.pool in scale_in or past_lifetime(instance, pool, now)
    return pool.terms(requested=asked, given_back=is_given_back(instance)).idle_after
