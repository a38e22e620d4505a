"""Instances that were given back or taken, with the function's own handler and real agents."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_fleet_image.controllers.sweep.verdict import decide, if_nothing_ran
from gpu_fleet_image.core.marks import give_back_of
from gpu_fleet_image.core.model import (
    TAG_GIVE_BACK,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_OWNER,
    TAG_REAP_AFTER,
    TAG_TAKEN_AT,
    TAG_USERS,
    Verdict,
)
from gpu_fleet_image.core.notify.notifier import Notifier
from gpu_fleet_image.core.times import format_time, parse_time
from tests.image.controllers.sweep.test_sweep_on_moto import sweep  # noqa: F401 - a fixture
from tests.image.moto_fleet import NOW, client, wire
from tests.image.situations import NOW as MOMENT
from tests.image.situations import alone, idle_history, make_instance
from tests.image.sweeping import policy


def tag(live, instance, **tags):
    live.ec2.create_tags(Resources=[instance.id], Tags=wire(tags))


def give_back(live, instance, by="ada", **more):
    tag(live, instance, **{TAG_GIVE_BACK: f"{format_time(live.now)} {by}"} | more)


def swept(live, minutes=25):
    """Sweep on schedule."""
    for _ in range(minutes // 5):
        live.sweep()
        live.pass_minutes(5)


def ended(instances):
    return [instance.id for instance in instances if instance.truth.ended_at is not None]


def test_what_its_owner_gives_back_waits_for_no_breaker_and_trips_none(live):
    instances = live.start(7)
    for each_instance in instances[2:]:
        each_instance.log_in()
    live.pass_minutes(8)
    for each_instance in instances[:2]:
        give_back(live, each_instance)

    assert not live.sweep()["breaker"]
    swept(live)

    assert ended(instances) == [instance.id for instance in instances[:2]]


def test_who_kept_an_instance_is_notified_anew_when_another_gives_it_back(live, monkeypatch):
    notices, announce = [], Notifier.announce

    def listened(self, stack, decisions):
        notices.extend(decisions)
        return announce(self, stack, decisions)

    monkeypatch.setattr(Notifier, "announce", listened)
    (instance,) = live.start()
    live.pass_minutes(2)
    live.sweep()
    tag(live, instance, **{TAG_KEEP_UNTIL: format_time(live.now + timedelta(hours=8)), TAG_KEEP_REASON: "x"})
    swept(live)
    before = len(notices)
    give_back(live, instance, by="eve")
    live.ec2.delete_tags(Resources=[instance.id], Tags=[{"Key": TAG_KEEP_UNTIL}, {"Key": TAG_KEEP_REASON}])

    swept(live, minutes=10)

    assert live.marked() == [instance]
    assert ["given back by eve" in decision.reason for decision in notices[before:]] == [True]


def test_while_many_are_idle_what_its_owner_gave_back_is_terminated_and_the_others_wait(live):
    instances = live.start(6)
    live.pass_minutes(2)
    give_back(live, instances[0])

    assert live.sweep()["breaker"]
    swept(live)

    assert ended(instances) == [instances[0].id]


def test_in_the_first_week_only_what_its_owner_gave_back_is_terminated(live):
    live.policy({"watch_days": 7})
    instances = live.start(3)
    live.pass_minutes(2)
    give_back(live, instances[0])
    give_back(live, instances[1], by="eve")

    swept(live)

    assert ended(instances) == [instances[0].id]
    assert live.marked() == [instances[0]]


def test_in_the_first_week_what_was_given_back_stays_while_it_is_used(live):
    live.policy({"watch_days": 7})
    (instance,) = live.start()
    live.pass_minutes(2)
    give_back(live, instance)
    live.sweep()
    assert live.marked() == [instance]
    instance.begin_job()

    swept(live)

    assert ended([instance]) == []
    assert live.marked() == []


@pytest.mark.parametrize(
    ("by", "seen", "goes"), [("ada", "", True), ("ada", "bob:login+process", False), ("eve", "", False)]
)
def test_a_give_back_terminates_no_work_of_others(live, by, seen, goes):
    """The pool's times hold for other users, who may wait there without a sign."""
    (instance,) = live.start()
    instance.log_in()
    live.pass_minutes(15)
    give_back(live, instance, by, **({TAG_USERS: seen} if seen else {}), **{TAG_OWNER: by if goes else "ada"})

    swept(live)
    assert ended([instance]) == ([instance.id] if goes else [])

    if not goes:
        swept(live, 60)
        assert ended([instance]) == [instance.id], "its pool's time is over, and nothing was there"


def test_the_owner_is_notified_of_who_gave_it_back_before_its_grace(fleet, sweep):  # noqa: F811
    instance = fleet.idle()
    value = f"{format_time(NOW)} eve"
    client("ec2").create_tags(Resources=[instance], Tags=[{"Key": TAG_GIVE_BACK, "Value": value}])

    _, report = sweep(NOW)

    assert report["marked"] == [instance]
    messages = [mail["Message"] for mail in fleet.heard()]
    assert all(
        "given back by eve, not by its owner ada: the pool's times apply" in message for message in messages
    )
    assert len(messages) == 2, "the owner's, and the operators' alert"


