"""Verdicts on one instance, case by case: the parts of a policy that the invariants do not cover."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.evidence import summarise, window_of
from gpu_fleet_image.controllers.sweep.idle_rules import is_quiet
from gpu_fleet_image.controllers.sweep.situation import shortest_idle_time
from gpu_fleet_image.controllers.sweep.verdict import decide
from gpu_fleet_image.core.handshake import (
    CLOSED_LASTS,
    IDLE_LASTS,
    MarkReplies,
    Reply,
    mark_name,
    replies,
    replies_of,
)
from gpu_fleet_image.core.model import (
    TAG_GIVE_BACK,
    TAG_OWNER,
    TAG_WITHDRAWN,
    Activity,
    Coverage,
    Group,
    Instance,
    Inventory,
    Verdict,
)
from gpu_fleet_image.core.store import Listed
from tests.image.situations import IDLE_AFTER, NOW, POLICY, History, alone, idle_history, make_instance
from tests.image.sweeping import policy

FORGOTTEN = idle_history(161).activity()
BUSY, YOUNG, UNKNOWN = Verdict.KEEP_BUSY, Verdict.KEEP_YOUNG, Verdict.KEEP_UNKNOWN
PROTECTED, HELD = Verdict.KEEP_PROTECTED, Verdict.KEEP_HELD


def decision(situation):
    (found,) = decide(situation).decisions
    return found


def with_pool(**changes):
    return policy(**{"idle_after_hours": 2, "grace_minutes": 30, "max_lifetime_hours": None} | changes)


def unmarked(**changes):
    return make_instance(marked_minutes_ago=None, **changes)


STOPPED_AT = NOW - timedelta(days=8)


def stopped(**changes):
    return unmarked(**{"state": "stopped", "stopped_at": STOPPED_AT} | changes)


def marked(idle_since, reap_after):
    return {"gpu-fleet:idle-since": idle_since.isoformat(), "gpu-fleet:reap-after": reap_after.isoformat()}


def until(span):
    return {"gpu-fleet:keep-until": (NOW + span).isoformat()}


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STOPPING = with_pool(action="stop", instance_store_scratch=False, terminate_stopped_after_days=7)
NEVER_TERMINATING = with_pool(action="stop", instance_store_scratch=False)
ALL_DAY = with_pool(quiet_hours=[{"start": "00:00", "end": "00:00"}])
LIFETIME = with_pool(max_lifetime_hours=168)
KEEPS_ONE = with_pool(min_size=1)
OLD = {"launched_at": NOW - 8 * DAY}
# The mark that led to the stop was no notice of the end of its disk.
FIRST_MARK = marked(STOPPED_AT - 3 * HOUR, STOPPED_AT - 5 * MINUTE)
SECOND_MARK = marked(STOPPED_AT, NOW - 5 * MINUTE)


def with_beat(ago, value):
    return History({**idle_history(161).beats, ago: value}).activity()


class Case(NamedTuple):
    """An instance, its situation, and its verdict; an alert of None is not checked."""

    expected: Verdict
    instance: Instance
    activity: Activity = FORGOTTEN
    policy: Any = POLICY
    says: str = ""
    alert: bool | None = None
    groups: tuple[Group, ...] = ()


CASES = {
    "of a stopping pool": Case(Verdict.STOP, make_instance(), policy=STOPPING),
    "spot, of a stopping pool": Case(PROTECTED, make_instance(spot=True), policy=STOPPING, alert=True),
    "stopped, by its first mark": Case(Verdict.MARK, stopped(tags=FIRST_MARK), policy=STOPPING),
    "stopped, by its second": Case(Verdict.TERMINATE, stopped(tags=SECOND_MARK), policy=STOPPING),
    "stopped not long enough": Case(HELD, stopped(stopped_at=NOW - 6 * DAY), policy=STOPPING),
    # EC2 gives no time where the instance shut itself down; on Alibaba Cloud only the sweep notes one
    "stopped, nobody knows when": Case(
        PROTECTED, stopped(stopped_at=None), policy=STOPPING, says="nobody knows since when", alert=True
    ),
    "stopped, no second stage": Case(PROTECTED, stopped(), policy=NEVER_TERMINATING),
    "stopped and held": Case(HELD, stopped(tags=until(DAY)), policy=STOPPING),
    "stopped and not managed": Case(PROTECTED, stopped(tags={"gpu-fleet:managed": "false"}), policy=STOPPING),
    "quiet hours": Case(Verdict.WAIT, unmarked(), policy=ALL_DAY, says="quiet hours"),
    "quiet hours, marked": Case(Verdict.WAIT, make_instance(), policy=ALL_DAY, says="quiet hours"),
    "asked for, until load returns": Case(
        Verdict.UNMARK,
        make_instance(marked_minutes_ago=10, idle_since=NOW - HOUR),
        idle_history(60).activity(),
    ),
    "old, at work": Case(
        BUSY,
        unmarked(**OLD),
        idle_history(5).activity(),
        policy=LIFETIME,
        says="past its lifetime of 168 h",
        alert=True,
    ),
    "old, idle for the shorter time": Case(
        Verdict.MARK, unmarked(**OLD), idle_history(40).activity(), policy=LIFETIME
    ),
    "a hung GPU": Case(
        Verdict.ALERT, unmarked(), replace(FORGOTTEN, newest_value=-2.0), says="SUSPECT-HUNG", alert=True
    ),
    "an agent that repeats itself": Case(UNKNOWN, make_instance(), replace(FORGOTTEN, contradictory=True)),
    "of an unknown pool": Case(PROTECTED, make_instance(tags={"gpu-fleet:pool": "gone"}), alert=True),
    **{
        f"a member in state {state}": Case(
            PROTECTED, make_instance(), groups=(Group("pool", 0, 1, {"i-1": state}),)
        )
        for state in ("Standby", "Terminating:Wait", "Pending")
    },
    "the last of its pool": Case(Verdict.KEEP_FLOOR, unmarked(), policy=KEEPS_ONE),
    "the last of its pool, marked": Case(Verdict.UNMARK, make_instance(), policy=KEEPS_ONE),
    **{
        f"a window that is not covered: {covered}": Case(
            UNKNOWN, make_instance(), replace(FORGOTTEN, coverage=tuple(Coverage(n, 100) for n in covered))
        )
        for covered in ((99, 50), (50, 99))
    },
    "it starts, marked": Case(Verdict.UNMARK, make_instance(state="pending")),
    "it starts": Case(YOUNG, unmarked(state="pending")),
    "a hold beyond fourteen days": Case(
        HELD,
        unmarked(tags={"gpu-fleet:keep-until": "2099-01-01T00:00:00Z"}),
        says="at most 14 days ahead",
        alert=True,
    ),
    "time is left": Case(
        Verdict.WAIT,
        make_instance(marked_minutes_ago=10, idle_since=NOW - 161 * MINUTE),
        says="idle for 2.7 h; will be stopped or terminated in 20 min unless used",
    ),
    # a job may have begun since: the agent died, or the network holds it up
    **{
        f"silent for {minutes} min": Case(
            found, make_instance(), idle_history(161).without(range(1, minutes)).activity()
        )
        for minutes, found in ((3, Verdict.TERMINATE), (4, UNKNOWN))
    },
    # its clock is wrong, and what it said may be older than it seems
    **{
        f"{minutes} min ahead": Case(
            found,
            make_instance(),
            History({ago: max(0.0, (161 - ago) * 60.0) for ago in range(-minutes, 200)}).activity(),
        )
        for minutes, found in ((2, Verdict.TERMINATE), (3, UNKNOWN))
    },
    # everybody on an instance may publish in its name; an older one counts like one that was lost
    **{
        f"a heartbeat of {value} {ago} min ago": Case(found, make_instance(), with_beat(ago, value))
        for value in (1e12, 1e300, float("inf"), float("nan"))
        for ago, found in ((1, UNKNOWN), (100, Verdict.TERMINATE))
    },
}


def test_each_case_has_its_verdict_its_reason_and_its_alert():
    found = {
        name: decision(alone(case.instance, case.activity, policy=case.policy, groups=case.groups))
        for name, case in CASES.items()
    }

    assert [
        f"{name}: {found[name].verdict}, {found[name].reason}, alert {found[name].alert}"
        for name, case in CASES.items()
        if found[name].verdict is not case.expected
        or case.says not in found[name].reason
        or case.alert not in (None, found[name].alert)
    ] == []


def test_a_stopped_instance_is_idle_since_its_stop():
    found = decision(alone(stopped(tags=FIRST_MARK), FORGOTTEN, policy=STOPPING))

    assert found.idle_since == STOPPED_AT


# quiet hours

NIGHT = [{"start": "19:00", "end": "07:00"}]


@pytest.mark.parametrize(
    ("moment", "quiet"),
    [
        ("2026-07-01T17:30:00+00:00", True),  # 19:30 in Berlin, in summer
        ("2026-07-01T16:30:00+00:00", False),
        ("2026-12-01T18:30:00+00:00", True),  # 19:30 in Berlin, in winter
        ("2026-12-01T17:30:00+00:00", False),
        ("2026-12-02T05:59:00+00:00", True),
        ("2026-12-02T06:00:00+00:00", False),  # the end is not quiet any more
    ],
)
def test_quiet_hours_follow_the_clock_on_the_wall(moment, quiet):
    checked = policy(quiet_hours=NIGHT, top={"time_zone": "Europe/Berlin"})

    spans = checked.pools["dev"].quiet_hours

    assert is_quiet(datetime.fromisoformat(moment), spans, checked.time_zone, weekends=False) is quiet


def test_a_weekend_is_quiet_where_users_live():
    late_friday_in_utc = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    berlin, utc = policy(top={"time_zone": "Europe/Berlin"}), policy()

    assert is_quiet(late_friday_in_utc, (), berlin.time_zone, weekends=True)
    assert not is_quiet(late_friday_in_utc, (), utc.time_zone, weekends=True)


# requests


def fleet_of(idle_minutes, **changes):
    instances = tuple(make_instance(f"i-{n}", marked_minutes_ago=None) for n in range(len(idle_minutes)))
    activity = {f"i-{n}": idle_history(idle).activity() for n, idle in enumerate(idle_minutes)}
    situation = replace(alone(instances[0], FORGOTTEN), fleet=Inventory(instances), activity=activity)
    return {found.instance.id: found.verdict for found in decide(replace(situation, **changes)).decisions}


@pytest.mark.parametrize(
    ("idle_minutes", "pools", "marked"),
    [
        ([0, 40, 60], {"dev"}, {"i-2"}),
        ([0, 5, 20], {"dev"}, set()),  # at work
        ([161, 60], {"dev"}, {"i-0"}),  # another is leaving
        ([40, 60], set(), set()),
    ],
)
def test_low_load_takes_the_longest_idle_instance_and_only_one(idle_minutes, pools, marked):
    found = fleet_of(idle_minutes, scale_in=frozenset(pools))

    assert {name for name, verdict in found.items() if verdict is Verdict.MARK} == marked
    assert set(found.values()) <= {Verdict.KEEP_BUSY, Verdict.MARK}


def test_low_load_stays_with_the_instance_that_it_asked_for_first():
    """Another may be idle for longer by now, but its user was not notified."""
    since = NOW - timedelta(minutes=40)
    asked = make_instance("i-1", marked_minutes_ago=5, idle_since=since)
    fleet = Inventory((make_instance("i-0", marked_minutes_ago=None), asked))
    activity = {"i-0": idle_history(60).activity(), "i-1": idle_history(40).activity()}
    situation = replace(alone(asked, FORGOTTEN), fleet=fleet, activity=activity, scale_in=frozenset({"dev"}))

    assert [decision.verdict for decision in decide(situation).decisions] == [Verdict.KEEP_BUSY, Verdict.WAIT]


# the instance's own word

CAREFUL = with_pool(require_acknowledgement=True)


def verdict_on(ages, mark_of=None, **changes):
    """Return the verdict on a marked instance with a reply of this age, for its mark or another."""
    marked = make_instance(**changes)
    mark = mark_of or mark_name(datetime.fromisoformat(marked.tags["gpu-fleet:reap-after"]))
    said = {(marked.id, mark): MarkReplies(f"AROA:{marked.id}", ages)}
    return decision(alone(marked, FORGOTTEN, policy=CAREFUL, replies=said))


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({}, Verdict.WAIT),
        ({Reply.IDLE: MINUTE}, Verdict.TERMINATE),
        ({Reply.IDLE: IDLE_LASTS}, Verdict.TERMINATE),
        ({Reply.IDLE: IDLE_LASTS + MINUTE}, Verdict.WAIT),
        ({Reply.IDLE: 30 * MINUTE, Reply.CLOSED: CLOSED_LASTS}, Verdict.TERMINATE),
        ({Reply.IDLE: 30 * MINUTE, Reply.CLOSED: CLOSED_LASTS + MINUTE}, Verdict.WAIT),
        ({Reply.IDLE: MINUTE, Reply.CLOSED: MINUTE, Reply.REFUSED: 30 * MINUTE}, Verdict.UNMARK),
    ],
)
def test_an_instance_is_terminated_on_its_own_fresh_word_alone(ages, expected):
    assert verdict_on(ages).verdict is expected
    assert verdict_on(ages, mark_of="20260101T000000Z").verdict is Verdict.WAIT, "a word for another mark"


def test_without_an_answer_nothing_is_terminated_and_a_user_is_notified_after_an_hour():
    idle_since = NOW - timedelta(minutes=161)
    early, late = verdict_on({}), verdict_on({}, marked_minutes_ago=95, idle_since=idle_since)

    assert "nothing runs there" in early.reason
    assert (early.alert, late.alert) == (False, True)


def test_an_instance_that_fenced_itself_for_this_mark_is_unmarked():
    marked = make_instance()
    fenced = {TAG_WITHDRAWN: marked.tags["gpu-fleet:reap-after"]}

    assert verdict_on({Reply.CLOSED: CLOSED_LASTS}, tags=fenced).verdict is Verdict.UNMARK
    other = {TAG_WITHDRAWN: "another"}
    assert verdict_on({Reply.CLOSED: CLOSED_LASTS}, tags=other).verdict is Verdict.TERMINATE


def test_of_two_callers_that_claim_to_be_one_instance_neither_is_believed():
    listed = [Listed(f"handshake/{role}:i-1/20260101T000000Z/idle.json", MINUTE) for role in ("A", "B")]

    assert replies_of(replies(listed), "i-1", datetime(2026, 1, 1, tzinfo=UTC)).reply is None


@given(st.lists(st.text(max_size=30), max_size=5))
def test_names_outside_of_this_protocol_say_nothing(names):
    listed = [Listed(f"handshake/{name}", MINUTE) for name in names]

    assert all(said.reply is None or said.reply in set(Reply) for said in replies(listed).values())


# what counts


@pytest.mark.parametrize("values", [(7000.0, 5.0), (5.0, 7000.0)])
def test_of_two_values_of_one_minute_the_one_with_more_use_counts(values):
    at = NOW - timedelta(minutes=3, seconds=20)

    found = summarise([(at, value) for value in values], NOW, IDLE_AFTER, 60)

    assert (found.newest_at, found.newest_value) == (at, 5.0)


def test_a_stopped_instance_is_none_of_a_pools_minimum():
    situation = alone(make_instance(), FORGOTTEN, policy=with_pool(min_size=1))
    both = Inventory((make_instance(), stopped(name="i-2")))

    running, _ = decide(replace(situation, fleet=both)).decisions

    assert running.verdict is Verdict.UNMARK


# given back by who took it

GIVEN_BACK = {TAG_GIVE_BACK: f"{NOW.isoformat()} ada", TAG_OWNER: "ada"}


def given_back(idle_minutes, *, up_minutes=1440, **changes):
    """Return the verdict on an instance that was given back, without a mark by default."""
    tags = GIVEN_BACK | changes.pop("tags", {})
    launched_at = NOW - timedelta(minutes=up_minutes)
    found = make_instance(marked_minutes_ago=None, launched_at=launched_at, tags=tags, **changes)
    window = window_of(found, POLICY)
    activity = idle_history(idle_minutes, min(up_minutes, 240)).activity(window)
    return decision(alone(found, activity))


def test_what_was_given_back_is_marked_as_soon_as_nothing_runs_there_however_young():
    for up_minutes in (1440, 20):
        found = given_back(10, up_minutes=up_minutes)

        assert (found.verdict, found.reap_after) == (Verdict.MARK, NOW)


def test_what_was_given_back_stays_where_it_is_used_or_held_or_kept_or_started_again():
    earlier, unreadable = f"{(NOW - 21 * MINUTE).isoformat()} ada", ("now", NOW.isoformat())

    assert given_back(2).verdict is BUSY
    assert given_back(10, tags=until(DAY)).verdict is HELD
    assert given_back(10, tags=until(-MINUTE)).verdict is BUSY, "its pool's terms, once the hold is over"
    assert given_back(10, up_minutes=20, tags={TAG_GIVE_BACK: earlier}).verdict is YOUNG
    assert {given_back(10, tags={TAG_GIVE_BACK: text}).verdict for text in unreadable} == {BUSY}
    young = unmarked(launched_at=NOW - 20 * MINUTE)
    assert decision(alone(young, idle_history(10, 20).activity())).verdict is YOUNG, "nobody gave it back"


def test_only_what_was_given_back_is_looked_at_for_so_short_a_time():
    given = make_instance(tags=GIVEN_BACK)

    assert window_of(make_instance(), POLICY) == IDLE_AFTER
    assert window_of(given, POLICY) == 5 * MINUTE
    assert shortest_idle_time(given, POLICY.pools["dev"], NOW, ()) == 5 * MINUTE


@pytest.mark.parametrize(("size", "held"), [(4, 0), (5, 2)])
def test_from_five_instances_on_the_breaker_holds_two_that_fall_idle_at_once(size, held):
    instances = [make_instance(f"i-{n}", None if n > 1 else 40) for n in range(size)]
    idle = {instance.id: FORGOTTEN for instance in instances[:2]}
    busy = {instance.id: idle_history(1).activity() for instance in instances[2:]}
    situation = replace(
        alone(instances[0], FORGOTTEN), fleet=Inventory(tuple(instances)), activity=idle | busy
    )

    verdicts = [found.verdict for found in decide(situation).decisions]

    assert verdicts.count(Verdict.WAIT) == held
    assert verdicts.count(Verdict.TERMINATE) == 2 - held
