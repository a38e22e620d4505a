"""Limits of the fleet: minimum sizes, the mass-idle breaker, replacements and actions of one sweep. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.controllers.sweep.situation import Situation, Usual, is_closed
from gpu_fleet_image.core.marks import is_given_back, is_marked
from gpu_fleet_image.core.model import ENDS, Decision, Group, Inventory, Plan, Verdict
from gpu_fleet_image.core.policy import BY_OPERATOR, BY_OPERATOR_AFTER_UPDATE, Policy
from gpu_fleet_image.core.times import format_time

# Instances below which the breaker is no help: one idle instance of one is "all of them". Pools with fewer
# are judged together.
BREAKER_LEAST = 5
# As many of a pool may be idle within a day as this share, or a quarter more than was usual lately.
_BREAKER_SHARE = 0.05
_BREAKER_MARGIN = 4
# Sensors that go blind stay blind; what is idle is used again, or its owner looks after it, within a day.
BREAKER_LASTS = timedelta(hours=24)
# Of one pool; the next failed boot check after them waits for a user, or for the next day.
MOST_REPLACED_IN_A_DAY = 3
LEAVING = frozenset({Verdict.MARK, Verdict.WAIT, *ENDS})


def kept_by_minimum(fleet: Inventory, policy: Policy, decisions: Iterable[Decision]) -> dict[str, Decision]:
    """Keep what the minimum of a group or pool needs; due instances leave first, then the longest idle."""
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
    """Return instances of a pool that are marked, about to be, waiting, or were terminated within a day."""
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


def tripped_pools(situation: Situation, plan: Plan) -> frozenset[str]:
    """Return the pools whose mass-idle breaker trips: unusually many of their instances are idle."""
    groups = _judged_together(situation, plan)
    return frozenset(pool for pools in groups if _is_tripped(situation, plan, pools) for pool in pools)


def _judged_together(situation: Situation, plan: Plan) -> list[list[str]]:
    """Group pools for the breaker: each large pool alone, the small ones together."""
    sizes = {pool: len(_within_a_day(situation, plan, [pool])) for pool in situation.policy.pools}
    large = [[pool] for pool, size in sizes.items() if size >= BREAKER_LEAST]
    return [*large, [pool for pool, size in sizes.items() if size < BREAKER_LEAST]]


def _within_a_day(situation: Situation, plan: Plan, pools: Collection[str]) -> frozenset[str]:
    """Return instances of pools that run, or were terminated within a day."""
    idle = (idle_within_a_day(situation.usual, plan, pool) for pool in pools)
    instances = situation.fleet.instances
    running = frozenset(
        instance.id for instance in instances if instance.state == "running" and instance.pool in pools
    )
    return running.union(*idle)


def _is_tripped(situation: Situation, plan: Plan, pools: Collection[str]) -> bool:
    """Return whether unusually many of the pools fell idle within a day: blind sensors are likelier.

    They may go blind one after another, so those that were terminated for it count too.
    """
    if situation.override_breaker:
        return False
    idle = frozenset[str]().union(*(idle_within_a_day(situation.usual, plan, pool) for pool in pools))
    size = len(_within_a_day(situation, plan, pools))
    known = situation.usual.most(pools)
    allowed = max(int(_BREAKER_SHARE * size), known + known // _BREAKER_MARGIN, 1)
    return size >= BREAKER_LEAST and len(idle) > allowed


def held_by_breaker(situation: Situation, decision: Decision) -> Decision:
    """Hold an instance by the breaker: it is marked, notified and asked, but not terminated for a day.

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
    """Return what an operator must do before such an instance ends; empty where a day is enough."""
    release, looked = situation.policy.breaker_release, "an operator looked, and ran `gpu-fleet sweep --live"
    if release == BY_OPERATOR:
        return f"{looked} --override-breaker`"
    if release == BY_OPERATOR_AFTER_UPDATE and decision.instance.id in situation.unseen:
        return f"{looked} --override-breaker`: its agent or image is new since one did"
    return ""


def few_replaced(replaced: Mapping[str, str], decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Limit replacements of a pool in a day: if new instances fail too, image or type is at fault.

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


def capped(situation: Situation, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Cut the terminations of this sweep to the action limit; stopped instances count like running ones.

    Instances that refuse log-ins already come first: their users can only wait.
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


def action_limit(policy: Policy, instances: int) -> int:
    """Return how many instances one sweep may end: the smaller of the two limits."""
    return min(policy.max_actions, math.ceil(policy.max_percent * instances / 100))