def given_back(by="ada", seen=""):
    tags = {TAG_GIVE_BACK: f"{format_time(MOMENT)} {by}", TAG_OWNER: "ada", TAG_USERS: seen}
    return make_instance(marked_minutes_ago=None, tags=tags)


def test_the_reason_says_who_gave_it_back():
    situation = alone(given_back(), idle_history(10).activity(timedelta(minutes=5)))

    (found,) = decide(situation).decisions

    assert found.verdict is Verdict.MARK
    assert ", given back by ada; will be stopped or terminated after" in found.reason


@pytest.mark.parametrize(
    ("terms", "verdict", "says"),
    [
        ({}, Verdict.MARK, "given back by ada"),
        (
            {"quiet_weekends": True, "quiet_hours": [{"start": "00:00", "end": "00:00"}]},
            Verdict.WAIT,
            "quiet hours in UTC",
        ),
        ({"min_size": 1}, Verdict.KEEP_FLOOR, "its pool or group is at its minimum"),
    ],
)
def test_what_will_hold_it_up_is_known_before_it_is_idle(terms, verdict, says):
    instance = given_back()
    situation = alone(instance, idle_history(0).activity(), policy=policy(**terms))

    found = if_nothing_ran(situation, instance)

    assert (found.verdict, says in found.reason) == (verdict, True)


# Owner, who gave it back, who was seen on it -> whether that word alone is enough.
SOLE = {
    ("ada", "ada", ""): True,
    ("ada", "ada", "ada:login"): True,
    ("ada@example.com", "ada@example.com", "ada:process"): True,
    ("ada", "ada", "ec2-user:login"): True,  # the one account that everybody uses
    ("ada", "ada", "ubuntu:login+process"): True,
    ("ada", "ada", "ssm-user:login+process"): True,
    ("ada", "ada", "bob:login"): False,
    ("ada", "ada", "adam:login"): False,
    ("ada", "ada", "ada:login bob:process"): False,
    ("ada", "ada", "bob:process ubuntu:login"): False,
    ("adam", "adam", "ada:login"): False,
    ("ada", "adam", ""): False,
    ("ada", "eve", "eve:login"): False,
    ("", "eve", ""): False,
}


def test_whose_word_alone_is_enough():
    def is_sole(owner, by, seen):
        instance = given_back(by, seen)
        return give_back_of(replace(instance, tags=instance.tags | {TAG_OWNER: owner})).is_sole

    assert {case: is_sole(*case) for case in SOLE} == SOLE


@pytest.mark.parametrize(("minutes_later", "counts"), [(-1, True), (0, False), (1, False)])
def test_a_give_back_ends_when_somebody_takes_the_instance_even_the_same_user(minutes_later, counts):
    instance = given_back("ada", "")
    taken = parse_time(instance.tags[TAG_GIVE_BACK].partition(" ")[0]) + timedelta(minutes=minutes_later)

    taken_again = replace(instance, tags=instance.tags | {TAG_OWNER: "ada", TAG_TAKEN_AT: format_time(taken)})

    assert (give_back_of(taken_again) is not None) is counts


@pytest.mark.parametrize(("idle_minutes", "taken_minutes_ago"), [(10, 170), (170, 10)])
def test_an_instance_that_was_taken_is_idle_since_the_later_of_its_use_and_that(
    idle_minutes, taken_minutes_ago
):
    taken = {TAG_TAKEN_AT: format_time(MOMENT - timedelta(minutes=taken_minutes_ago))}
    instance = make_instance(marked_minutes_ago=None, tags=taken)

    (found,) = decide(alone(instance, idle_history(idle_minutes).activity())).decisions

    assert found.idle_s == pytest.approx(600, abs=120)
    assert found.verdict is Verdict.KEEP_BUSY


def test_a_spare_that_a_user_takes_is_idle_from_then_on_and_not_since_its_boot(live):
    (instance,) = live.start()  # three hours idle, as a spare is
    live.pass_minutes(2)
    tag(live, instance, **{TAG_TAKEN_AT: format_time(live.now)})

    swept(live, 55)
    assert live.marked() == []
    live.pass_minutes(8)
    live.sweep()

    assert live.marked() == [instance]


def test_a_mark_from_before_an_instance_was_taken_is_removed(live):
    (instance,) = live.start()
    live.pass_minutes(2)
    live.sweep()
    live.pass_minutes(1)
    assert live.marked() == [instance]
    live.pass_minutes(4)
    tag(live, instance, **{TAG_TAKEN_AT: format_time(live.now)})

    live.pass_minutes(7)
    live.sweep()

    assert TAG_REAP_AFTER not in live.tags(instance.id)
    assert ended([instance]) == []
