"""Where the next instance starts: in order, within every limit, and elsewhere when there is no room."""

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_image.console.users.take import refusal
from gpu_fleet_image.controllers.mover.pass_state import COOL_OFF
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.controllers.mover.requests import WAIT
from gpu_fleet_image.controllers.mover.withdrawals import SILENT
from gpu_fleet_image.core.capacity import MOST_REFUSED, SHARED, SPARE, TAG_TAKEN, Fate, MoverState
from gpu_fleet_image.core.capacity import asked as asked_by
from gpu_fleet_image.core.model import TAG_GIVE_BACK, TAG_KEEP_UNTIL, TAG_TAKEN_AT
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.core.times import format_time
from tests.image.cloud_of_groups import LABELS, Cloud, policy, request

A, B = LABELS


def fate(cloud, asked):
    return cloud.state.requests[asked.key].fate


def reason(cloud, asked):
    return cloud.state.requests[asked.key].reason


def with_a_spare(**capacity):
    """(a cloud whose spare has come, that spare)."""
    cloud = Cloud(policy=policy(spare=1, **capacity))
    cloud.move()
    cloud.minutes()
    return cloud, next(iter(cloud.instances))


def test_a_group_that_says_nothing_is_given_up_after_some_minutes():
    cloud = Cloud()
    cloud.move(request())
    cloud.now += SILENT

    cloud.move()

    assert cloud.desired == {A: 0, B: 1}


def test_the_instances_of_one_request_stand_together_where_the_pool_says_so():
    cloud = Cloud(policy=policy(together=True), room={A: False, B: True})

    cloud.move(request(3))
    cloud.minutes(2)

    assert cloud.desired == {A: 0, B: 3}
    assert len(cloud.owned("ada")) == 3


def test_a_cluster_starts_where_all_of_it_has_capacity():
    cloud, asked = Cloud(policy=policy(together=True, max_size=8)), request(2)
    cloud.groups[A] = replace(cloud.groups[A], desired=3, members=dict.fromkeys(("x", "y", "z"), "InService"))

    cloud.move(asked)
    cloud.minutes()

    assert cloud.desired == {A: 3, B: 2}
    assert fate(cloud, asked) is Fate.FILLED


def test_a_spare_is_no_part_of_a_cluster_that_has_no_room_beside_it():
    (cloud, spare), asked = with_a_spare(together=True, max_size=8), request(2)
    cloud.groups[A] = replace(cloud.groups[A], max_size=1)

    cloud.move(asked)
    cloud.minutes()

    assert cloud.instances[spare].tags[TAG_TAKEN] == SPARE
    assert cloud.desired == {A: 1, B: 2}
    assert len(cloud.owned("ada")) == 2


def half_came(count=2, hours=30, together=True, **changes):
    """(a cloud without room, where one instance of a request came; that request)."""
    cloud, asked = Cloud(policy=policy(together=together), **changes), request(count, hours)
    cloud.move(asked)
    cloud.launch(A)
    cloud.room = dict.fromkeys(LABELS, False)
    return cloud, asked


