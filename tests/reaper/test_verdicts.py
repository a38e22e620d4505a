"""What becomes of one instance, case by case: the parts of a policy that the invariants do not reach."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.reaper.handshake import CLOSED_LASTS, IDLE_LASTS, Reply, Said, mark_name, replies, said_of
from image.reaper.model import TAG_GIVE_BACK, TAG_WITHDRAWN, Coverage, Group, Inventory, Verdict
from image.reaper.store import Listed
from image.reaper.sweep.evidence import summarise, window_of
from image.reaper.sweep.verdict import decide, shortest_idle_time
from image.reaper.times import is_quiet
from tests.reaper.situations import IDLE_AFTER, NOW, POLICY, History, alone, idle_history, make_instance
from tests.reaper.sweeping import policy

FORGOTTEN = idle_history(161).activity()


def decision(situation):
    (found,) = decide(situation).decisions
    return found


def with_pool(**changes):
    return policy(**{"idle_after_hours": 2, "grace_minutes": 30, "max_lifetime_hours": None} | changes)


# stop, then terminate

STOPPING = with_pool(action="stop", instance_store_scratch=False, terminate_stopped_after_days=7)
STOPPED_AT = NOW - timedelta(days=8)


def stopped(**changes):
    return make_instance(
        **{"state": "stopped", "stopped_at": STOPPED_AT, "marked_minutes_ago": None} | changes
    )


def test_an_instance_of_a_stopping_pool_is_stopped():
    assert decision(alone(make_instance(), FORGOTTEN, policy=STOPPING)).verdict is Verdict.STOP


def test_a_spot_instance_is_never_stopped_and_a_user_is_notified():
    found = decision(alone(make_instance(spot=True), FORGOTTEN, policy=STOPPING))

    assert (found.verdict, found.alert) == (Verdict.KEEP_PROTECTED, True)


def test_a_stopped_instance_is_marked_again_before_it_is_terminated():
    """The mark that led to the stop was no notice of the end of its disk."""
    first_mark = {
        "gpu-fleet:idle-since": (STOPPED_AT - timedelta(hours=3)).isoformat(),
        "gpu-fleet:reap-after": (STOPPED_AT - timedelta(minutes=5)).isoformat(),
    }

    found = decision(alone(stopped(tags=first_mark), FORGOTTEN, policy=STOPPING))

    assert found.verdict is Verdict.MARK
    assert found.idle_since == STOPPED_AT


def test_a_stopped_instance_is_terminated_when_its_own_mark_is_due():
    second_mark = {
        "gpu-fleet:idle-since": STOPPED_AT.isoformat(),
        "gpu-fleet:reap-after": (NOW - timedelta(minutes=5)).isoformat(),
    }

    found = decision(alone(stopped(tags=second_mark), FORGOTTEN, policy=STOPPING))

    assert found.verdict is Verdict.TERMINATE


@pytest.mark.parametrize(
    ("changes", "checked"),
    [
        ({"stopped_at": NOW - timedelta(days=6)}, STOPPING),
        ({"stopped_at": None}, STOPPING),
        ({}, with_pool(action="stop", instance_store_scratch=False)),
        ({"tags": {"gpu-fleet:keep-until": (NOW + timedelta(days=1)).isoformat()}}, STOPPING),
        ({"tags": {"gpu-fleet:managed": "false"}}, STOPPING),
    ],
    ids=["not long enough", "nobody knows since when", "no second stage", "held", "not managed"],
)
def test_a_stopped_instance_stays_otherwise(changes, checked):
    assert decision(alone(stopped(**changes), FORGOTTEN, policy=checked)).verdict.startswith("KEEP")


def test_users_are_notified_of_a_stopped_instance_whose_stop_has_no_known_time():
    """EC2 gives no time where the instance shut itself down; on Alibaba Cloud only the sweep notes one."""
    found = decision(alone(stopped(stopped_at=None), FORGOTTEN, policy=STOPPING))

    assert (found.verdict, found.alert) == (Verdict.KEEP_PROTECTED, True)
    assert "nobody knows since when" in found.reason


NONSENSE = pytest.mark.parametrize("value", [1e12, 1e300, float("inf"), float("nan")])


@NONSENSE
def test_a_heartbeat_that_no_agent_can_mean_leaves_its_instance_unknown(value):
    """Everybody on an instance may publish in its name."""
    history = History({**idle_history(161).beats, 1: value})

    assert decision(alone(make_instance(), history.activity())).verdict is Verdict.KEEP_UNKNOWN


@NONSENSE
def test_an_older_one_counts_like_one_that_was_lost(value):
    history, lost = idle_history(161), {100}

    nonsense = History({**history.beats, 100: value}).activity()

    assert decision(alone(make_instance(), nonsense)) == decision(
        alone(make_instance(), history.without(lost).activity())
    )


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


@pytest.mark.parametrize("marked", [None, 40])
def test_nothing_is_marked_or_terminated_in_quiet_hours(marked):
    all_day = with_pool(quiet_hours=[{"start": "00:00", "end": "00:00"}])

    found = decision(alone(make_instance(marked_minutes_ago=marked), FORGOTTEN, policy=all_day))

    assert found.verdict is Verdict.WAIT
    assert "quiet hours" in found.reason


# requests


def fleet_of(idle_minutes, **changes):
    instances = tuple(make_instance(f"i-{n}", marked_minutes_ago=None) for n in range(len(idle_minutes)))
    activity = {
        instance.id: idle_history(idle).activity()
        for instance, idle in zip(instances, idle_minutes, strict=True)
    }
    situation = replace(alone(instances[0], FORGOTTEN), fleet=Inventory(instances), activity=activity)
    return {
        decision.instance.id: decision.verdict for decision in decide(replace(situation, **changes)).decisions
    }


def test_low_load_takes_the_longest_idle_instance_and_only_one():
    found = fleet_of([0, 40, 60], scale_in=frozenset({"dev"}))

    assert found == {"i-0": Verdict.KEEP_BUSY, "i-1": Verdict.KEEP_BUSY, "i-2": Verdict.MARK}


def test_low_load_stays_with_the_instance_that_it_asked_for_first():
    """However long another is idle by now: that one's user was not notified."""
    since = NOW - timedelta(minutes=40)
    asked = make_instance("i-1", marked_minutes_ago=5, idle_since=since)
    fleet = Inventory((make_instance("i-0", marked_minutes_ago=None), asked))
    activity = {"i-0": idle_history(60).activity(), "i-1": idle_history(40).activity()}
    situation = replace(alone(asked, FORGOTTEN), fleet=fleet, activity=activity, scale_in=frozenset({"dev"}))

    assert [decision.verdict for decision in decide(situation).decisions] == [Verdict.KEEP_BUSY, Verdict.WAIT]


