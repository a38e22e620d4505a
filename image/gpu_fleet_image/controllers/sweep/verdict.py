"""From what is known of a fleet to one verdict for each instance. Pure.

In: a ``Situation`` (instances and groups, their activity, what they said for their marks, the policy, what
the sweeps before remember). Out: a ``Plan``, a ``Decision`` for each instance.

Each instance is looked at alone first: ``RULES`` are asked in order, all that protects before all that takes
away, and who is idle for long enough takes the next step: mark, wait, or end. Then come the bounds of the
fleet: requests to scale in, no group below its minimum, the mass-idle breaker of each pool, and as many ends
in one sweep as the policy allows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.core.handshake import Replies, Reply, said_of
from gpu_fleet_image.core.marks import (
    Mark,
    give_back_of,
    hold_of,
    is_given_back,
    is_marked,
    mark_of,
    taken_at,
)
from gpu_fleet_image.core.metrics import CODE_HUNG, CODE_UNFIT, HEARTBEAT
from gpu_fleet_image.core.model import (
    ENDS,
    KEEP_AT_MOST,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_PROTECTED,
    TAG_STACK,
    TAG_WITHDRAWN,
    Activity,
    Coverage,
    Decision,
    Group,
    Instance,
    Inventory,
    Plan,
    Verdict,
)
from gpu_fleet_image.core.policy import BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE, Policy, PoolPolicy, unit_price
from gpu_fleet_image.core.times import format_span, format_time, is_quiet

# An instance that was asked for is terminated when it is idle this long, and never two within the cooldown.
IDLE_ON_REQUEST = timedelta(minutes=30)
COOLDOWN = timedelta(minutes=10)
# One that was given back is terminated when it is idle this long: the metric's periods of a heartbeat or two.
IDLE_GIVEN_BACK = timedelta(minutes=5)


@dataclass(frozen=True)
class Terms:
    """On what terms an instance may go.

    Attributes:
        idle_after: idle time before the mark.
        grace: time between mark and action.
    """

    idle_after: timedelta
    grace: timedelta


def usual_terms(pool: PoolPolicy) -> Terms:
    """The pool's own terms."""
    return Terms(timedelta(hours=pool.idle_after_hours), timedelta(minutes=pool.grace_minutes))


def requested_terms(pool: PoolPolicy) -> Terms:
    """The terms of an instance that was asked for."""
    usual = usual_terms(pool)
    return Terms(min(usual.idle_after, IDLE_ON_REQUEST), max(usual.grace, COOLDOWN))


def given_back_terms(pool: PoolPolicy) -> Terms:
    """The terms of an instance whose owner gave it back: once nothing runs there, nobody is waited for."""
    return Terms(min(usual_terms(pool).idle_after, IDLE_GIVEN_BACK), timedelta(0))


def past_lifetime(instance: Instance, pool: PoolPolicy, now: datetime) -> bool:
    """Whether a running instance is older than its pool allows; a stop and start makes it young again."""
    if pool.max_lifetime_hours is None or instance.state != "running":
        return False
    return now - instance.launched_at >= timedelta(hours=pool.max_lifetime_hours)


def shortest_idle_time(
    instance: Instance, pool: PoolPolicy, now: datetime, scale_in: Collection[str]
) -> timedelta:
    """The idle time from which the instance's heartbeats deserve a close look."""
    if is_given_back(instance):
        return given_back_terms(pool).idle_after
    asked = instance.pool in scale_in or past_lifetime(instance, pool, now)
    return (requested_terms(pool) if asked else usual_terms(pool)).idle_after


@dataclass(frozen=True)
class Case:
    """One instance and all that is known of it.

    Attributes:
        now: the moment of the decision.
        group: its scaling group, if any.
        activity: its heartbeats, if they were asked for and answered.
        pool: of the instance's pool.
        idle_after: idle time from which it counts as forgotten.
        grace: time between mark and action.
        replies: what the instances said for their marks.
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
        """Since when nothing was active, late by at most the metric's period."""
        return self._idle[0] if self._idle else None

    @property
    def _idle(self) -> tuple[datetime, float] | None:
        """Since when and how many seconds, by the newest heartbeat alone; a user who gets it is activity."""
        heard = self.activity
        if heard is None or heard.newest_at is None or heard.newest_value < 0:
            return None
        known_until = min(heard.newest_at + timedelta(seconds=heard.period_s), self.now)
        idle_s, taken = heard.newest_value, taken_at(self.instance)
        if taken is not None:
            idle_s = min(idle_s, max(0.0, (known_until - taken).total_seconds()))
        return known_until - timedelta(seconds=idle_s), idle_s

    def decide(self, verdict: Verdict, reason: str, *, alert: bool = False) -> Decision:
        """A decision on this instance."""
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