@pytest.mark.parametrize(("together", "whose"), [(True, "nobody's"), (False, "yours")])
def test_the_result_of_a_request_that_failed_is_reported_and_a_part_of_a_cluster_is_let_go(together, whose):
    cloud, asked = half_came(together=together)

    cloud.minutes(WAIT // timedelta(minutes=1) + 2)

    (came,) = cloud.instances.values()
    assert fate(cloud, asked) is Fate.FAILED
    assert f"1 of 2 started, {came.id}, {whose}" in reason(cloud, asked)
    assert cloud.owned("ada") == ([] if together else [came.id])
    assert (TAG_KEEP_UNTIL in came.tags) is not together
    assert sum(cloud.desired.values()) == 1
    assert cloud.waiting() == ()


@pytest.mark.parametrize(
    ("left", "says"),
    [
        (3, "every group of train is full or closed"),
        (0, "nothing of the month's budget is left"),
        (None, "nobody knows what is spent"),
    ],
)
def test_a_request_that_was_tried_nowhere_says_why_and_its_own_promise_is_no_reason(left, says):
    cloud, asked = Cloud(), request()
    cloud.groups = {label: replace(group, closed=True) for label, group in cloud.groups.items()}
    cloud.move(asked)
    cloud.left = None if left is None else Decimal(left)

    cloud.minutes(16)

    assert (fate(cloud, asked), reason(cloud, asked)) == (Fate.FAILED, f"no capacity anywhere: {says}")


def test_a_release_that_could_not_be_written_is_tried_again():
    cloud, asked = half_came()
    while asked.key not in cloud.state.requests or fate(cloud, asked) is Fate.OPEN:
        cloud.later()
        before = dict(cloud.instances)
        cloud.move()
    cloud.instances = before
    assert cloud.owned("ada")

    cloud.move()

    assert cloud.owned("ada") == []


def untagged(until, passes=3):
    """(a cloud whose spare is on its way, and whose tags some passes could not write, that spare)."""
    cloud = Cloud(policy=policy(spare=1))
    cloud.move()
    for _ in range(passes):
        cloud.later()
        before = dict(cloud.instances)
        cloud.move(until=until)
        cloud.instances = before
    return cloud, next(iter(cloud.instances), "")


@pytest.mark.parametrize("until", [None, 0], ids=["refused", "cut off"])
def test_a_spare_whose_tags_were_not_written_is_the_only_one_and_gets_them(until):
    cloud, spare = untagged(until)

    cloud.minutes(2)

    assert list(cloud.instances) == [spare]
    assert cloud.instances[spare].tags.keys() >= {TAG_TAKEN, TAG_KEEP_UNTIL}
    assert cloud.state.gifts == {}


@pytest.mark.parametrize("passes", [0, 3])
def test_a_spare_without_its_tags_is_a_users_who_asks_and_has_no_hold(passes):
    """One whose tags were refused, and one that comes in the pass that reads the request."""
    cloud, _ = untagged(None, passes)
    cloud.later()

    cloud.move(request())

    assert [TAG_KEEP_UNTIL in cloud.instances[name].tags for name in cloud.owned("ada")] == [False]


def test_a_spare_without_its_tags_is_the_pools_once_it_keeps_none():
    cloud, spare = untagged(None)
    cloud.policy = policy()

    cloud.minutes(2)

    assert cloud.instances[spare].tags[TAG_TAKEN] == SHARED
    assert TAG_KEEP_UNTIL not in cloud.instances[spare].tags


def test_an_instance_whose_tags_were_refused_is_given_to_nobody_else():
    cloud = Cloud()
    cloud.move(request(who="bob"))
    cloud.later()
    refused = dict(cloud.instances)
    cloud.move(request(number=2))
    cloud.instances |= refused

    cloud.minutes(5)

    assert [len(cloud.owned(who)) for who in ("bob", "ada")] == [1, 1]
    assert cloud.owned("bob") == [*refused]


def test_a_spare_that_waits_for_a_group_takes_no_place_once_its_money_is_gone():
    cloud = Cloud(policy=policy(spare=1), room=dict.fromkeys(LABELS, False))
    cloud.minutes(3)
    cloud.left = Decimal(0)

    cloud.minutes(3)

    assert [decision.reason for decision in cloud.ledger if decision.action is Action.HOLD] != []
    assert (cloud.state.coming, cloud.totals[-1]) == ((), {"train": 0})


# What the cloud is like, what was asked before, what is asked, and what the answer says.
PAST_A_LIMIT = [
    ({}, (), request(5), "size.max of train, which is 4"),
    ({"policy": policy(max_size=0)}, (), request(), "train takes no new instances: its size.max is 0"),
    ({"left": Decimal(5)}, (), request(), "10.00 USD are needed, and 5.00 of the month's budget are left"),
    ({"left": Decimal(5)}, (), request(hours=0.001), "10.00 USD are needed"),  # an hour at least
    ({}, (), request(2, hours=60), "1200.00 USD are needed"),
    ({"left": None}, (), request(), "nobody knows what is spent"),
    ({"frozen": frozenset({"train"})}, (), request(), "frozen"),
    ({"policy": policy(max_size=9)}, (request(3),), request(2, number=2), "take.max_per_person is 4"),
    ({"left": Decimal(100)}, (request(hours=8),), request(hours=8, who="bob", number=2), "are promised"),
]


@pytest.mark.parametrize(("changes", "before", "asked", "says"), PAST_A_LIMIT)
def test_a_request_past_a_limit_is_refused_and_says_which(changes, before, asked, says):
    cloud = Cloud(**changes)
    cloud.move(*before)
    rises = list(cloud.rises)

    cloud.move(asked)

    assert fate(cloud, asked) is Fate.REFUSED
    assert says in reason(cloud, asked)
    assert cloud.rises == rises


@pytest.mark.parametrize(
    ("caller", "is_refused"),
    [
        ("users/ada", True),
        ("sessions/AROAXYZ:Ada@lab.example", True),
        ("users/bob", False),
        ("users/guest", True),
    ],
)
def test_a_frozen_team_starts_nothing_by_whatever_name_its_people_log_in(caller, is_refused):
    """A directory names people by their address; who is in no team is in that of all others."""
    frozen = dict.fromkeys(("vision", "no-team"), "frozen")
    cloud = Cloud(frozen_teams=frozen, teams={"ada": "vision", "bob": "nlp"})

    cloud.move(replace(request(), key=f"2026-11-22/{caller}/100000Z-00000001"))

    assert [decision.action is Action.REFUSE for decision in cloud.ledger[:1]] == [is_refused]


def test_while_a_team_is_frozen_nobody_takes_anything_unless_it_is_known_who_is_in_it():
    cloud = Cloud(frozen_teams={"vision": "frozen"}, teams=None)

    cloud.move(request())

    told = [(decision.action, decision.reason) for decision in cloud.ledger]
    assert told == [(Action.REFUSE, "nobody knows who is in a frozen team (vision); try again")]


def test_hours_hold_an_instance_and_without_them_the_idle_rules_alone_apply():
    cloud = Cloud()
    cloud.move(request(1, hours=8), request(1, who="bob", number=2))
    cloud.minutes()

    held = {instance.owner: TAG_KEEP_UNTIL in instance.tags for instance in cloud.instances.values()}
    assert held == {"ada": True, "bob": False}


def test_a_spare_is_taken_at_once_and_another_one_started():
    (cloud, spare), asked = with_a_spare(), request()
    taken_at = cloud.now

    cloud.move(asked)
    cloud.minutes()

    assert cloud.owned("ada") == [spare]
    tags = [(each.tags[TAG_TAKEN], each.tags.get(TAG_TAKEN_AT)) for each in cloud.instances.values()]
    assert tags == [(asked.key, format_time(taken_at)), (SPARE, None)]


def test_a_spare_is_held_for_as_long_as_it_is_one():
    cloud = Cloud(policy=policy(spare=1))
    for _ in range(20):
        cloud.move()
        cloud.later(seconds=86_400)

    assert len(cloud.instances) == 1


def test_nothing_starts_in_a_pool_that_drains_and_what_runs_stays():
    cloud = Cloud(firing=frozenset({"train"}), queue={"train": PoolNeed(0, (1, 2))})
    cloud.move(request())
    cloud.minutes()
    running = list(cloud.instances)
    rises = list(cloud.rises)

    cloud.policy = policy(max_size=0)
    cloud.move(request(number=2))
    cloud.minutes(10)

    assert (cloud.rises, list(cloud.instances)) == (rises, running)
    assert len(running) > 1
    assert refusal(cloud.policy, "train", 1) == "POOL 'train': takes no new instances, its size.max is 0"


def test_load_brings_one_instance_and_no_second_within_the_cooldown():
    cloud = Cloud(firing=frozenset({"train"}))

    cloud.minutes(4)

    assert sum(cloud.desired.values()) == 1


def test_a_pass_that_was_cut_off_before_it_said_so_raises_nothing_twice():
    cloud = Cloud()
    cloud.move(request(), until=2)
    assert [request.started for request in cloud.waiting()] == [False]

    cloud.move()

    assert cloud.desired == {A: 1, B: 0}


def test_what_two_passes_of_one_second_start_has_names_of_its_own():
    """The schedule and a launch that failed may wake the mover at once."""
    cloud = Cloud()
    cloud.move(request())
    cloud.now += timedelta(milliseconds=10)
    cloud.move(request(who="bob", number=2))

    assert len({request.id for request in cloud.waiting()}) == 2


def test_the_instances_of_a_request_start_by_one_call_in_the_first_zone_and_are_their_user_s():
    """Alibaba Cloud refuses a second activity of a group while the first one runs."""
    cloud, asked = Cloud(), request(3)

    decisions = cloud.move(asked)
    cloud.minutes()

    (start,) = [decision for decision in decisions if decision.action is Action.START]
    assert (len(start.coming), cloud.desired) == (3, {A: 3, B: 0})
    assert fate(cloud, asked) is Fate.FILLED
    assert cloud.owned("ada") == list(cloud.state.requests[asked.key].instances)
    assert cloud.move() == [], "nothing is left to do"


def test_of_many_refused_requests_of_one_caller_the_newest_stay_in_the_state():
    cloud, asked = Cloud(), request(who="bob")
    cloud.move(asked, *(request(99, number=number) for number in range(MOST_REFUSED + 20)))
    within = len(cloud.state.requests)

    cloud.now += timedelta(hours=2)
    cloud.move()

    assert (within, len(cloud.state.requests)) == (MOST_REFUSED + 21, MOST_REFUSED + 1)
    assert asked.key in cloud.state.requests


def taken_for_two_weeks(**changes):
    """A cloud an hour after ada took one instance, whose promise leaves nothing for anybody else."""
    cloud = Cloud(left=Decimal(3360), **changes)
    cloud.move(request(hours=336))
    cloud.minutes()
    cloud.later(3600)
    return cloud, next(iter(cloud.instances))


def asked_now(cloud, **more):
    """What bob asks for by now, as the next pass of the mover takes it."""
    second = replace(request(who="bob", number=2, **more), at=cloud.now)
    cloud.move(second)
    return second


def retagged(cloud, name, tags):
    """A user's command changes tags; None takes one off."""
    kept = {key: value for key, value in (cloud.instances[name].tags | tags).items() if value is not None}
    cloud.instances[name] = replace(cloud.instances[name], tags=kept)


def given_back(cloud, name):
    retagged(cloud, name, {TAG_GIVE_BACK: f"{format_time(cloud.now)} ada", TAG_KEEP_UNTIL: None})


def released(cloud, name):
    retagged(cloud, name, {TAG_KEEP_UNTIL: format_time(cloud.now)})


@pytest.mark.parametrize("over", [Cloud.end, given_back, released])
def test_money_of_a_taken_instance_is_free_once_it_is_gone_or_its_hold_is(over):
    cloud, name = taken_for_two_weeks()
    over(cloud, name)

    second = asked_now(cloud, hours=300)

    assert fate(cloud, second) is Fate.OPEN


@pytest.mark.parametrize("tags", [{}, {TAG_TAKEN: None, TAG_KEEP_UNTIL: None}, {TAG_KEEP_UNTIL: "soon"}])
@pytest.mark.parametrize(("days", "promised"), [(0, "3349.83"), (3, "2629.83")])
def test_money_stays_promised_while_a_hold_lasts_or_nobody_knows_what_became_of_it(tags, days, promised):
    cloud, name = taken_for_two_weeks()
    retagged(cloud, name, tags)
    cloud.later(days * 86_400)

    second = asked_now(cloud, hours=300)

    assert f"{promised} that are promised" in reason(cloud, second)


def test_money_of_the_part_that_came_of_a_request_that_failed_stays_promised():
    cloud, asked = half_came(hours=336, together=False, left=Decimal(6720))
    cloud.minutes(20)

    cloud.left = Decimal(3400)
    second = asked_now(cloud, hours=10)

    assert fate(cloud, asked) is Fate.FAILED
    assert fate(cloud, second) is Fate.REFUSED


@pytest.mark.parametrize("changes", [{"left": Decimal(5)}, {"frozen": frozenset({"train"})}])
def test_a_spare_is_given_to_no_user_whom_the_limits_refuse(changes):
    (cloud, _), asked = with_a_spare(), request()
    vars(cloud).update(changes)

    cloud.move(asked)

    assert fate(cloud, asked) is Fate.REFUSED


def waiting_for_room():
    """A cloud where somebody waits, and a zone has just got room."""
    cloud = Cloud(room=dict.fromkeys(LABELS, False))
    cloud.move(request())
    for _ in range(2):
        cloud.later(10)
        cloud.move()
    cloud.now += COOL_OFF
    cloud.room[A] = True
    return cloud


@pytest.mark.parametrize(
    "changes",
    [{}, {"frozen": frozenset({"train"})}, {"left": Decimal(0)}, {"left": None}, {"raised_by_hand": 4}],
)
def test_what_waited_starts_where_room_came_within_the_limits_of_then(changes):
    """A freeze, an empty budget, or an operator who raised another group by hand up to the pool's limit."""
    cloud = waiting_for_room()
    if by_hand := changes.get("raised_by_hand"):
        cloud.groups[B] = replace(cloud.groups[B], desired=by_hand)
    vars(cloud).update(changes)

    cloud.move()

    assert cloud.desired[A] == (0 if changes else 1)


ACTS = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 5), st.sampled_from(["ada", "bob", "eve"])),
    st.tuples(st.just("withdraw"), st.integers(0, 9), st.none()),
    st.tuples(st.just("room"), st.sampled_from(LABELS), st.booleans()),
    st.tuples(st.just("freeze"), st.booleans(), st.none()),
    st.tuples(st.just("money"), st.sampled_from([None, 0, 15, 200]), st.none()),
    st.tuples(st.just("load"), st.booleans(), st.none()),
    st.tuples(st.just("end"), st.integers(0, 9), st.none()),
    st.tuples(st.just("cut"), st.integers(0, 3), st.none()),
    st.tuples(st.just("pass"), st.integers(1, 400), st.none()),
)