def test_low_load_takes_no_instance_at_work():
    assert set(fleet_of([0, 5, 20], scale_in=frozenset({"dev"})).values()) == {Verdict.KEEP_BUSY}


def test_low_load_waits_while_another_instance_is_leaving():
    found = fleet_of([161, 60], scale_in=frozenset({"dev"}))

    assert found == {"i-0": Verdict.MARK, "i-1": Verdict.KEEP_BUSY}


def test_without_low_load_a_short_idle_time_is_no_reason():
    assert set(fleet_of([40, 60]).values()) == {Verdict.KEEP_BUSY}


def test_an_instance_that_was_asked_for_is_unmarked_when_load_returns():
    asked = make_instance(marked_minutes_ago=10, idle_since=NOW - timedelta(minutes=60))

    assert decision(alone(asked, idle_history(60).activity())).verdict is Verdict.UNMARK


OLD = {"launched_at": NOW - timedelta(days=8)}
LIFETIME = with_pool(max_lifetime_hours=168)


def test_an_old_instance_at_work_is_left_and_its_owner_asked():
    found = decision(
        alone(make_instance(marked_minutes_ago=None, **OLD), idle_history(5).activity(), policy=LIFETIME)
    )

    assert (found.verdict, found.alert) == (Verdict.KEEP_BUSY, True)
    assert "past its lifetime of 168 h" in found.reason


def test_an_old_instance_has_the_shorter_idle_time():
    unmarked = make_instance(marked_minutes_ago=None, **OLD)

    assert decision(alone(unmarked, idle_history(40).activity(), policy=LIFETIME)).verdict is Verdict.MARK