def forgotten(case: Case) -> Decision:
    """The next step with a running instance that is idle for long enough."""
    idle = format_span(timedelta(seconds=case.idle_s or 0.0))
    return _next_step(case, case.idle_since or case.now, f"idle for {idle}{_given_back(case)}")


def _given_back(case: Case) -> str:
    given_back = give_back_of(case.instance)
    return f", {given_back}" if given_back else ""


def unfit(case: Case) -> Decision:
    """The next step with an instance that its boot check failed, while nothing works on it: to be replaced.

    Only where a group would start that other one; by the usual way of mark, notice, grace and fresh check.
    """
    why = "its boot check failed (ready.json on it says why)"
    mark = mark_of(case.instance)
    active = case.activity.last_active_at if case.activity else None
    if active is not None and active > case.now - IDLE_ON_REQUEST:
        return case.decide(
            Verdict.KEEP_BUSY, f"{why}, but it was active at {format_time(active)}", alert=True
        )
    if mark and active and not mark.still_holds(active):
        return case.decide(Verdict.UNMARK, f"was active after it was marked, at {format_time(active)}")
    lacking = _nothing_takes_its_place(case)
    if lacking and (mark is None or case.group is not None):
        return case.decide(Verdict.ALERT, f"{why}; {lacking}, so nothing takes its place", alert=True)
    return replace(_next_step(case, case.now, why, _replace), replaced=True, alert=True)


def _nothing_takes_its_place(case: Case) -> str:
    """Why a group would start no other instance in the place of this one; empty where it would.

    Alibaba Cloud detaches none of a group at its minimum, whether or not it wants fewer afterwards
    (help.aliyun.com, API DetachInstances).
    """
    group = case.group
    if group is None:
        return "it is in no group"
    if group.closed:
        return "its group is frozen"
    if case.policy.cloud == "alicloud" and group.size <= group.min_size:
        return "its group is at its minimum and lets none go; lower size.min for a while"
    return ""


def stopped(case: Case) -> Decision:
    """The next step with a stopped instance: nothing, or the second stage of its pool."""
    days, since = case.pool.terminate_stopped_after_days, case.instance.stopped_at
    if days is None:
        return case.decide(Verdict.KEEP_PROTECTED, "stopped: costs its disk only")
    if since is None:
        reason = "stopped, and nobody knows since when: start it, or terminate it by hand"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    mark = mark_of(case.instance)
    for_now = format_span(case.now - since)
    if case.now - since < timedelta(days=days):
        return case.decide(Verdict.KEEP_HELD, f"stopped for {for_now}, terminated after {days} days")
    if TAG_WITHDRAWN in case.instance.tags:
        # its user stopped it before its agent could take the tag away, which no sweep may
        reason = (
            f"stopped for {for_now}, but its tag {TAG_WITHDRAWN} denies its termination: "
            "start it, or delete the tag"
        )
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    if mark and (mark.reap_after <= since or not mark.still_holds(since) or mark.idle_since < since):
        # The mark that led to the stop is no notice of the end.
        return _to_mark(case, since, f"stopped for {for_now}")
    return _next_step(case, since, f"stopped for {for_now}")


Ending = Callable[[Case, Mark, str], Decision]


