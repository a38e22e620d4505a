"""From what is known of a fleet to one verdict for each machine. Pure.

Each machine is first assessed alone (``assess``); then the fleet's bounds are drawn: requests to scale in,
no group below its minimum, the mass-idle breaker, and as many ends in one sweep as the policy allows, oldest
idle first.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from image.reaper.handshake import Word, Words, said_of
from image.reaper.marks import is_marked
from image.reaper.model import ENDS, Activity, Decision, Fleet, Group, Instance, Plan, Verdict
from image.reaper.policy import Policy
from image.reaper.sweep.assess import assess
from image.reaper.sweep.case import Case
from image.reaper.sweep.requests import past_lifetime, requested_terms, usual_terms

# Below this many the breaker is no help: one idle machine of one is "all of them".
BREAKER_LEAST = 5
BREAKER_SHARE = 0.5
# Of one pool; the next failed boot check after them waits for a person, or for the next day.
MOST_REPLACED_IN_A_DAY = 3
LEAVING = frozenset({Verdict.MARK, Verdict.WAIT, *ENDS})


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
    """

    now: datetime
    fleet: Fleet
    activity: Mapping[str, Activity]
    policy: Policy
    scale_in: frozenset[str] = frozenset()
    override_breaker: bool = False
    words: Words = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)


def decide(situation: Situation) -> Plan:
    """Decide on every machine."""
    fleet, policy = situation.fleet, situation.policy
    decisions = {instance.id: _alone(situation, instance) for instance in fleet.instances}
    for pool in sorted(situation.scale_in & policy.pools.keys()):
        decisions |= _scale_in(situation, pool, decisions)
    decisions |= _floors(fleet, policy, decisions.values())
    plan = Plan(tuple(decisions[key] for key in sorted(decisions)))
    if not situation.override_breaker and _breaker(fleet, plan):
        return Plan(tuple(_held_by_breaker(decision) for decision in plan.decisions), breaker=True)
    bounded = _few_replaced(situation.replaced, plan.decisions)
    return Plan(_capped(situation, bounded))


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


def _running(fleet: Fleet) -> int:
    return sum(instance.state == "running" for instance in fleet.instances)


def _breaker(fleet: Fleet, plan: Plan) -> bool:
    """Whether more than half of the fleet is newly idle: a broken sensor is likelier than that."""
    newly = sum(one.instance.state == "running" for one in plan.with_verdict(Verdict.MARK))
    return newly >= BREAKER_LEAST and newly > BREAKER_SHARE * _running(fleet)


def _held_by_breaker(decision: Decision) -> Decision:
    if decision.verdict is Verdict.MARK:
        reason = f"{decision.reason.partition(';')[0]}, like too many others at once: not marked"
        return replace(decision, verdict=Verdict.ALERT, reason=reason, reap_after=None, alert=True)
    if decision.verdict in ENDS:
        return replace(decision, verdict=Verdict.WAIT, reason=f"{decision.reason}; mass-idle breaker")
    return decision


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