def act(cloud, number, what, value, who):
    """One thing happens; gives what is asked for, and where the next pass is cut off."""
    if what == "ask":
        return (request(value, None, who, number),), None
    if what == "withdraw" and cloud.state.requests:
        keys = sorted(cloud.state.requests)
        return (withdrawal(replace(request(), key=keys[value % len(keys)]), number + 100),), None
    if what == "room":
        cloud.room[value] = who
    elif what == "freeze":
        cloud.frozen = frozenset({"train"} if value else ())
    elif what == "money":
        cloud.left = None if value is None else Decimal(value)
    elif what == "load":
        cloud.firing = frozenset({"train"} if value else ())
    elif what == "end" and cloud.instances:
        cloud.end(sorted(cloud.instances)[value % len(cloud.instances)])
    elif what == "pass":
        cloud.later(value)
    return (), value if what == "cut" else None


def play(cloud, acts, **changes):
    """Let one thing happen after the other, each before a pass."""
    for number, (what, value, who) in enumerate(acts):
        asked, until = act(cloud, number, what, value, who)
        cloud.move(*(replace(each, **changes) for each in asked), until=until)


@settings(max_examples=150, deadline=None)
@given(acts=st.lists(ACTS, max_size=30), spare=st.integers(0, 2), together=st.booleans())
def test_whatever_happens_no_limit_is_passed_and_every_rise_has_its_line(acts, spare, together):
    cloud = Cloud(policy=policy(spare=spare, together=together))
    for number, (what, value, who) in enumerate(acts):
        rises, lines = len(cloud.rises), len(cloud.ledger)
        asked, until = act(cloud, number, what, value, who)
        cloud.move(*asked, until=until)

        new = cloud.ledger[lines:]
        rising = [request.group for request in new if request.action is Action.START for _ in request.coming]
        risen = [group for group, by in cloud.rises[rises:] for _ in range(by)]
        assert risen == rising[: len(risen)]
        assert not (rising and (cloud.frozen or cloud.left is None or cloud.left <= 0))
        assert sum(cloud.desired.values()) <= 4
        for person in ("ada", "bob", "eve"):
            assert len(cloud.owned(person)) <= 4
        stored = json.loads(json.dumps(cloud.state.to_json()))
        assert MoverState.from_json(stored, "state.json") == cloud.state


