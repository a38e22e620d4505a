"""Instances that their boot check failed: gate and agent report, the sweep replaces, and not for ever."""

import json
from datetime import timedelta

import pytest

from image.reaper.metrics import CODE_UNFIT
from image.reaper.model import Group, Verdict
from image.reaper.sweep.lease import SweepMemory, _memory
from image.reaper.sweep.verdict import MOST_REPLACED_IN_A_DAY, decide
from tests.reaper import test_alicloud
from tests.reaper.custodian_cases import POLICY as SWEEPING
from tests.reaper.custodian_cases import TAGS
from tests.reaper.situations import NOW, POLICY, History, alone, idle_history, make_instance
from tests.reaper.sweeping import policy, sweep_world
from tests.reaper.world import World

MINUTES = range(1, 200)
UNFIT = History(dict.fromkeys(MINUTES, CODE_UNFIT)).activity()
AT_MINIMUM = Group("pool", min_size=1, desired=1, members={"i-1": "InService"}, max_size=1, pool="dev")
FROZEN = Group("pool", min_size=0, desired=1, members={"i-1": "InService"}, pool="dev", closed=True)


def verdict(instance, activity=UNFIT, group=AT_MINIMUM, **more):
    (found,) = decide(alone(instance, activity, groups=(group,) if group else (), **more)).decisions
    return found


def unmarked(**changes):
    return make_instance(marked_minutes_ago=None, **changes)


def worked(minutes_ago: int):
    return History({**dict.fromkeys(MINUTES, CODE_UNFIT), minutes_ago: 0.0}).activity()


# one instance


def test_its_owner_is_notified_before_anything_else():
    found = verdict(unmarked())

    assert (found.verdict, found.alert) == (Verdict.MARK, True)
    assert found.reap_after == NOW + timedelta(minutes=30)


def test_after_its_grace_it_is_terminated_even_where_its_group_is_at_its_minimum():
    """Its group starts another: neither group nor pool falls below anything."""
    found = verdict(make_instance())

    assert (found.verdict, found.replaced) == (Verdict.TERMINATE, True)


def test_a_pool_that_stops_idle_instances_does_not_keep_a_broken_one():
    stopping = policy(action="stop", instance_store_scratch=False, idle_after_hours=2, grace_minutes=30)

    assert verdict(make_instance(), policy=stopping).verdict is Verdict.TERMINATE


@pytest.mark.parametrize("minutes_ago", [1, 5, 29])
def test_one_on_which_something_worked_lately_stays(minutes_ago):
    assert verdict(make_instance(), worked(minutes_ago)).verdict in (Verdict.UNMARK, Verdict.KEEP_BUSY)
    assert verdict(unmarked(), worked(minutes_ago)).verdict is Verdict.KEEP_BUSY


def test_one_that_worked_after_its_mark_is_marked_anew_first():
    marked_early = make_instance(marked_minutes_ago=55)

    assert verdict(marked_early, worked(40)).verdict is Verdict.UNMARK


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"tags": {"gpu-fleet:keep-until": (NOW + timedelta(hours=1)).isoformat()}}, Verdict.KEEP_HELD),
        ({"tags": {"gpu-fleet:protected": "yes"}}, Verdict.KEEP_PROTECTED),
        ({"launched_at": NOW - timedelta(minutes=20)}, Verdict.KEEP_YOUNG),
    ],
)
def test_what_protects_an_idle_instance_protects_an_unfit_one(changes, kept):
    assert verdict(unmarked(**changes)).verdict is kept


@pytest.mark.parametrize("group", [None, FROZEN])
def test_where_nothing_would_take_its_place_a_user_is_notified_instead(group):
    found = verdict(unmarked(), group=group)

    assert (found.verdict, found.alert) == (Verdict.ALERT, True)


def test_a_freeze_that_comes_after_the_mark_takes_the_mark_away():
    assert verdict(make_instance(), group=FROZEN).verdict is Verdict.UNMARK


def test_on_alibaba_cloud_a_group_at_its_minimum_detaches_none():
    found = verdict(unmarked(), policy=test_alicloud.POLICY)

    assert (found.verdict, found.alert) == (Verdict.ALERT, True)
    assert "at its minimum" in found.reason


def test_one_that_was_detached_and_not_terminated_is_terminated_later():
    assert verdict(make_instance(), group=None).verdict is Verdict.TERMINATE


def test_one_whose_files_are_not_saved_yet_waits():
    asking = policy(require_acknowledgement=True, idle_after_hours=2, grace_minutes=30)

    assert verdict(make_instance(), policy=asking).verdict is Verdict.WAIT


@pytest.mark.parametrize("value", [-1.0, -2.0, -4.0, 0.0, 60.0])
def test_no_other_report_replaces_anything(value):
    activity = History({**dict.fromkeys(MINUTES, CODE_UNFIT), 1: value}).activity()

    assert not verdict(make_instance(), activity).replaced


def test_a_silent_gate_is_no_verdict():
    """A fit instance and one whose gate never spoke look the same, and are judged by their use alone."""
    assert not verdict(make_instance(), idle_history(161).activity()).replaced


# a pool