def _next_step(case: Case, idle_since: datetime, why: str, end: Ending | None = None) -> Decision:
    """Mark, wait, or end an instance that nobody uses; one that the cloud would not let go is its owner's."""
    if case.instance.locked:
        reason = f"{why}, but {case.instance.locked}: lift it, or keep the instance"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    quiet = is_quiet(
        case.now, case.pool.quiet_hours, case.policy.time_zone, weekends=case.pool.quiet_weekends
    )
    if quiet:
        return case.decide(Verdict.WAIT, f"{why}; quiet hours in {case.policy.time_zone.key}")
    mark = mark_of(case.instance)
    if mark is None:
        return _to_mark(case, idle_since, why)
    if case.now < mark.reap_after:
        left = format_span(mark.reap_after - case.now)
        return case.decide(Verdict.WAIT, f"{why}; will be stopped or terminated in {left} unless used")
    if case.instance.state == "stopped":
        return case.decide(Verdict.TERMINATE, f"{why}, notified {format_time(mark.reap_after - case.grace)}")
    return (end or _end)(case, mark, why)


def _to_mark(case: Case, idle_since: datetime, why: str) -> Decision:
    reap_after = case.now + case.grace
    decision = case.decide(
        Verdict.MARK, f"{why}; will be stopped or terminated after {format_time(reap_after)} unless used"
    )
    return replace(decision, idle_since=idle_since, reap_after=reap_after)


def _end(case: Case, mark: Mark, why: str) -> Decision:
    if case.pool.action == "stop" and (case.instance.spot or case.pool.instance_store_scratch):
        reason = f"{why}, but a stop would lose its data or is refused by the cloud; the pool says stop"
        return case.decide(Verdict.KEEP_PROTECTED, reason, alert=True)
    verdict = Verdict.STOP if case.pool.action == "stop" else Verdict.TERMINATE
    return _unanswered(case, mark, why) or _marked(case, mark, why, verdict)


def _replace(case: Case, mark: Mark, why: str) -> Decision:
    """Terminate, whatever the pool does with an idle instance: a stopped one would come back as it was."""
    return _unanswered(case, mark, why) or _marked(case, mark, why, Verdict.TERMINATE)


def _marked(case: Case, mark: Mark, why: str, verdict: Verdict) -> Decision:
    return case.decide(verdict, f"{why}, marked to go after {format_time(mark.reap_after)}")


def _unanswered(case: Case, mark: Mark, why: str) -> Decision | None:
    """Wait for the instance's own word for this mark: that all is saved, and that nothing runs there."""
    if not case.pool.require_acknowledgement:
        return None
    said = said_of(case.replies, case.instance.id, mark.reap_after)
    reply = said.reply
    fenced = case.instance.tags.get(TAG_WITHDRAWN) == format_time(mark.reap_after)
    if fenced or reply is Reply.REFUSED:
        refused = case.decide(Verdict.UNMARK, f"{why}, but its agent refuses: in use, or kept")
        return replace(refused, withdrawn=True)
    if said.flooded:
        reason = (
            f"{why}; below its mark lie more names in the records than its agent writes: none is believed"
        )
        return case.decide(Verdict.WAIT, reason, alert=True)
    if reply is None:
        return case.decide(
            Verdict.WAIT,
            f"{why}; its agent has not said that all is saved and nothing runs there",
            alert=case.now > mark.reap_after + timedelta(hours=1),
        )
    return _untold(case, mark, why)


def _untold(case: Case, mark: Mark, why: str) -> Decision | None:
    """Wait for the heartbeat of when the mark was due: what was over by then the instance's word says not."""
    reported_at = case.activity.newest_at if case.activity else None
    if reported_at is None or reported_at < mark.reap_after:
        due = format_time(mark.reap_after)
        return case.decide(Verdict.WAIT, f"{why}; its heartbeats do not reach yet to {due}")
    return None


# Heartbeat, alignment to its period, and two minutes until the cloud shows it.
OLDEST_HEARTBEAT = timedelta(minutes=4)
# A sweep over thousands of instances takes this long to read what arrives meanwhile.
NEWEST_HEARTBEAT = timedelta(minutes=2)
# Between a heartbeat's own arithmetic and the cloud's time of receipt.
JITTER = timedelta(seconds=60)
KEPT_MARKS = frozenset({Verdict.KEEP_UNKNOWN, Verdict.KEEP_PROTECTED})


Rule = Callable[[Case], Decision | None]