@settings(max_examples=100, deadline=None)
@given(acts=st.lists(ACTS, max_size=20))
def test_once_there_is_room_and_money_again_nothing_waits_for_ever(acts):
    cloud = Cloud()
    play(cloud, acts)
    cloud.room, cloud.left, cloud.frozen = dict.fromkeys(LABELS, True), Decimal(1000), frozenset()
    cloud.firing = frozenset()

    cloud.move()
    cloud.minutes(30)

    assert all(request.fate is not Fate.OPEN for request in cloud.state.requests.values())
    assert cloud.waiting() == ()
    assert sum(cloud.desired.values()) == len(cloud.instances)
    for each in cloud.state.requests.values():
        assert set(each.instances) & set(cloud.instances) <= set(cloud.owned(each.owner))


def test_what_the_cloud_took_and_cannot_replace_is_no_instance_that_others_wait_behind():
    cloud = Cloud(policy=policy(max_size=2))
    cloud.move(request(2))
    cloud.minutes()
    cloud.interrupt(*cloud.groups[A].members)
    cloud.room[B] = False
    cloud.minutes(20)
    cloud.room[B] = True

    second = asked_now(cloud)
    cloud.minutes(2)

    assert cloud.desired == {A: 0, B: 1}
    assert fate(cloud, second) is Fate.FILLED


