"""Invariants of every sweep, from the facts page; ``test_sweep_invariants`` has more."""

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.evidence import combine, summarise
from gpu_fleet_image.controllers.sweep.fleet_limits import BREAKER_LASTS, BREAKER_LEAST
from gpu_fleet_image.controllers.sweep.situation import Usual
from gpu_fleet_image.controllers.sweep.verdict import decide
from gpu_fleet_image.core.metrics import CODE_UNFIT, CODE_UNKNOWN
from gpu_fleet_image.core.model import ENDS, Group, Inventory, Plan, Verdict
from tests.image.situations import (
    IDLE_AFTER,
    MINUTES,
    NOW,
    POLICY,
    History,
    alone,
    histories,
    idle_history,
    make_instance,
)
from tests.image.sweeping import policy

FORGOTTEN = idle_history(161)  # idle when it was marked 40 minutes ago, and ever since


def ends(plan: Plan) -> set[str]:
    return {decision.instance.id for decision in plan.with_verdict(*ENDS)}


def verdict(situation) -> Verdict:
    (decision,) = decide(situation).decisions
    return decision.verdict


def test_a_forgotten_instance_is_terminated():
    """Without this the properties below would hold for a sweep that never ends anything."""
    assert verdict(alone(make_instance(), FORGOTTEN.activity())) is Verdict.TERMINATE


# 1: any busy signal in the window


@given(history=histories(), busy=st.integers(1, int(IDLE_AFTER.total_seconds() / 60) - 1))
def test_an_instance_that_worked_within_the_window_is_never_terminated(history, busy):
    activity = history.active_at(busy).activity()

    assert ends(decide(alone(make_instance(), activity))) == set()


# 2: nobody knows


