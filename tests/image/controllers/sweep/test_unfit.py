"""Instances that failed their boot check: gate and agent report it, the sweep replaces them with a limit."""

import json
from datetime import timedelta

import pytest

from gpu_fleet_image.controllers.sweep.fleet_limits import MOST_REPLACED_IN_A_DAY
from gpu_fleet_image.controllers.sweep.lease import SweepMemory, _memory
from gpu_fleet_image.controllers.sweep.situation import Situation
from gpu_fleet_image.controllers.sweep.verdict import decide
from gpu_fleet_image.core.metrics import CODE_UNFIT
from gpu_fleet_image.core.model import Group, Inventory, Verdict
from tests.image.controllers.sweep.custodian_cases import POLICY as SWEEPING
from tests.image.controllers.sweep.custodian_cases import TAGS
from tests.image.providers.alicloud import test_alicloud
from tests.image.situations import NOW, POLICY, History, alone, idle_history, make_instance
from tests.image.sweeping import policy, sweep_world
from tests.image.world import SimulatedInstance, World

MINUTES = range(1, 200)
UNFIT = History(dict.fromkeys(MINUTES, CODE_UNFIT)).activity()
AT_MINIMUM = Group("pool", min_size=1, desired=1, members={"i-1": "InService"}, max_size=1, pool="dev")
FROZEN = Group("pool", min_size=0, desired=1, members={"i-1": "InService"}, pool="dev", closed=True)


def verdict(activity=UNFIT, group=AT_MINIMUM, policy=POLICY, replaced=None, **changes):
    situation = alone(
        make_instance(**changes),
        activity,
        groups=(group,) if group else (),
        policy=policy,
        replaced=replaced or {},
    )
    (found,) = decide(situation).decisions
    return found


def worked(minutes_ago: int):
    return History({**dict.fromkeys(MINUTES, CODE_UNFIT), minutes_ago: 0.0}).activity()


def replaced_lately(pool: str, count: int):
    return {f"i-gone-{index}": pool for index in range(count)}


STOPPING = policy(action="stop", instance_store_scratch=False, idle_after_hours=2, grace_minutes=30)
ASKING = policy(require_acknowledgement=True, idle_after_hours=2, grace_minutes=30)
HELD = {"gpu-fleet:keep-until": (NOW + timedelta(hours=1)).isoformat()}
# What is said of an instance, with or without a mark -> what becomes of it.
WITHOUT_MARK = [
    (Verdict.MARK, {}),
    (Verdict.KEEP_HELD, {"tags": HELD}),
    (Verdict.KEEP_PROTECTED, {"tags": {"gpu-fleet:protected": "yes"}}),
    (Verdict.KEEP_YOUNG, {"launched_at": NOW - timedelta(minutes=20)}),
    *((Verdict.KEEP_BUSY, {"activity": worked(ago)}) for ago in (1, 5, 29)),
    *((Verdict.ALERT, {"group": group}) for group in (None, FROZEN)),  # nothing would take its place
    (Verdict.ALERT, {"policy": test_alicloud.POLICY}),  # where a group at its minimum detaches none
]
WITH_MARK = [
    (Verdict.TERMINATE, {}),  # its group starts another: neither it nor its pool falls below anything
    (Verdict.TERMINATE, {"policy": STOPPING}),
    (Verdict.TERMINATE, {"group": None}),  # it was detached, and the sweep died
    (Verdict.WAIT, {"policy": ASKING}),  # its files are not saved yet
    (Verdict.UNMARK, {"group": FROZEN}),
    (Verdict.UNMARK, {"activity": worked(1)}),
    (Verdict.UNMARK, {"activity": worked(40), "marked_minutes_ago": 55}),
    (Verdict.ALERT, {"replaced": replaced_lately("dev", MOST_REPLACED_IN_A_DAY)}),
    (Verdict.TERMINATE, {"replaced": replaced_lately("train", MOST_REPLACED_IN_A_DAY)}),
    # its replacement failed, and is tried again at no further count
    (Verdict.TERMINATE, {"replaced": {"i-1": "dev"} | replaced_lately("dev", MOST_REPLACED_IN_A_DAY - 1)}),
]