def assess(case: Case) -> Decision:
    """The verdict on one running or stopped instance."""
    rules = STOPPED_RULES if case.instance.state == "stopped" else RULES
    decision = next(decision for decision in (rule(case) for rule in rules) if decision is not None)
    keeps = decision.verdict.name.startswith("KEEP") or decision.verdict is Verdict.ALERT
    if keeps and decision.verdict not in KEPT_MARKS and is_marked(case.instance):
        return replace(decision, verdict=Verdict.UNMARK)
    return decision


def _licence(case: Case) -> Decision | None:
    tags = case.instance.tags
    if tags.get(TAG_MANAGED) != "true" or tags.get(TAG_STACK) != case.policy.stack:
        return case.decide(Verdict.KEEP_PROTECTED, "not managed by this stack")
    if TAG_PROTECTED in tags:
        return case.decide(Verdict.KEEP_PROTECTED, f"tag {TAG_PROTECTED}")
    return None


def _lifecycle(case: Case) -> Decision | None:
    if case.instance.state == "pending":
        return case.decide(Verdict.KEEP_YOUNG, "still starting")
    if case.instance.state not in ("running", "stopped"):
        return case.decide(Verdict.KEEP_PROTECTED, f"already {case.instance.state}")
    if case.group is None:
        return None
    lifecycle = case.group.members[case.instance.id]
    if lifecycle != "InService":
        return case.decide(Verdict.KEEP_PROTECTED, f"{lifecycle} in its scaling group")
    return None


def _hold(case: Case) -> Decision | None:
    hold = hold_of(case.instance, case.now)
    if hold is None or (hold.is_far and case.far_for >= KEEP_AT_MOST):
        return None
    if hold.problem:
        return case.decide(Verdict.KEEP_HELD, f"held, but {hold.problem}", alert=True)
    until = format_time(hold.until) if hold.until else "?"
    return case.decide(Verdict.KEEP_HELD, f"held until {until}: {hold.reason}")


def _young(case: Case) -> Decision | None:
    uptime = case.now - case.instance.launched_at
    needed = timedelta(minutes=case.pool.min_uptime_minutes)
    if uptime < needed and not is_given_back(case.instance):
        up, least = format_span(uptime), format_span(needed)
        return case.decide(Verdict.KEEP_YOUNG, f"up {up}, left alone for its first {least}")
    return None


def _answered(case: Case) -> Decision | None:
    if case.activity is None or not case.activity.complete:
        return _unknown(case, "the cloud did not answer for its heartbeats")
    if case.activity.newest_at is None:
        return _unknown(case, "no heartbeat in the whole window: does the agent run?")
    return None


def _fresh(case: Case) -> Decision | None:
    if case.activity is None or case.activity.newest_at is None:
        return _answered(case)
    age = case.now - case.activity.newest_at
    if age < -NEWEST_HEARTBEAT:
        return _unknown(case, f"newest heartbeat lies {format_span(age)} in the future: wrong clock")
    if age > OLDEST_HEARTBEAT + timedelta(seconds=case.activity.period_s) - HEARTBEAT:
        return _unknown(case, f"newest heartbeat is {format_span(age)} old: does the agent run?")
    return None


def _sensors(case: Case) -> Decision | None:
    if case.activity is not None and case.activity.newest_value == CODE_HUNG:
        return case.decide(Verdict.ALERT, "SUSPECT-HUNG: full GPU utilisation at idle power", alert=True)
    if case.idle_s is None:
        return _unknown(case, "a sensor failed: whether the instance is idle is unknown")
    return None


def _gate(case: Case) -> Decision | None:
    return unfit(case) if is_unfit(case.activity) else None


def is_unfit(activity: Activity | None) -> bool:
    """Whether an instance says that its boot check failed: it is terminated, whatever its pool does else."""
    return activity is not None and activity.newest_value == CODE_UNFIT


def _unknown(case: Case, reason: str) -> Decision:
    return case.decide(Verdict.KEEP_UNKNOWN, reason, alert=True)