@pytest.mark.parametrize(
    ("desired", "min_size", "frozen", "after"),
    [(2, 0, (), {A: 0, B: 2}), (1, 1, (), {A: 1, B: 0}), (1, 0, ("train",), {A: 1, B: 0})],
    ids=["wants more", "at its minimum", "frozen"],
)
def test_what_a_group_without_room_wants_beyond_its_minimum_starts_in_the_next_zone(
    desired, min_size, frozen, after
):
    cloud = Cloud(room={A: False, B: True}, frozen=frozenset(frozen))
    cloud.groups[A] = replace(cloud.groups[A], desired=desired, min_size=min_size)

    cloud.minutes(10)

    assert cloud.desired == after
    assert len(cloud.instances) == after[B]


def withdrawal(asked, number=9):
    """What a user writes who waits for a request no more."""
    return replace(
        request(0, number=number), key=f"{asked.key[:-8]}{number:08x}", pool="", withdraws=asked.key
    )


def test_a_request_that_is_withdrawn_starts_no_more_and_what_came_stays_with_its_user():
    cloud, asked = half_came(count=3, hours=None, together=False)
    cloud.room[B] = True

    cloud.move(withdrawal(asked))
    cloud.minutes(20)

    assert fate(cloud, asked) is Fate.FAILED
    assert reason(cloud, asked).startswith("withdrawn by ada (1 of 3 started, i-0000, yours")
    assert cloud.desired == {A: 1, B: 0}
    assert cloud.owned("ada") == ["i-0000"]
    assert cloud.waiting() == ()


