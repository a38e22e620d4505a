"""The oracle that judges every end in a world: its errors for timelines written by hand."""

from datetime import timedelta

import pytest

from tests.image.controllers.sweep.custodian_cases import POLICY, TAGS
from tests.image.oracle import Rules, Span, Timeline, wrongs_of
from tests.image.sweeping import sweep_world
from tests.image.world import EPOCH, World

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
RULES = Rules(
    idle_after=HOUR,
    grace=20 * MINUTE,
    min_uptime=30 * MINUTE,
    stopped_for=timedelta(days=7),
    unsaved=7 * MINUTE,
)
END = EPOCH + 10 * HOUR


def forgotten() -> Timeline:
    """Return a timeline with an hour of use, and a notice an hour and a half before the end."""
    line = Timeline(boots=[EPOCH], notices=[END - 1.5 * HOUR])
    line.jobs.append(Span(EPOCH, EPOCH + HOUR))
    line.written, line.saved_at = [EPOCH + HOUR, END - MINUTE], END - 1.2 * HOUR
    return line


def asked_for(line):
    line.jobs.append(Span(END - 3 * HOUR, END - 2.1 * HOUR))
    line.asked_for.open(END - 2 * HOUR)


def stopped_for(days):
    def change(line):
        line.stopped.open(END - timedelta(days=days, hours=1))
        line.notices.append(END - HOUR)

    return change


USED = "it was used after the notice, or too shortly before"
# What is wrong about the end of a forgotten instance, if anything, where this happened to it.
CASES = [
    ("", lambda line: None),
    (
        "",
        lambda line: line.jobs.append(Span(END - HOUR, END - HOUR + timedelta(seconds=4))),
    ),  # no agent saw it
    ("", asked_for),  # half an hour is enough
    ("", stopped_for(days=8)),
    (USED, stopped_for(days=6)),
    ("a job was at work on it", lambda line: line.jobs.append(Span(END - 5 * HOUR))),
    ("a job was at work on it", lambda line: line.jobs.append(Span(END - MINUTE / 60))),
    ("somebody was typing on it", lambda line: line.typing.append(Span(END - 5 * MINUTE))),
    ("somebody had asked to keep it", lambda line: line.holds.append(Span(END - HOUR, END + HOUR))),
    ("it was not this stack's to end", lambda line: line.foreign.open(EPOCH)),
    ("its termination was locked", lambda line: line.locked.open(END - HOUR)),
    ("its mark had been taken away", lambda line: line.spared.append(Span(END - MINUTE, END + MINUTE))),
    ("it was still in its scaling group", lambda line: line.member.open(EPOCH)),
    ("it was young", lambda line: line.boots.append(END - 29 * MINUTE)),
    ("nobody was notified in time", lambda line: line.notices.clear()),
    ("nobody was notified in time", lambda line: line.notices.append(line.notices.pop() + 80 * MINUTE)),
    ("what its users keep was not saved", lambda line: line.written.append(END - HOUR)),
    (USED, lambda line: line.typing.append(Span(END - HOUR, END - 59 * MINUTE))),
    (USED, lambda line: line.jobs.append(Span(END - 3 * HOUR, END - 2 * HOUR))),
]


@pytest.mark.parametrize(("wrong", "change"), CASES)
def test_an_end_is_called_wrong_by_each_promise_that_it_breaks(wrong, change):
    line = forgotten()
    change(line)

    wrongs = wrongs_of(line, END, RULES)

    assert wrong in wrongs if wrong else wrongs == []


def test_every_end_in_a_world_is_judged_when_it_happens():
    world = World()
    instance = world.start(TAGS)
    world.pass_minutes(300)
    sweep_world(world, POLICY)

    world.gone(instance, "terminated")

    assert [wrong.rpartition(": ")[2] for wrong in world.wrongs] == [
        "a job was at work on it",
        "nobody was notified in time",
        "it was used after the notice, or too shortly before",
    ]