def test_most_of_a_fleet_failing_at_once_is_the_image_and_trips_the_breaker():
    names = [f"i-{index}" for index in range(6)]
    group = Group("pool", 0, 6, dict.fromkeys(names, "InService"), 6, "dev")
    fleet = alone(unmarked(), UNFIT).fleet.__class__(tuple(unmarked(name=name) for name in names), (group,))
    situation = alone(unmarked(), UNFIT).__class__(NOW, fleet, dict.fromkeys(names, UNFIT), POLICY)

    plan = decide(situation)

    assert plan.breaker
    assert {(decision.verdict, decision.alert) for decision in plan.decisions} == {(Verdict.MARK, True)}


def test_the_pools_share_of_the_day_is_bounded_and_then_a_user_is_notified():
    earlier = {f"i-gone-{index}": "dev" for index in range(MOST_REPLACED_IN_A_DAY)}

    found = verdict(make_instance(), replaced=earlier)

    assert (found.verdict, found.alert) == (Verdict.ALERT, True)


def test_what_other_pools_replaced_does_not_count():
    earlier = {f"i-gone-{index}": "train" for index in range(MOST_REPLACED_IN_A_DAY)}

    assert verdict(make_instance(), replaced=earlier).verdict is Verdict.TERMINATE


def test_one_whose_replacement_failed_is_tried_again_at_no_further_count():
    earlier = {"i-1": "dev", "i-gone-1": "dev", "i-gone-2": "dev"}

    assert verdict(make_instance(), replaced=earlier).verdict is Verdict.TERMINATE


def test_what_was_replaced_is_remembered_from_sweep_to_sweep_for_a_day():
    memory = SweepMemory()
    memory.note_ending([verdict(make_instance())], NOW)

    read = _memory({"memory": json.loads(json.dumps(memory.to_json()))})

    assert read.replaced_lately(NOW + timedelta(hours=23)) == {"i-1": "dev"}
    assert read.replaced_lately(NOW + timedelta(hours=25)) == {}


@pytest.mark.parametrize("damaged", [None, [], {"i-1": "dev"}, {"i-1": ["dev"]}, {"i-1": ["dev", "soon"]}])
def test_a_memory_that_cannot_be_read_is_none(damaged):
    assert _memory({"memory": {"replaced": damaged}}).replaced == {}


# sweeps in a world, by each cloud's own calls

CLOUDS = {"aws": SWEEPING, "alicloud": test_alicloud.POLICY}


@pytest.fixture(params=CLOUDS)
def checked(request):
    return CLOUDS[request.param]


def unfit_world(members: int = 1, *, forever: bool = False) -> World:
    """A pool whose instances are unfit; ``forever``: those that replace them too."""
    world = World()
    world.group("pool", min_size=0)
    world.unfit_at_start = True
    for _ in range(members):
        world.join("pool", TAGS, busy=False)
    world.unfit_at_start = forever
    world.pass_minutes(70)
    return world


def sweep_for(world, checked, hours):
    for _ in range(hours * 6):
        sweep_world(world, checked)
        world.pass_minutes(10)


def test_an_unfit_member_is_replaced_and_its_group_wants_as_many_as_before(checked):
    world = unfit_world()
    (unfit,) = world.instances.values()

    sweep_for(world, checked, hours=3)

    assert [ended.id for _, ended, _ in world.ends] == [unfit.id]
    assert world.groups["pool"]["desired"] == 1
    (fit,) = world.groups["pool"]["members"]
    assert fit != unfit.id


def test_the_ledger_claims_no_saving_for_a_replacement(checked):
    world = unfit_world()

    sweep_for(world, checked, hours=3)

    (record,) = [
        json.loads(body) for key, (body, _) in world.objects.items() if key.endswith("-terminate.json")
    ]
    assert record["saved_per_month"] == "0"


def test_an_unfit_member_at_work_is_never_terminated(checked):
    world = unfit_world()
    (unfit,) = world.instances.values()
    unfit.busy = True

    sweep_for(world, checked, hours=4)

    assert world.ends == []


def test_a_broken_image_costs_a_few_instances_a_day_and_no_more(checked):
    world = unfit_world(forever=True)

    sweep_for(world, checked, hours=20)

    assert len(world.ends) == MOST_REPLACED_IN_A_DAY
    assert any("look at image and type" in text for _, text in world.messages)


def test_one_that_cannot_be_terminated_is_not_put_back_beside_its_replacement(checked):
    world = unfit_world()
    (unfit,) = world.instances.values()
    unfit.stubborn = True

    sweep_for(world, checked, hours=3)

    assert unfit.id not in world.groups["pool"]["members"]
    assert world.groups["pool"]["desired"] == 1


def test_one_of_a_pool_that_stops_is_left_in_its_group_where_its_termination_is_locked():
    world = unfit_world()
    (unfit,) = world.instances.values()
    unfit.lock()
    stopping = policy(action="stop", instance_store_scratch=False, idle_after_hours=2, grace_minutes=30)

    failed = []
    for _ in range(18):
        failed += sweep_world(world, stopping).done.failures
        world.pass_minutes(10)

    assert list(world.groups["pool"]["members"]) == [unfit.id]
    assert failed == []
    assert "TerminateInstances" not in world.calls


def test_an_idle_one_of_a_pool_that_stops_is_stopped_though_its_termination_is_locked():
    world = World()
    world.group("pool", min_size=0)
    idle = world.join("pool", TAGS, busy=False)
    idle.lock()
    stopping = policy(action="stop", instance_store_scratch=False, idle_after_hours=1, grace_minutes=30)

    world.pass_minutes(70)
    sweep_for(world, stopping, hours=3)

    assert idle.state == "stopped"