@given(history=histories(), covered=st.integers(0, 85), seed=st.integers(0, 99))
def test_below_the_coverage_nothing_is_terminated(history, covered, seed):
    # the newest minutes are not counted yet
    recent = [ago for ago in history.beats if 3 < ago <= 60]
    lost = set(random.Random(seed).sample(recent, len(recent) * (100 - covered) // 100))

    assert ends(decide(alone(make_instance(), history.without(lost).activity()))) == set()


@given(history=histories(), silent=st.integers(5, MINUTES))
def test_an_instance_whose_agent_fell_silent_is_unknown(history, silent):
    activity = history.without(range(silent)).activity()

    assert verdict(alone(make_instance(), activity)) in (Verdict.KEEP_UNKNOWN, Verdict.UNMARK)


@given(ahead=st.integers(3, 19))
def test_a_heartbeat_from_the_future_makes_an_instance_unknown(ahead):
    activity = History({**FORGOTTEN.beats, -ahead: 9999.0}).activity()

    assert verdict(alone(make_instance(), activity)) is Verdict.KEEP_UNKNOWN


@given(
    value=st.one_of(st.just(CODE_UNKNOWN), st.floats(max_value=-0.001), st.just(math.nan)).filter(
        lambda value: value != CODE_UNFIT
    )
)
def test_a_sensor_that_fails_makes_an_instance_unknown(value):
    activity = History({**FORGOTTEN.beats, 1: value}).activity()

    assert ends(decide(alone(make_instance(), activity))) == set()


# 3: monotonic in evidence


@given(history=histories(), lost=st.sets(st.integers(0, MINUTES)))
def test_losing_heartbeats_never_adds_an_end(history, lost):
    before = ends(decide(alone(make_instance(), history.activity())))
    after = ends(decide(alone(make_instance(), history.without(lost).activity())))

    assert after <= before


@given(history=histories(), busy=st.integers(1, MINUTES))
def test_more_activity_never_adds_an_end(history, busy):
    before = ends(decide(alone(make_instance(), history.activity())))
    after = ends(decide(alone(make_instance(), history.active_at(busy).activity())))

    assert after <= before


# 4: the launch time only protects


@given(history=histories(), minutes=st.integers(-60, 10_000), younger=st.integers(0, 10_000))
def test_a_younger_instance_is_never_terminated_where_an_older_one_is_not(history, minutes, younger):
    older = make_instance(launched_at=NOW - timedelta(minutes=minutes + younger))
    young = make_instance(launched_at=NOW - timedelta(minutes=minutes))

    assert ends(decide(alone(young, history.activity()))) <= ends(decide(alone(older, history.activity())))


@given(uptime=st.integers(-60, 29))
def test_an_instance_that_just_started_is_left_alone(uptime):
    young = make_instance(launched_at=NOW - timedelta(minutes=uptime), marked_minutes_ago=None)

    assert verdict(alone(young, FORGOTTEN.activity())) is Verdict.KEEP_YOUNG


# 5: holds


@given(history=histories(), hours=st.floats(0.01, 24 * 365), offset=st.integers(-12, 12))
def test_a_hold_that_is_not_over_keeps_an_instance_in_any_time_zone(history, hours, offset):
    until = (NOW + timedelta(hours=hours)).astimezone(ZoneInfo(f"Etc/GMT{offset:+d}"))
    held = make_instance(tags={"gpu-fleet:keep-until": until.isoformat()})

    assert ends(decide(alone(held, history.activity()))) == set()


@given(history=histories(), text=st.text(max_size=30).filter(lambda text: not text.startswith("20")))
def test_a_malformed_hold_protects_and_warns(history, text):
    held = make_instance(tags={"gpu-fleet:keep-until": text}, marked_minutes_ago=None)

    (decision,) = decide(alone(held, history.activity())).decisions

    assert decision.verdict is Verdict.KEEP_HELD
    assert decision.alert
    assert "gpu-fleet:keep-until" in decision.reason


# 6: marked, notified, waited, looked again


@given(history=histories())
def test_what_was_not_marked_earlier_is_not_terminated(history):
    assert ends(decide(alone(make_instance(marked_minutes_ago=None), history.activity()))) == set()


@given(history=histories(), marked=st.integers(0, 29))
def test_within_the_grace_time_nothing_is_terminated(history, marked):
    waiting = make_instance(marked_minutes_ago=marked, idle_since=NOW - timedelta(minutes=161))

    assert ends(decide(alone(waiting, history.activity()))) == set()


# 7: never many


@given(
    count=st.integers(1, 12),
    most=st.integers(0, 12),
    percent=st.integers(0, 100),
    idle=st.lists(st.integers(161, 190), min_size=12, max_size=12),
)
def test_a_sweep_terminates_no_more_than_allowed_and_the_longest_idle_first(count, most, percent, idle):
    instances = [
        make_instance(f"i-{n:02}", idle_since=NOW - timedelta(minutes=idle[n])) for n in range(count)
    ]
    activity = {instance.id: idle_history(idle[n]).activity() for n, instance in enumerate(instances)}
    bounded = replace(POLICY, max_actions=most, max_percent=percent)
    situation = replace(alone(instances[0], FORGOTTEN.activity()), policy=bounded, activity=activity)

    gone = ends(decide(replace(situation, fleet=Inventory(tuple(instances)), override_breaker=True)))

    limit = min(most, math.ceil(percent * count / 100))
    longest = sorted(range(count), key=lambda n: (-idle[n], instances[n].id))
    assert gone == {instances[n].id for n in longest[:limit]}


def fleet_of(idle, due, busy):
    """Return a situation with so many newly idle, due and busy instances."""
    fresh = [make_instance(f"i-new{n}", marked_minutes_ago=None) for n in range(idle)]
    old = [make_instance(f"i-old{n}", idle_since=NOW - timedelta(minutes=161)) for n in range(due)]
    working = [make_instance(f"i-busy{n}", marked_minutes_ago=None) for n in range(busy)]
    activity = {instance.id: FORGOTTEN.activity() for instance in fresh + old}
    activity |= {instance.id: idle_history(0).activity() for instance in working}
    situation = replace(alone(make_instance(), FORGOTTEN.activity()), activity=activity)
    return replace(situation, fleet=Inventory(tuple(fresh + old + working)))


@given(
    idle=st.integers(0, 20),
    due=st.integers(0, 20),
    busy=st.integers(0, 20),
    ended=st.integers(0, 5),
    usual=st.integers(0, 20),
)
def test_more_of_a_pool_idle_within_a_day_than_is_usual_trips_the_breaker_and_terminates_none(
    idle, due, busy, ended, usual
):
    known = Usual({f"i-ended{n}": "dev" for n in range(ended)}, {"dev": {"2026-03-01": usual}})

    plan = decide(replace(fleet_of(idle, due, busy), usual=known))

    size, count = idle + due + busy + ended, idle + due + ended
    assert plan.breaker == (size >= BREAKER_LEAST and count > max(size // 20, usual + usual // 4, 1))
    assert len(plan.with_verdict(*ENDS)) == (0 if plan.breaker else due)
    assert len(plan.with_verdict(Verdict.MARK)) == idle


def test_what_the_breaker_holds_is_terminated_by_its_own_word_a_day_later():
    held = fleet_of(0, 8, 0)
    day_old = {"gpu-fleet:reap-after": (NOW - BREAKER_LASTS).isoformat()}
    aged = tuple(replace(instance, tags=instance.tags | day_old) for instance in held.fleet.instances)

    assert decide(held).with_verdict(*ENDS) == ()
    assert len(decide(replace(held, fleet=Inventory(aged))).with_verdict(*ENDS)) == 8


# 10: no order, no time zone


@given(
    points=st.lists(st.tuples(st.integers(0, 200), st.floats(-2, 9000)), max_size=60), seed=st.integers(0, 9)
)
def test_a_summary_does_not_depend_on_order_or_repeats(points, seed):
    dated = [(NOW.replace(second=0) - timedelta(minutes=ago), value) for ago, value in points]
    shuffled = dated * 2
    random.Random(seed).shuffle(shuffled)

    assert summarise(dated, NOW, IDLE_AFTER, 60) == summarise(shuffled, NOW, IDLE_AFTER, 60)


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@given(minute=st.integers(0, 24 * 60 - 1))
def test_the_hour_of_a_clock_change_terminates_nothing_early(day, minute):
    """Europe/Berlin skips an hour in March and repeats one in October."""
    now = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minute, seconds=20)
    shift = now - NOW
    waiting = make_instance(marked_minutes_ago=29, idle_since=NOW - timedelta(minutes=161))
    tags = waiting.tags | {"gpu-fleet:reap-after": (now + timedelta(minutes=1)).isoformat()}
    local = policy(idle_after_hours=2, top={"time_zone": "Europe/Berlin"})
    activity = FORGOTTEN.activity()
    moved = replace(
        activity, newest_at=activity.newest_at + shift, last_active_at=activity.last_active_at + shift
    )
    situation = alone(replace(waiting, tags=tags, launched_at=now - timedelta(days=1)), moved)

    assert ends(decide(replace(situation, now=now, policy=local))) == set()


# 11: only what is licensed, and members through their group


@given(
    history=histories(),
    tags=st.sampled_from(
        [{"gpu-fleet:managed": "false"}, {"gpu-fleet:stack": "other"}, {"gpu-fleet:protected": ""}]
    ),
)
def test_an_instance_without_the_licence_is_never_touched(history, tags):
    assert verdict(alone(make_instance(tags=tags), history.activity())) is Verdict.KEEP_PROTECTED


@given(count=st.integers(1, 8), least=st.integers(0, 8), desired=st.integers(0, 8))
def test_a_group_never_falls_below_its_minimum(count, least, desired):
    members = tuple(make_instance(f"i-{n}") for n in range(count))
    group = Group("pool", least, desired, {member.id: "InService" for member in members})
    situation = replace(
        alone(members[0], FORGOTTEN.activity()),
        fleet=Inventory(members, (group,)),
        activity={member.id: FORGOTTEN.activity() for member in members},
    )

    gone = ends(decide(replace(situation, override_breaker=True)))

    assert len(gone) == max(0, min(desired, count) - least)


@pytest.mark.parametrize(("coarse", "fine"), [(True, False), (False, True), (False, False)])
def test_two_looks_are_complete_only_if_both_are(coarse, fine):
    looks = [summarise([], NOW, IDLE_AFTER, 60, complete=complete) for complete in (coarse, fine)]

    assert not combine(*looks).complete