def _busy(case: Case) -> Decision | None:
    idle_s, active = case.idle_s, case.activity.last_active_at if case.activity else None
    if idle_s is None:
        return _sensors(case)
    idle = timedelta(seconds=idle_s)
    if idle < case.idle_after:
        after = f"forgotten after {format_span(case.idle_after)}"
        return case.decide(Verdict.KEEP_BUSY, f"idle for {format_span(idle)}, {after}{_given_back(case)}")
    # Every heartbeat counts, not only the newest: two agents on one instance may disagree.
    if active is not None and active > case.now - case.idle_after + JITTER:
        return case.decide(
            Verdict.KEEP_BUSY, f"an earlier heartbeat reports activity at {format_time(active)}"
        )
    mark = mark_of(case.instance)
    if mark and case.idle_since and not mark.still_holds(case.idle_since):
        return case.decide(
            Verdict.UNMARK, f"was active after it was marked, about {format_time(case.idle_since)}"
        )
    return None


def _consistent(case: Case) -> Decision | None:
    if case.activity is not None and case.activity.contradictory:
        return _unknown(case, "its heartbeats contradict one another: is the agent stuck, or are there two?")
    return None


def _coverage(case: Case) -> Decision | None:
    covered = (
        min((window.percent for window in case.activity.coverage), default=0.0) if case.activity else 0.0
    )
    if covered < case.pool.coverage_percent:
        needed = case.pool.coverage_percent
        return _unknown(case, f"heartbeats cover {covered:.0f} % of the window, {needed} % are needed")
    return None


RULES: tuple[Rule, ...] = (
    _licence,
    _lifecycle,
    _hold,
    _young,
    _answered,
    _fresh,
    _gate,
    _sensors,
    _busy,
    _consistent,
    _coverage,
    forgotten,
)
STOPPED_RULES: tuple[Rule, ...] = (_licence, _lifecycle, _hold, stopped)


# Instances below which the breaker is no help: one idle instance of one is "all of them". Pools with fewer
# are judged together.
BREAKER_LEAST = 5
# As many of a pool may be idle within a day as this share, or a quarter more than was usual lately.
BREAKER_SHARE = 0.05
BREAKER_MARGIN = 4
# Sensors that go blind stay blind; what is idle is used again, or its owner looks after it, within a day.
BREAKER_LASTS = timedelta(hours=24)
# Of one pool; the next failed boot check after them waits for a user, or for the next day.
MOST_REPLACED_IN_A_DAY = 3
LEAVING = frozenset({Verdict.MARK, Verdict.WAIT, *ENDS})
# Marks of one idle time that its agent withdrew, after which operators look why.
OFTEN_WITHDRAWN = 3


@dataclass(frozen=True)
class Usual:
    """What is usual in each pool.

    Attributes:
        ended: instance that sweeps stopped or terminated within the last day -> its pool.
        idle: pool -> day of the last two weeks -> number of its instances that were idle then for certain:
            terminated by their own word after a day longer, or known to an operator.
    """

    ended: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def most(self, pools: Iterable[str]) -> int:
        """The most instances of these pools together that were idle on one of the days."""
        days = Counter[str]()
        for pool in pools:
            days.update(self.idle.get(pool, {}))
        return max(days.values(), default=0)


