"""From what is known of a fleet to one verdict for each machine. Pure.

Each machine is first assessed alone (``assess``); then the fleet's bounds are drawn: requests to scale in,
no group below its minimum, the mass-idle breaker, and as many ends in one sweep as the policy allows, oldest
idle first.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from image.reaper.handshake import Word, Words, said_of
from image.reaper.marks import is_marked
from image.reaper.model import ENDS, Activity, Decision, Fleet, Group, Instance, Plan, Verdict
from image.reaper.policy import Policy
from image.reaper.sweep.assess import assess
from image.reaper.sweep.case import Case
from image.reaper.sweep.requests import past_lifetime, requested_terms, usual_terms
from image.reaper.times import format_time

# Instances of a pool below which the breaker is no help: one idle instance of one is "all of them".
BREAKER_LEAST = 5
# As many of a pool may be idle within a day as this share, or a quarter more than was usual lately.
BREAKER_SHARE = 0.05
BREAKER_MARGIN = 4
# Sensors that go blind stay blind; what is idle is used again, or its owner looks after it, within a day.
BREAKER_LASTS = timedelta(hours=24)
# Of one pool; the next failed boot check after them waits for a person, or for the next day.
MOST_REPLACED_IN_A_DAY = 3
LEAVING = frozenset({Verdict.MARK, Verdict.WAIT, *ENDS})


@dataclass(frozen=True)
class Usual:
    """What is usual in each pool.

    Attributes:
        ended: instance that sweeps stopped or terminated within the last day -> its pool.
        idle: pool -> the most instances that were idle on one day of the last two weeks and were seen to be:
            used again later, idle for a day longer, or known to an operator.
    """

    ended: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """All that a decision rests on.

    Attributes:
        now: the moment of the decision.
        fleet: the machines and their groups, in any order.
        activity: instance id -> its heartbeats.
        policy: of the stack.
        scale_in: pools whose load asks for a machine less.
        override_breaker: a person looked, and the many idle machines are idle.
        words: what the instances said for their marks.
        replaced: instance that a sweep replaced for a failed boot check within the last day -> its pool.
        usual: how many are idle in each pool at other times.
    """

    now: datetime
    fleet: Fleet
    activity: Mapping[str, Activity]
    policy: Policy
    scale_in: frozenset[str] = frozenset()
    override_breaker: bool = False
    words: Words = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    usual: Usual = field(default_factory=Usual)


def decide(situation: Situation) -> Plan:
    """Decide on every machine."""
    fleet, policy = situation.fleet, situation.policy
    decisions = {instance.id: _alone(situation, instance) for instance in fleet.instances}
    for pool in sorted(situation.scale_in & policy.pools.keys()):
        decisions |= _scale_in(situation, pool, decisions)
    decisions |= _floors(fleet, policy, decisions.values())
    plan = Plan(tuple(decisions[key] for key in sorted(decisions)))
    tripped = {pool for pool in policy.pools if _breaker(situation, plan, pool)}
    held = tuple(
        _held_by_breaker(situation, one) if one.instance.pool in tripped else one for one in plan.decisions
    )
    bounded = _few_replaced(situation.replaced, held)
    return Plan(_capped(situation, bounded), breaker=bool(tripped))


def _alone(situation: Situation, instance: Instance, *, requested: bool = False) -> Decision:
    """The verdict on one machine, on its pool's terms or on those of a request."""
    pool = situation.policy.pools.get(instance.pool)
    if pool is None:
        reason = f"pool {instance.pool!r} is not in the policy"
        return Decision(instance, Verdict.KEEP_PROTECTED, reason, alert=True)
    old = past_lifetime(instance, pool, situation.now)
    terms = requested_terms(pool) if requested or old else usual_terms(pool)
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
            words=situation.words,
        )
    )
    if not old:
        return decision
    reason = f"{decision.reason} (past its lifetime of {pool.max_lifetime_hours} h: replace it)"
    return replace(decision, reason=reason, alert=decision.alert or decision.verdict is Verdict.KEEP_BUSY)