def test_an_unfit_instance_is_replaced_where_nobody_uses_it_and_something_takes_its_place():
    cases = [(expected, {"marked_minutes_ago": None} | more) for expected, more in WITHOUT_MARK] + WITH_MARK

    assert [(expected, more) for expected, more in cases if verdict(**more).verdict is not expected] == []
    first, at_minimum = (
        verdict(marked_minutes_ago=None, policy=own) for own in (POLICY, test_alicloud.POLICY)
    )
    assert (first.alert, first.reap_after, verdict().replaced) == (True, NOW + timedelta(minutes=30), True)
    assert (at_minimum.alert, "at its minimum" in at_minimum.reason) == (True, True)


def test_no_other_report_replaces_anything():
    """A silent gate does not either: a fit instance and one without a report look the same."""
    others = [
        History({**dict.fromkeys(MINUTES, CODE_UNFIT), 1: value}) for value in (-1.0, -2.0, -4.0, 0.0, 60.0)
    ]

    assert not any(verdict(activity=each.activity()).replaced for each in (*others, idle_history(161)))


# a pool


def test_most_of_a_fleet_failing_at_once_is_the_image_and_trips_the_breaker():
    names = [f"i-{index}" for index in range(6)]
    group = Group("pool", 0, 6, dict.fromkeys(names, "InService"), 6, "dev")
    unmarked = tuple(make_instance(name, marked_minutes_ago=None) for name in names)
    situation = Situation(NOW, Inventory(unmarked, (group,)), dict.fromkeys(names, UNFIT), POLICY)

    plan = decide(situation)

    assert plan.breaker
    assert {(decision.verdict, decision.alert) for decision in plan.decisions} == {(Verdict.MARK, True)}


def test_what_was_replaced_is_remembered_from_sweep_to_sweep_for_a_day():
    memory = SweepMemory()
    memory.note_ending([verdict()], NOW)

    read = _memory({"memory": json.loads(json.dumps(memory.to_json()))})

    assert read.replaced_lately(NOW + timedelta(hours=23)) == {"i-1": "dev"}
    assert read.replaced_lately(NOW + timedelta(hours=25)) == {}


# sweeps in a world, by each cloud's own calls

CLOUDS = {"aws": SWEEPING, "alicloud": test_alicloud.POLICY}


def pool_of_one(**more) -> tuple[World, SimulatedInstance]:
    """Return an instance of a group that is idle for 70 minutes."""
    world = World()
    world.group("pool", min_size=0)
    instance = world.join("pool", TAGS, busy=False, **more)
    world.pass_minutes(70)
    return world, instance


def sweep_for(world, checked, hours):
    """Sweep on schedule; return the failures."""
    failed = []
    for _ in range(hours * 6):
        failed += sweep_world(world, checked).done.failures
        world.pass_minutes(10)
    return failed


@pytest.mark.parametrize(("unfit", "state"), [(True, "running"), (False, "stopped")])
def test_where_a_termination_is_locked_a_pool_that_stops_leaves_the_unfit_and_stops_the_idle(unfit, state):
    world, locked = pool_of_one(unfit=unfit)
    locked.lock()

    assert sweep_for(world, STOPPING, hours=4) == []

    assert locked.state == state
    assert "TerminateInstances" not in world.calls
    assert (locked.id in world.groups["pool"]["members"]) is unfit


@pytest.mark.parametrize("cloud", CLOUDS)
def test_one_that_cannot_be_terminated_is_not_put_back_beside_its_replacement(cloud):
    world, unfit = pool_of_one(unfit=True)
    unfit.stubborn = True

    sweep_for(world, CLOUDS[cloud], hours=3)

    assert unfit.id not in world.groups["pool"]["members"]
    assert world.groups["pool"]["desired"] == 1