def test_what_came_of_a_cluster_that_is_withdrawn_is_left_to_the_idle_rules():
    cloud, asked = half_came()
    cloud.room[B] = True

    cloud.move(withdrawal(asked))
    cloud.minutes(2)

    (came,) = cloud.instances.values()
    assert cloud.owned("ada") == []
    assert TAG_KEEP_UNTIL not in came.tags


@pytest.mark.parametrize("before", [True, False])
def test_a_withdrawal_that_is_seen_with_its_request_or_before_it_starts_nothing(before):
    cloud, asked = Cloud(), request(2)
    if before:
        cloud.move(withdrawal(asked))

    cloud.move(asked, withdrawal(asked))
    cloud.minutes(2)

    assert (fate(cloud, asked), reason(cloud, asked)) == (Fate.REFUSED, "withdrawn by ada")
    assert cloud.rises == []


def test_what_is_filled_cannot_be_withdrawn():
    cloud, asked = Cloud(), request()
    cloud.move(asked)
    cloud.minutes()

    cloud.move(withdrawal(asked))
    cloud.minutes(2)

    assert fate(cloud, asked) is Fate.FILLED
    assert len(cloud.owned("ada")) == 1


@pytest.mark.parametrize("key", ["2026-11-22/users/ada/100000Z-00000001", 7, "x", None])
def test_a_request_of_another_user_cannot_be_withdrawn(key):
    made = asked_by("2026-11-22/users/bob/100001Z-00000002", {"withdraws": key}, Cloud().now)

    assert (made.fate, made.withdraws) == (Fate.REFUSED, "")
    assert "allowed: the key of a request of your own" in made.reason