def _scale_in(situation: Situation, pool: str, decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """At most one more machine of the pool may leave, and only when none is leaving already.

    One at a time, each with a grace of at least the cooldown, is what keeps the cooldown.
    """
    own = [one for one in decisions.values() if one.instance.pool == pool and one.instance.state == "running"]
    if any(decision.verdict in LEAVING for decision in own):
        return {}
    lowered = [_alone(situation, decision.instance, requested=True) for decision in own]
    willing = sorted((one for one in lowered if one.verdict in LEAVING), key=_scale_in_order)
    return {
        one.instance.id: replace(one, reason=f"{one.reason} (low load of pool {pool})") for one in willing[:1]
    }


def _scale_in_order(decision: Decision) -> tuple[bool, float, str]:
    """The one that is marked already, then the longest idle."""
    return not is_marked(decision.instance), -(decision.idle_s or 0.0), decision.instance.id


def _floors(fleet: Fleet, policy: Policy, decisions: Iterable[Decision]) -> dict[str, Decision]:
    """Keep what a group's or a pool's minimum needs; who is due leaves first, then the longest idle."""
    pool_left = _running_by_pool(fleet)
    group_left = {group.name: _spare_of(group) for group in fleet.groups}
    kept = {}
    # where another starts in its place, neither pool nor group falls below anything
    leaving = [
        one
        for one in decisions
        if one.verdict in LEAVING and one.instance.state == "running" and not one.replaced
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


def _running_by_pool(fleet: Fleet) -> dict[str, int]:
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
    """Instances of a pool that are marked or about to be, or waiting, or were ended since yesterday."""
    idle = (
        one.instance.id
        for one in plan.decisions
        if one.verdict in LEAVING and one.instance.pool == pool and one.instance.state == "running"
    )
    return frozenset(idle) | {key for key, of in usual.ended.items() if of == pool}


def _breaker(situation: Situation, plan: Plan, pool: str) -> bool:
    """Whether more of a pool fell idle within a day than is usual: blind sensors are likelier than that.

    They may go blind one after another, so those that were ended for it count too.
    """
    if situation.override_breaker:
        return False
    idle = idle_within_a_day(situation.usual, plan, pool)
    running = (one for one in situation.fleet.instances if one.state == "running")
    size = len({one.id for one in running if one.pool == pool} | idle)
    known = situation.usual.idle.get(pool, 0)
    allowed = max(int(BREAKER_SHARE * size), known + known // BREAKER_MARGIN, 1)
    return size >= BREAKER_LEAST and len(idle) > allowed


def _held_by_breaker(situation: Situation, decision: Decision) -> Decision:
    """One of too many: marked, notified and asked like any other, but not ended for a day.

    After that it goes by its own answer, which must be as fresh as ever.
    """
    told = "; unusually many of its pool are idle (mass-idle breaker)"
    if decision.verdict is Verdict.MARK:
        return replace(decision, reason=decision.reason + told, alert=True)
    if decision.verdict not in ENDS or decision.instance.state != "running" or decision.reap_after is None:
        return decision
    until = decision.reap_after + BREAKER_LASTS
    if situation.now >= until:
        return decision
    reason = f"{decision.reason}{told}: not before {format_time(until)}"
    return replace(decision, verdict=Verdict.WAIT, reason=reason, alert=True)


def _few_replaced(replaced: Mapping[str, str], decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """At most so many replacements of a pool in a day: if new ones fail too, it is the image or the type.

    A loop of them would cost hours of dear instances and mend nothing; somebody must look.
    """
    decisions = tuple(decisions)
    counts = Counter(replaced.values())
    late = set()
    new = [
        one
        for one in decisions
        if one.replaced and one.verdict in ENDS and one.instance.id not in replaced  # or it is tried again
    ]
    for decision in sorted(new, key=_oldest_first):
        counts[decision.instance.pool] += 1
        if counts[decision.instance.pool] > MOST_REPLACED_IN_A_DAY:
            late.add(decision.instance.id)
    told = f"; {MOST_REPLACED_IN_A_DAY} of its pool were replaced within a day: look at image and type"
    return tuple(
        replace(one, verdict=Verdict.ALERT, reason=one.reason + told, alert=True)
        if one.instance.id in late
        else one
        for one in decisions
    )


def _capped(situation: Situation, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Trim the ends of this sweep to what is allowed; a stopped machine counts like a running one.

    What is closed already comes first: it waits behind a shut door.
    """
    decisions = tuple(decisions)
    limit = action_limit(situation.policy, len(situation.fleet.instances))
    due = sorted(
        (one for one in decisions if one.verdict in ENDS),
        key=lambda one: (not is_closed(situation.words, one), *_oldest_first(one)),
    )
    late = {one.instance.id for one in due[limit:]}
    told = f"; this sweep ends {limit} at most"
    return tuple(
        replace(one, verdict=Verdict.WAIT, reason=one.reason + told) if one.instance.id in late else one
        for one in decisions
    )


def is_closed(words: Words, decision: Decision) -> bool:
    """Whether the instance says for this very mark that its door is shut and nothing runs there."""
    if decision.reap_after is None:
        return False
    return said_of(words, decision.instance.id, decision.reap_after).word is Word.CLOSED


def is_asked(policy: Policy, instance: Instance) -> bool:
    """Whether an instance has to answer before it is stopped or terminated: whoever runs can, and must."""
    return instance.state == "running" and policy.pools[instance.pool].require_acknowledgement


def action_limit(policy: Policy, machines: int) -> int:
    """Machines that one sweep may end: the smaller of the two bounds."""
    return min(policy.max_actions, math.ceil(policy.max_percent * machines / 100))