# the instance's own word

CAREFUL = with_pool(require_acknowledgement=True)
MINUTE = timedelta(minutes=1)


def verdict_on(ages, mark_of=None, **changes):
    """The verdict on a marked instance that said something, so long ago, for its mark or for another."""
    marked = make_instance(**changes)
    mark = mark_of or mark_name(datetime.fromisoformat(marked.tags["gpu-fleet:reap-after"]))
    said = {(marked.id, mark): Said(f"AROA:{marked.id}", ages)}
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


def test_a_word_for_another_mark_is_no_word():
    assert verdict_on({Reply.CLOSED: CLOSED_LASTS}, mark_of="20260101T000000Z").verdict is Verdict.WAIT


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

    assert said_of(replies(listed), "i-1", datetime(2026, 1, 1, tzinfo=UTC)).reply is None


@given(st.lists(st.text(max_size=30), max_size=5))
def test_names_outside_of_this_protocol_say_nothing(names):
    listed = [Listed(f"handshake/{name}", MINUTE) for name in names]

    assert all(said.reply is None or said.reply in set(Reply) for said in replies(listed).values())


# what is reported


def test_a_hung_gpu_is_reported_and_never_terminated():
    hung = replace(FORGOTTEN, newest_value=-2.0)

    found = decision(alone(make_instance(marked_minutes_ago=None), hung))

    assert (found.verdict, found.alert) == (Verdict.ALERT, True)
    assert "SUSPECT-HUNG" in found.reason


def test_an_agent_that_repeats_itself_is_not_believed():
    frozen = replace(FORGOTTEN, contradictory=True)

    assert decision(alone(make_instance(), frozen)).verdict is Verdict.KEEP_UNKNOWN


def test_an_instance_of_an_unknown_pool_is_left_and_reported():
    stray = make_instance(tags={"gpu-fleet:pool": "gone"})

    found = decision(alone(stray, FORGOTTEN))

    assert (found.verdict, found.alert) == (Verdict.KEEP_PROTECTED, True)


@pytest.mark.parametrize("state", ["Standby", "Terminating:Wait", "Pending"])
def test_a_member_in_another_state_than_service_is_left_to_its_group(state):
    group = Group("pool", 0, 1, {"i-1": state})

    assert decision(alone(make_instance(), FORGOTTEN, groups=(group,))).verdict is Verdict.KEEP_PROTECTED


def test_a_pool_keeps_its_minimum():
    least = with_pool(min_size=1)

    assert (
        decision(alone(make_instance(marked_minutes_ago=None), FORGOTTEN, policy=least)).verdict
        is Verdict.KEEP_FLOOR
    )
    assert decision(alone(make_instance(), FORGOTTEN, policy=least)).verdict is Verdict.UNMARK


@pytest.mark.parametrize(
    "covered", [(Coverage(99, 100), Coverage(50, 100)), (Coverage(50, 100), Coverage(99, 100))]
)
def test_each_window_must_be_covered(covered):
    assert (
        decision(alone(make_instance(), replace(FORGOTTEN, coverage=covered))).verdict is Verdict.KEEP_UNKNOWN
    )


def test_an_instance_that_starts_is_left_alone_whatever_was_heard_of_it():
    assert decision(alone(make_instance(state="pending"), FORGOTTEN)).verdict is Verdict.UNMARK
    starting = make_instance(state="pending", marked_minutes_ago=None)

    assert decision(alone(starting, FORGOTTEN)).verdict is Verdict.KEEP_YOUNG


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


def test_a_hold_beyond_fourteen_days_holds_and_is_reported():
    far = make_instance(tags={"gpu-fleet:keep-until": "2099-01-01T00:00:00Z"}, marked_minutes_ago=None)

    found = decision(alone(far, FORGOTTEN))

    assert (found.verdict, found.alert) == (Verdict.KEEP_HELD, True)
    assert "at most 14 days ahead" in found.reason


def test_the_time_left_is_reported():
    waiting = make_instance(marked_minutes_ago=10, idle_since=NOW - timedelta(minutes=161))

    assert (
        decision(alone(waiting, FORGOTTEN)).reason
        == "idle for 2.7 h; will be stopped or terminated in 20 min unless used"
    )