@dataclass(frozen=True)
class Withdrawn:
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
    """All that a decision rests on.

    Attributes:
        now: the moment of the decision.
        fleet: the instances and their groups, in any order.
        activity: instance id -> its heartbeats.
        scale_in: pools whose load asks for an instance less.
        override_breaker: a user looked, and the many idle instances are idle.
        replies: what the instances said for their marks.
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
        """For how long the hold that stands on an instance now has been seen to be too far ahead."""
        text, since = self.far_holds.get(instance.id, ("", self.now))
        return self.now - since if instance.tags.get(TAG_KEEP_UNTIL) == text else timedelta(0)


def decide(situation: Situation) -> Plan:
    """Decide on every instance."""
    fleet, policy = situation.fleet, situation.policy
    decisions = {instance.id: _alone(situation, instance) for instance in fleet.instances}
    for pool in sorted(situation.scale_in & policy.pools.keys()):
        decisions |= _scale_in(situation, pool, decisions)
    if situation.watching:  # after all that could let one leave
        decisions = {key: _only_watched(decision) for key, decision in decisions.items()}
    decisions |= _floors(fleet, policy, decisions.values())
    plan = Plan(tuple(decisions[key] for key in sorted(decisions)))
    tripped = {
        pool
        for pools in _judged_together(situation, plan)
        if _breaker(situation, plan, pools)
        for pool in pools
    }
    held = tuple(
        _held_by_breaker(situation, decision) if decision.instance.pool in tripped else decision
        for decision in plan.decisions
    )
    bounded = _few_replaced(situation.replaced, [_explained(situation, decision) for decision in held])
    return Plan(_capped(situation, bounded), breaker=bool(tripped))


def _alone(situation: Situation, instance: Instance, *, requested: bool = False) -> Decision:
    """The verdict on one instance, on its pool's terms or on those of a request."""
    pool = situation.policy.pools.get(instance.pool)
    if pool is None:
        reason = f"pool {instance.pool!r} is not in the policy"
        return Decision(instance, Verdict.KEEP_PROTECTED, reason, alert=True)
    old = past_lifetime(instance, pool, situation.now)
    terms = requested_terms(pool) if requested or old else usual_terms(pool)
    if is_given_back(instance):
        terms = given_back_terms(pool)
    decision = assess(
        Case(
            now=situation.now,
            instance=instance,
            group=situation.fleet.group_of(instance.id),
            activity=situation.activity.get(instance.id),
            policy=situation.policy,
            pool=pool,
            idle_after=terms.idle_after,
            grace=terms.grace,
            replies=situation.replies,
            far_for=situation.far_for(instance),
        )
    )
    given_back = give_back_of(instance)
    if given_back is not None and not given_back.is_the_owners:
        decision = replace(decision, alert=True)
    if not old:
        return decision
    reason = f"{decision.reason} (past its lifetime of {pool.max_lifetime_hours} h: replace it)"
    return replace(decision, reason=reason, alert=decision.alert or decision.verdict is Verdict.KEEP_BUSY)


def _only_watched(decision: Decision) -> Decision:
    """While a stack is watched nothing leaves but what its owner gave back."""
    if is_given_back(decision.instance) or decision.verdict not in {*LEAVING, Verdict.UNMARK}:
        return decision
    return replace(decision, verdict=Verdict.KEEP_HELD, reason=f"{decision.reason}; only watched for now")


def if_nothing_ran(situation: Situation, instance: Instance) -> Decision:
    """What a sweep would do with an instance once nothing has run there for long enough.

    Args:
        situation: without activity of any instance; its moment is moved on by the idle time.
        instance: of its fleet, and of a pool in its policy.
    """
    idle = shortest_idle_time(instance, situation.policy.pools[instance.pool], situation.now, ()) + JITTER
    now = situation.now + idle
    full = Coverage(1, 1)
    activity = Activity(now - HEARTBEAT, int(HEARTBEAT.total_seconds()), idle.total_seconds(), None, (full,))
    later = replace(situation, now=now, activity={instance.id: activity})
    return next(decision for decision in decide(later).decisions if decision.instance.id == instance.id)


