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


def test_a_termination_of_an_unused_instance_is_right():
    assert wrongs_of(forgotten(), END, RULES) == []


def test_an_instance_that_worked_five_hours_without_pause_is_at_work():
    """The former oracle checked only the latest work, and accepted this end."""
    line = forgotten()
    line.jobs.append(Span(END - 5 * HOUR))

    assert "a job was at work on it" in wrongs_of(line, END, RULES)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        (lambda line: line.jobs.append(Span(END - MINUTE / 60)), "a job was at work on it"),
        (lambda line: line.typing.append(Span(END - 5 * MINUTE)), "somebody was typing on it"),
        (lambda line: line.holds.append(Span(END - HOUR, END + HOUR)), "somebody had asked to keep it"),
        (lambda line: line.foreign.open(EPOCH), "it was not this stack's to end"),
        (lambda line: line.locked.open(END - HOUR), "its termination was locked"),
        (lambda line: line.spared.append(Span(END - MINUTE, END + MINUTE)), "its mark had been taken away"),
        (lambda line: line.member.open(EPOCH), "it was still in its scaling group"),
        (lambda line: line.boots.append(END - 29 * MINUTE), "it was young"),
        (lambda line: line.notices.clear(), "nobody was notified in time"),
        (lambda line: line.written.append(END - HOUR), "what its users keep was not saved"),
        (lambda line: line.notices.append(line.notices.pop() + 80 * MINUTE), "nobody was notified in time"),
        (
            lambda line: line.typing.append(Span(END - HOUR, END - 59 * MINUTE)),
            "it was used after the notice, or too shortly before",
        ),
        (
            lambda line: line.jobs.append(Span(END - 3 * HOUR, END - 2 * HOUR)),
            "it was used after the notice, or too shortly before",
        ),
    ],
)
def test_an_end_that_breaks_a_promise_is_called_wrong(changed, wrong):
    line = forgotten()
    changed(line)

    assert wrong in wrongs_of(line, END, RULES)


def test_what_was_over_before_an_agent_could_look_is_no_use():
    line = forgotten()
    line.jobs.append(Span(END - HOUR, END - HOUR + timedelta(seconds=4)))

    assert wrongs_of(line, END, RULES) == []


def test_half_an_hour_is_enough_for_an_instance_that_was_asked_for():
    line = forgotten()
    line.jobs.append(Span(END - 3 * HOUR, END - 2.1 * HOUR))
    line.asked_for.open(END - 2 * HOUR)

    assert wrongs_of(line, END, RULES) == []


@pytest.mark.parametrize(("days", "wrongs"), [(8, 0), (6, 1)])
def test_a_stopped_instance_is_terminated_when_it_was_stopped_for_long_enough(days, wrongs):
    line = forgotten()
    line.stopped.open(END)
    line.notices.append(END + timedelta(days=days))

    assert len(wrongs_of(line, END + timedelta(days=days, hours=1), RULES)) == wrongs


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