def test_the_policy_of_these_tests_is_the_one_they_name():
    assert timedelta(hours=POLICY.pools["dev"].idle_after_hours) == IDLE_AFTER


# given back by who took it

GIVEN_BACK = {TAG_GIVE_BACK: NOW.isoformat()}


def given_back(idle_minutes, *, up_minutes=1440, **changes):
    """The verdict on an instance that was given back, with no mark unless it is said."""
    tags = GIVEN_BACK | changes.pop("tags", {})
    launched_at = NOW - timedelta(minutes=up_minutes)
    found = make_instance(marked_minutes_ago=None, launched_at=launched_at, tags=tags, **changes)
    window = window_of(found, POLICY)
    activity = idle_history(idle_minutes, min(up_minutes, 240)).activity(window)
    return decision(alone(found, activity))


@pytest.mark.parametrize("up_minutes", [1440, 20])
def test_what_was_given_back_is_marked_as_soon_as_nothing_runs_there_however_young(up_minutes):
    found = given_back(10, up_minutes=up_minutes)

    assert found.verdict is Verdict.MARK
    assert found.reap_after == NOW


def test_what_was_given_back_stays_while_it_is_used():
    assert given_back(2).verdict is Verdict.KEEP_BUSY


def test_what_was_given_back_and_is_held_again_stays():
    held = {"gpu-fleet:keep-until": (NOW + timedelta(days=1)).isoformat()}

    assert given_back(10, tags=held).verdict is Verdict.KEEP_HELD


def test_what_was_kept_after_it_was_given_back_has_its_pools_terms_once_the_hold_is_over():
    over = {"gpu-fleet:keep-until": (NOW - timedelta(minutes=1)).isoformat()}

    assert given_back(10, tags=over).verdict is Verdict.KEEP_BUSY


def test_what_was_given_back_before_it_was_started_again_has_its_pools_terms():
    earlier = {TAG_GIVE_BACK: (NOW - timedelta(minutes=21)).isoformat()}

    assert given_back(10, up_minutes=20, tags=earlier).verdict is Verdict.KEEP_YOUNG


def test_a_give_back_that_cannot_be_read_shortens_nothing():
    assert given_back(10, tags={TAG_GIVE_BACK: "now"}).verdict is Verdict.KEEP_BUSY


def test_a_young_instance_that_was_not_given_back_is_left_alone():
    young = make_instance(marked_minutes_ago=None, launched_at=NOW - timedelta(minutes=20))

    assert decision(alone(young, idle_history(10, 20).activity())).verdict is Verdict.KEEP_YOUNG


def test_only_what_was_given_back_is_looked_at_for_so_short_a_time():
    assert window_of(make_instance(), POLICY) == IDLE_AFTER
    assert window_of(make_instance(tags=GIVEN_BACK), POLICY) == timedelta(minutes=5)
    assert shortest_idle_time(make_instance(tags=GIVEN_BACK), POLICY.pools["dev"], NOW, ()) == timedelta(
        minutes=5
    )


# how old, and how young, the newest heartbeat may be


@pytest.mark.parametrize(("minutes", "found"), [(3, Verdict.TERMINATE), (4, Verdict.KEEP_UNKNOWN)])
def test_an_instance_whose_newest_heartbeat_is_more_than_four_minutes_old_is_unknown(minutes, found):
    """A job may have begun since: the agent died, or the network holds it up."""
    silent = idle_history(161).without(range(1, minutes)).activity()
    assert NOW - silent.newest_at == timedelta(minutes=minutes, seconds=20)

    assert decision(alone(make_instance(), silent)).verdict is found


@pytest.mark.parametrize(("minutes", "found"), [(2, Verdict.TERMINATE), (3, Verdict.KEEP_UNKNOWN)])
def test_an_instance_whose_newest_heartbeat_is_more_than_two_minutes_ahead_is_unknown(minutes, found):
    """Its clock is wrong, and what it said may be older than it seems."""
    ahead = History({ago: max(0.0, (161 - ago) * 60.0) for ago in range(-minutes, 200)}).activity()
    assert ahead.newest_at - NOW == timedelta(minutes=minutes, seconds=-20)

    assert decision(alone(make_instance(), ahead)).verdict is found


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
