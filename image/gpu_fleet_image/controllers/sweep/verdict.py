"""Verdicts on a fleet, one for each instance. Pure.

In: a ``Situation`` (instances and groups, their activity, their replies to marks, the policy, and the memory
of earlier sweeps). Out: a ``Plan`` with a ``Decision`` for each instance.

``idle_rules.assess`` judges each instance alone. The limits of the fleet come after that: requests to scale
in, minimum sizes, the mass-idle breaker of each pool, and the number of actions that one sweep may take.
"""

from collections.abc import Mapping
from dataclasses import replace

from gpu_fleet_image.controllers.sweep.fleet_limits import (
    LEAVING,
    capped,
    few_replaced,
    held_by_breaker,
    kept_by_minimum,
    tripped_pools,
)
from gpu_fleet_image.controllers.sweep.idle_rules import JITTER, assess
from gpu_fleet_image.controllers.sweep.situation import Case, Situation, past_lifetime, shortest_idle_time
from gpu_fleet_image.core.marks import give_back_of, is_given_back, is_marked
from gpu_fleet_image.core.metrics import HEARTBEAT
from gpu_fleet_image.core.model import Activity, Coverage, Decision, Instance, Plan, Verdict
from gpu_fleet_image.core.times import format_time


def decide(situation: Situation) -> Plan:
    """Decide on every instance."""
    fleet, policy = situation.fleet, situation.policy
    decisions = {instance.id: _alone(situation, instance) for instance in fleet.instances}
    for pool in sorted(situation.scale_in & policy.pools.keys()):
        decisions |= _scale_in(situation, pool, decisions)
    if situation.watching:  # after all that could let one leave
        decisions = {key: _only_watched(decision) for key, decision in decisions.items()}
    decisions |= kept_by_minimum(fleet, policy, decisions.values())
    plan = Plan(tuple(decisions[key] for key in sorted(decisions)))
    tripped = tripped_pools(situation, plan)
    held = tuple(
        held_by_breaker(situation, decision) if decision.instance.pool in tripped else decision
        for decision in plan.decisions
    )
    bounded = few_replaced(situation.replaced, [_explained(situation, decision) for decision in held])
    return Plan(capped(situation, bounded), breaker=bool(tripped))


def _alone(situation: Situation, instance: Instance, *, requested: bool = False) -> Decision:
    """Decide on one instance, by the terms of its pool or of a request to scale in."""
    pool = situation.policy.pools.get(instance.pool)
    if pool is None:
        reason = f"pool {instance.pool!r} is not in the policy"
        return Decision(instance, Verdict.KEEP_PROTECTED, reason, alert=True)
    old = past_lifetime(instance, pool, situation.now)
    terms = pool.terms(requested=requested or old, given_back=is_given_back(instance))
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
    """Keep everything but what its owner gave back: the stack is in its first days."""
    if is_given_back(decision.instance) or decision.verdict not in {*LEAVING, Verdict.UNMARK}:
        return decision
    return replace(decision, verdict=Verdict.KEEP_HELD, reason=f"{decision.reason}; only watched for now")


def if_nothing_ran(situation: Situation, instance: Instance) -> Decision:
    """Decide on an instance as if nothing had run on it for long enough.

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
    """Let at most one more instance of the pool leave, and only while no other is leaving.

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
    """Return the order of scale-in: a marked instance first, then the longest idle."""
    return not is_marked(decision.instance), -(decision.idle_s or 0.0), decision.instance.id


# Marks of one idle time that its agent withdrew, after which operators look why.
_OFTEN_WITHDRAWN = 3


def _explained(situation: Situation, decision: Decision) -> Decision:
    """Explain an idle instance whose agent withdraws its marks, and alert operators once a day."""
    withdrawn = situation.withdrawn.get(decision.instance.id)
    # one that was used since has another idle time
    over = withdrawn is None or decision.idle_since is None or decision.idle_since > withdrawn.last
    if withdrawn is None or over or decision.verdict not in {Verdict.UNMARK, *LEAVING}:
        return decision
    count = withdrawn.count + decision.withdrawn
    reason = f"{decision.reason}; its agent withdrew {count} mark(s) since {format_time(withdrawn.first)}"
    often = decision.withdrawn and count >= _OFTEN_WITHDRAWN
    note = ": its journal says why (journalctl -u gpu-reaper)" if often else ""
    return replace(decision, reason=reason + note, alert=decision.alert or often)
