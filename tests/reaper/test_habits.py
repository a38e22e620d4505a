"""A loop left in a pane keeps no instance for ever; a job that begins keeps it from its first moment."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.reaper.agent.habits import Accustomed, Habits
from image.reaper.agent.sensors.processes import ProcessTable
from image.reaper.agent.sensors.reading import Gpu, People, Rates, Started
from tests.reaper.live import Instance
from tests.reaper.programs import at_a_terminal, until
from tests.reaper.samples import NOON, sample
from tests.reaper.test_handshake import ended, killed

WATCH = Started(9, "nvidia-smi", "ada", 0.3, 1.0, "nvidia-smi", (5, 1.0), cpu_s=0.1)


def after(runs, last=WATCH, between=timedelta(seconds=10), *, busy=False):
    """Whether the last process only repeats these, each of which was seen once and was then gone."""
    habits, at = Habits(), NOON
    for number, run in enumerate(runs):
        habits.learned([replace(run, began_s=10.0 + number)], at, busy=busy)
        habits.learned([], at + timedelta(seconds=5), busy=busy)
        at += between
    (found,) = habits.learned([replace(last, began_s=99.0)], at, busy=False)
    return found.repeats


def test_the_fourth_run_that_comes_to_nothing_is_a_repetition():
    assert [after([WATCH] * count) for count in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    "change",
    [
        {"command": "nvidia-smi -q"},
        {"parent": (6, 1.0)},
        {"user": "bob"},
        {"on_gpu": True},
        {"cpu_s": 0.5},
        {"age_s": 2.7},
    ],
)
def test_what_is_another_or_does_more_is_none(change):
    assert not after([WATCH] * 3, replace(WATCH, **change))


@pytest.mark.parametrize("change", [{"on_gpu": True}, {"cpu_s": 1.1}, {"age_s": 601.0}])
@pytest.mark.parametrize("which", range(3))
def test_a_command_that_did_something_in_one_of_its_last_three_runs_counts_from_its_first_moment(
    change, which
):
    runs = [WATCH] * 3
    runs[which] = replace(WATCH, **change)

    assert not after(runs)


def test_runs_beside_which_the_instance_was_busy_teach_nothing():
    assert not after([WATCH] * 3, busy=True)


def test_what_ran_more_than_a_day_ago_is_forgotten():
    assert not after([WATCH] * 3, between=timedelta(hours=9))


def test_one_run_that_lasts_is_no_three():
    habits = Habits()
    seen = [
        habits.learned([replace(WATCH, age_s=age_s)], NOON + timedelta(seconds=age_s), busy=False)
        for age_s in range(0, 300, 5)
    ]

    assert not any(one.repeats for (one,) in seen)


started = st.builds(
    Started,
    pid=st.integers(1, 3),
    name=st.just("x"),
    user=st.just("ada"),
    age_s=st.floats(0, 700),
    began_s=st.integers(0, 20).map(float),
    command=st.sampled_from(["a", "b"]),
    parent=st.just((1, 1.0)),
    cpu_s=st.floats(0, 2),
    on_gpu=st.booleans(),
)


@given(st.lists(st.tuples(st.lists(started, max_size=3, unique_by=lambda one: one.pid), st.booleans())))
def test_only_a_light_process_after_three_other_runs_of_its_command_is_a_repetition(looks):
    habits, runs = Habits(), set()
    for number, (processes, busy) in enumerate(looks):
        for one in habits.learned(processes, NOON + timedelta(seconds=number), busy=busy):
            others = {key for key in runs if key[0] == one.command and key[1:] != (one.pid, one.began_s)}
            if one.repeats:
                assert len(others) >= 3
                assert not one.on_gpu
                assert not busy
                assert one.cpu_s <= 1.0
                assert one.age_s <= 600.0
            runs.add((one.command, one.pid, one.began_s))


class Eyes:
    """Sensors that show what they are told to."""

    def __init__(self):
        self.shown = sample()

    def look(self, now):
        return replace(self.shown, at=now)

    def sample(self, now, *, everything):
        return self.look(now)


def learned_with(**reading):
    """Whether a command is known after three runs that were seen beside this."""
    eyes, seconds = Eyes(), iter(range(100))
    senses = Accustomed(eyes)

    def look(people, **more):
        eyes.shown = sample(people=people, **more)
        return senses.look(NOON + timedelta(seconds=5 * next(seconds)))

    for number in range(3):
        look(People(started=(replace(WATCH, began_s=float(number)),)), **reading)
        look(People())
    return look(People(started=(replace(WATCH, began_s=99.0),))).people.started[0].repeats


def test_three_runs_on_an_instance_at_rest_are_a_habit():
    assert learned_with()


@pytest.mark.parametrize(
    "reading",
    [
        {"rates": Rates(cpu_cores=1.0)},
        {"gpus": (Gpu("0", 50.0, 1.0, 80.0, 300.0, 700.0),)},
        {"failures": ("processes: half of it could not be read",)},
        {"failures": ("machine: no counters",)},
    ],
)
def test_runs_beside_work_or_beside_what_nobody_knows_are_none(reading):
    assert not learned_with(**reading)


def test_a_loop_in_a_real_pane_is_known():
    """Its own processes alone are looked at: what else runs here is another test's."""
    table = ProcessTable(frozenset, time.monotonic, lambda *_told: ([], []))
    habits, looks = Habits(), iter(range(10**6))
    with at_a_terminal("sh", "-c", "while :; do sleep 0.31; done"):

        def known():
            own = [one for one in table.read().started if one.command == "sleep\0" + "0.31"]
            at = NOON + timedelta(seconds=next(looks))
            return any(one.repeats for one in habits.learned(own, at, busy=False))

        assert until(known, "a sleep that only repeats the others")


# through the product's door


def left_in_a_pane(monkeypatch, every_s, lasts_s, command="nvidia-smi", cpu_s=0.1):
    """Every instance has a pane with a loop in it that nobody looks at."""
    real = Instance.sample

    def shown(self, now, *, everything):
        found = real(self, now, everything=everything)
        at = now.timestamp()
        age_s = at % every_s
        if not everything or age_s >= lasts_s:
            return found
        number = int(at // every_s)
        run = Started(number % 30000, "nvidia-smi", "ada", age_s, number * every_s, command, (5, 1.0), cpu_s)
        return replace(found, people=replace(found.people, started=(*found.people.started, run)))

    monkeypatch.setattr(Instance, "sample", shown)


@pytest.mark.parametrize(("every_s", "lasts_s"), [(2.7, 0.7), (60.0, 2.0), (61.0, 60.0), (301.0, 300.0)])
def test_an_instance_with_a_loop_in_a_forgotten_pane_is_terminated_after_one_mail(
    live, monkeypatch, every_s, lasts_s
):
    left_in_a_pane(monkeypatch, every_s, lasts_s)
    (instance,) = live.start()
    live.pass_minutes(20)

    for _ in range(12):
        live.sweep()
        live.pass_minutes(10)

    assert ended([instance]) == [instance.id]
    assert live.calls.count("Publish") == 1


@pytest.mark.parametrize("seconds", range(0, 12, 3))
def test_a_job_beside_a_loop_in_a_pane_is_not_killed(live, monkeypatch, seconds):
    left_in_a_pane(monkeypatch, 2.7, 0.7)
    (instance,) = live.start()
    live.pass_minutes(20)
    live.sweep()
    live.pass_minutes(12)
    live.after(seconds, instance.begin_job)

    live.sweep()
    live.pass_minutes(10)
    live.sweep()

    assert instance.truth.jobs or instance.truth.refused
    assert killed([instance]) == []