def _scale_in(situation: Situation, pool: str, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """At most one more instance of the pool may leave, and only when none is leaving already.

    One at a time, each with a grace of at least the cooldown, is what keeps the cooldown.
    """
    own = [
        decision
        for decision in decisions.values()
        if decision.instance.pool == pool and decision.instance.state == "running"
    ]
    if any(decision.verdict in LEAVING for decision in own):
        return {}
    lowered = [_alone(situation, decision.instance, requested=True) for decision in own]
    willing = sorted((decision for decision in lowered if decision.verdict in LEAVING), key=_scale_in_order)
    return {
        decision.instance.id: replace(decision, reason=f"{decision.reason} (low load of pool {pool})")
        for decision in willing[:1]
    }


def _scale_in_order(decision: Decision) -> tuple[bool, float, str]:
    """The one that is marked already, then the longest idle."""
    return not is_marked(decision.instance), -(decision.idle_s or 0.0), decision.instance.id


def _floors(fleet: Inventory, policy: Policy, decisions: Iterable[Decision]) -> dict[str, Decision]:
    """Keep what a group's or a pool's minimum needs; who is due leaves first, then the longest idle."""
    pool_left = _running_by_pool(fleet)
    group_left = {group.name: _spare_of(group) for group in fleet.groups}
    kept = {}
    # where another starts in its place, neither pool nor group falls below anything
    leaving = [
        decision
        for decision in decisions
        if decision.verdict in LEAVING and decision.instance.state == "running" and not decision.replaced
    ]
    for decision in sorted(leaving, key=_leaving_order):
        pool, group = decision.instance.pool, fleet.group_of(decision.instance.id)
        spare = pool_left[pool] - policy.pools[pool].min_size
        if spare > 0 and (group is None or group_left[group.name] > 0):
            pool_left[pool] -= 1
            if group is not None:
                group_left[group.name] -= 1
            continue
        verdict = Verdict.UNMARK if is_marked(decision.instance) else Verdict.KEEP_FLOOR
        kept[decision.instance.id] = replace(
            decision,
            verdict=verdict,
            reason=f"{decision.reason.partition(';')[0]}; its pool or group is at its minimum",
        )
    return kept


def _running_by_pool(fleet: Inventory) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for instance in fleet.instances:
        counts[instance.pool] += instance.state == "running"
    return counts


def _spare_of(group: Group) -> int:
    in_service = sum(state == "InService" for state in group.members.values())
    return min(group.desired, in_service) - group.min_size


def _leaving_order(decision: Decision) -> tuple[int, datetime, str]:
    step = 0 if decision.verdict in ENDS else 1 if is_marked(decision.instance) else 2
    return step, *_oldest_first(decision)


def _oldest_first(decision: Decision) -> tuple[datetime, str]:
    return decision.idle_since or datetime.max.replace(tzinfo=UTC), decision.instance.id


def idle_within_a_day(usual: Usual, plan: Plan, pool: str) -> frozenset[str]:
    """Instances of a pool that are marked or about to be, or waiting, or were terminated since yesterday."""
    idle = (
        decision.instance.id
        for decision in plan.decisions
        if decision.verdict in LEAVING
        and decision.instance.pool == pool
        and decision.instance.state == "running"
        # no sensor found that, but its owner said so
        if not is_given_back(decision.instance)
    )
    return frozenset(idle) | {key for key, of in usual.ended.items() if of == pool}


def _judged_together(situation: Situation, plan: Plan) -> list[list[str]]:
    """Each pool by itself, but the small ones as one: sensors go blind there as in a large one."""
    sizes = {pool: len(_within_a_day(situation, plan, [pool])) for pool in situation.policy.pools}
    large = [[pool] for pool, size in sizes.items() if size >= BREAKER_LEAST]
    return [*large, [pool for pool, size in sizes.items() if size < BREAKER_LEAST]]


def _within_a_day(situation: Situation, plan: Plan, pools: Collection[str]) -> frozenset[str]:
    """Instances of pools that run, or were terminated since yesterday."""
    idle = (idle_within_a_day(situation.usual, plan, pool) for pool in pools)
    instances = situation.fleet.instances
    running = frozenset(
        instance.id for instance in instances if instance.state == "running" and instance.pool in pools
    )
    return running.union(*idle)


def _breaker(situation: Situation, plan: Plan, pools: Collection[str]) -> bool:
    """Whether more of the pools fell idle within a day than is usual: blind sensors are likelier than that.

    They may go blind one after another, so those that were terminated for it count too.
    """
    if situation.override_breaker:
        return False
    idle = frozenset[str]().union(*(idle_within_a_day(situation.usual, plan, pool) for pool in pools))
    size = len(_within_a_day(situation, plan, pools))
    known = situation.usual.most(pools)
    allowed = max(int(BREAKER_SHARE * size), known + known // BREAKER_MARGIN, 1)
    return size >= BREAKER_LEAST and len(idle) > allowed


def _held_by_breaker(situation: Situation, decision: Decision) -> Decision:
    """One of too many: marked, notified and asked like any other, but not terminated for a day.

    After that it goes by its own answer, which must be as fresh as ever; or, where the policy says so, once
    an operator looked: a blind release of the agent answers as blindly a day later.
    """
    if is_given_back(decision.instance):
        return decision
    note = "; unusually many of its pool, or of the small pools, are idle (mass-idle breaker)"
    if decision.verdict is Verdict.MARK:
        return replace(decision, reason=decision.reason + note, alert=True)
    if decision.verdict not in ENDS or decision.instance.state != "running" or decision.reap_after is None:
        return decision
    until = decision.reap_after + BREAKER_LASTS
    waits = _waits_for_operator(situation, decision)
    if situation.now >= until and not waits:
        return decision
    reason = f"{decision.reason}{note}: not before {waits or format_time(until)}"
    return replace(decision, verdict=Verdict.WAIT, reason=reason, alert=True)


def _waits_for_operator(situation: Situation, decision: Decision) -> str:
    """What an operator has to do before one of too many ends; empty where a day is enough."""
    release, looked = situation.policy.breaker_release, "an operator looked, and ran `gpu-fleet sweep --live"
    if release == BY_OPERATOR:
        return f"{looked} --override-breaker`"
    if release == BY_OPERATOR_AFTER_UPDATE and decision.instance.id in situation.unseen:
        return f"{looked} --override-breaker`: its agent or image is new since one did"
    return ""


def _explained(situation: Situation, decision: Decision) -> Decision:
    """An instance that is idle by its heartbeats and never ends says so, and once a day alerts operators."""
    withdrawn = situation.withdrawn.get(decision.instance.id)
    # one that was used since has another idle time
    over = withdrawn is None or decision.idle_since is None or decision.idle_since > withdrawn.last
    if withdrawn is None or over or decision.verdict not in {Verdict.UNMARK, *LEAVING}:
        return decision
    count = withdrawn.count + decision.withdrawn
    reason = f"{decision.reason}; its agent withdrew {count} mark(s) since {format_time(withdrawn.first)}"
    often = decision.withdrawn and count >= OFTEN_WITHDRAWN
    note = ": its journal says why (journalctl -u gpu-reaper)" if often else ""
    return replace(decision, reason=reason + note, alert=decision.alert or often)


def _few_replaced(replaced: Mapping[str, str], decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """At most so many replacements of a pool in a day: if new ones fail too, it is the image or the type.

    A loop of them would cost hours of dear instances and mend nothing; a user must look.
    """
    decisions = tuple(decisions)
    counts = Counter(replaced.values())
    late = set()
    new = [
        decision
        for decision in decisions
        if decision.replaced
        and decision.verdict in ENDS
        and decision.instance.id not in replaced  # or it is tried again
    ]
    for decision in sorted(new, key=_oldest_first):
        counts[decision.instance.pool] += 1
        if counts[decision.instance.pool] > MOST_REPLACED_IN_A_DAY:
            late.add(decision.instance.id)
    note = f"; {MOST_REPLACED_IN_A_DAY} of its pool were replaced within a day: look at image and type"
    return tuple(
        replace(decision, verdict=Verdict.ALERT, reason=decision.reason + note, alert=True)
        if decision.instance.id in late
        else decision
        for decision in decisions
    )


def _capped(situation: Situation, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Trim the ends of this sweep to what is allowed; a stopped instance counts like a running one.

    What is closed already comes first: it waits behind a shut door.
    """
    decisions = tuple(decisions)
    limit = action_limit(situation.policy, len(situation.fleet.instances))
    due = sorted(
        (decision for decision in decisions if decision.verdict in ENDS),
        key=lambda decision: (not is_closed(situation.replies, decision), *_oldest_first(decision)),
    )
    late = {decision.instance.id for decision in due[limit:]}
    note = f"; a sweep terminates or stops {limit} at most"
    return tuple(
        replace(decision, verdict=Verdict.WAIT, reason=decision.reason + note)
        if decision.instance.id in late
        else decision
        for decision in decisions
    )


def is_closed(replies: Replies, decision: Decision) -> bool:
    """Whether the instance says for this very mark that its door is shut and nothing runs there."""
    if decision.reap_after is None:
        return False
    return said_of(replies, decision.instance.id, decision.reap_after).reply is Reply.CLOSED


def is_asked(policy: Policy, instance: Instance) -> bool:
    """Whether an instance has to answer before it is stopped or terminated: whoever runs can, and must."""
    return instance.state == "running" and policy.pools[instance.pool].require_acknowledgement


def action_limit(policy: Policy, instances: int) -> int:
    """Instances that one sweep may end: the smaller of the two bounds."""
    return min(policy.max_actions, math.ceil(policy.max_percent * instances / 100))
