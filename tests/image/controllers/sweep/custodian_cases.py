"""Cases for the sweep: missing data, failing calls, and a limit of 0.

Cloud Custodian 0.9.53 on our own metric gets the dead agent, the denied call and the vanished instance wrong;
with ``instance-uptime`` it is right about the instance that has just booted, and it refuses a limit of 0.
``bench_reaper`` runs both side by side. Each case plays in a ``World`` and returns the errors as text.
"""

from collections.abc import Callable

from gpu_fleet_image.core.cloud import MAX_QUERIES
from gpu_fleet_image.core.model import ENDS, Verdict
from gpu_fleet_image.core.policy import Policy
from tests.image.situations import TAGS
from tests.image.sweeping import TERMS, policy, sweep_world
from tests.image.world import World

POLICY = policy(**TERMS)


def forgotten(count: int, grouped: int = 0, seed: int = 0) -> World:
    """Create instances whose owners left 80 minutes ago, the first of them in a group."""
    world = World(seed)
    world.group("pool", min_size=0)
    for number in range(count):
        if number < grouped:
            world.join("pool", TAGS)
        else:
            world.start(TAGS)
    world.pass_minutes(1)
    for instance in world.instances.values():
        instance.busy = False
    world.pass_minutes(80)
    return world


def marked(count: int, checked: Policy = POLICY, grouped: int = 0, seed: int = 0) -> World:
    """Create forgotten instances that are marked and past their grace period."""
    world = forgotten(count, grouped, seed)
    sweep_world(world, checked, override_breaker=True)
    world.pass_minutes(21)
    return world


def just_booted() -> list[str]:
    """Keep an instance with one heartbeat, which is younger than the window."""
    world = World()
    instance = world.start(TAGS)
    instance.busy = False
    world.pass_minutes(1)
    (decision,) = sweep_world(world, POLICY).plan.decisions
    return [] if decision.verdict is Verdict.KEEP_YOUNG else [f"just booted: {decision.verdict}"]


def agent_dead() -> list[str]:
    """Keep an instance that was idle at last, whose agent died two hours ago."""
    world = marked(1)
    (instance,) = world.instances.values()
    instance.agent = "dead"
    world.pass_minutes(120)
    result = sweep_world(world, POLICY)
    (decision,) = result.plan.decisions
    right = decision.verdict is Verdict.KEEP_UNKNOWN and decision.alert and not world.ends
    return [] if right else [f"agent dead for two hours: {decision.verdict}"]


def one_batch_denied() -> list[str]:
    """Deny one of several calls: the others succeed, and the failure is reported."""
    world = forgotten(MAX_QUERIES + 100)
    world.deny("GetMetricData")
    result = sweep_world(world, POLICY, override_breaker=True)
    wrong = []
    if len(result.done.marked) != 100:
        wrong.append(f"{len(result.done.marked)} of 100 instances marked that were read")
    if len(result.plan.with_verdict(Verdict.KEEP_UNKNOWN)) != MAX_QUERIES:
        wrong.append("instances that nothing is known of are not unknown")
    if not result.failed:
        wrong.append("a denied call is no failure")
    return wrong


def one_instance_vanished() -> list[str]:
    """Lose one of 80 instances right before its end: the other 79 are terminated, one failure is reported."""
    world = marked(80)
    vanishing = next(iter(world.instances))
    world.on_call("TerminateInstances", lambda: world.instances.pop(vanishing), number=1)
    result = sweep_world(world, POLICY)
    failed = {failure.instance_id for failure in result.done.failures}
    right = len(world.ends) == 79 and failed == {vanishing} and result.failed
    return [] if right else [f"one vanished: {len(world.ends)} of 79 ended, failed {failed or 'none'}"]


def no_action_allowed() -> list[str]:
    """Terminate none with a limit of 0."""
    none = policy(**TERMS, top={"max_actions": 0})
    world = marked(3, none)
    result = sweep_world(world, none)
    ended = len(world.ends) + len(result.plan.with_verdict(*ENDS))
    return [] if ended == 0 else [f"a limit of 0: {ended} ended"]


CASES: dict[str, Callable[[], list[str]]] = {
    "just-booted": just_booted,
    "agent-dead": agent_dead,
    "denied": one_batch_denied,
    "vanished": one_instance_vanished,
    "limit-nought": no_action_allowed,
}