def cluster(number, label, *, together=True):
    """A pool whose instances stand close together, after its first ones came to one zone."""
    cloud = Cloud(policy=policy(together=together))
    cloud.groups[label] = replace(cloud.groups[label], desired=number)
    cloud.minutes()
    return cloud


@pytest.mark.parametrize("label", LABELS)
def test_what_was_interrupted_of_a_cluster_waits_for_its_own_zone(label):
    """Another zone has room, but no placement group spans two, and EFA does not leave a subnet."""
    cloud = cluster(3, label)
    cloud.interrupt(next(iter(cloud.instances)))
    cloud.minutes(8)
    assert [group for group, _ in cloud.rises if group != label] == []

    cloud.room[label] = True
    cloud.minutes(6)

    assert cloud.desired == {A: 0, B: 0} | {label: 3}
    assert len(cloud.instances) == 3


@pytest.mark.parametrize(("together", "left", "after"), [(True, 0, {A: 0, B: 3}), (False, 2, {A: 2, B: 1})])
def test_a_cluster_of_which_nothing_is_left_or_a_pool_that_is_none_starts_where_there_is_room(
    together, left, after
):
    cloud = cluster(3, A, together=together)
    cloud.interrupt(*list(cloud.instances)[left:])

    cloud.minutes(4)

    assert cloud.desired == after
    assert len(cloud.instances) == 3


def test_what_was_interrupted_of_a_request_starts_nothing_alone_in_another_zone():
    cloud = Cloud(policy=policy(together=True))
    cloud.move(request(3))
    cloud.minutes()
    cloud.interrupt(cloud.owned("ada")[0])

    cloud.minutes(30)

    assert cloud.desired == {A: 2, B: 0}
    assert cloud.waiting() == ()


def test_a_job_of_the_queue_does_not_spread_over_two_zones():
    cloud = Cloud(policy=policy(together=True, queue_gpus=8), queue={"train": PoolNeed(0, (2,))})
    cloud.minutes(2)
    cloud.room[A] = False
    cloud.queue = {"train": PoolNeed(0, (3,))}

    cloud.minutes(8)

    assert cloud.desired[B] == 0
    assert len(cloud.instances) == 2


def test_a_load_that_is_long_over_starts_nothing():
    cloud = Cloud(room=dict.fromkeys(LABELS, False), firing=frozenset({"train"}))
    cloud.minutes(3)
    cloud.firing = frozenset()
    cloud.minutes(20)

    cloud.room = dict.fromkeys(LABELS, True)
    cloud.minutes(20)

    assert cloud.instances == {}
    assert cloud.waiting() == ()


def test_what_the_pool_itself_started_has_its_hour_of_the_budget():
    cloud = Cloud(left=Decimal(15), firing=frozenset({"train"}))

    cloud.minutes(30)

    assert len(cloud.instances) == 1
    assert [decision.action for decision in cloud.ledger].count(Action.HOLD) == 1


def test_load_and_queue_do_not_both_spend_what_is_left():
    cloud = Cloud(policy=policy(queue_gpus=8), left=Decimal(15), firing=frozenset({"train"}))
    cloud.queue = {"train": PoolNeed(1, (1,))}

    cloud.move()

    assert sum(cloud.desired.values()) == 1


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(ACTS, max_size=20), hours=st.floats(2, 90))
def test_where_nothing_is_left_no_money_is_promised(acts, hours):
    cloud = Cloud()
    cloud.move(request(hours=hours, who="yan", number=98))
    play(cloud, acts, hours=hours)
    cloud.minutes(2)
    cloud.frozen, cloud.firing, cloud.room = frozenset(), frozenset(), dict.fromkeys(LABELS, False)
    cloud.minutes(20)
    for name in list(cloud.instances):
        cloud.end(name)

    last = replace(request(hours=336, who="zoe", number=99), at=cloud.now)
    cloud.left = Decimal(3360)
    cloud.move(last)

    assert fate(cloud, last) is Fate.OPEN
