"""A loop that was left in a pane keeps no instance for ever; a job keeps it from its start."""

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from itertools import permutations
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.agent.answers import seen
from gpu_fleet_image.instance.agent.habits import Habits
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.poll import Sensors
from gpu_fleet_image.instance.agent.sensors.processes import Process, ProcessTable
from gpu_fleet_image.instance.agent.sensors.reading import Gpu, Presence, Rates, Started
from tests.image.instance.agent.test_handshake import ended, killed
from tests.image.live import Instance
from tests.image.programs import at_a_terminal, until
from tests.image.samples import NOON, reads, sample

PROCESSES = "gpu_fleet_image.instance.agent.sensors.processes.processes"
WATCH = Started(9, "nvidia-smi", "ada", 0.3, 1.0, "nvidia-smi", (5, 1.0), cpu_s=0.1)


def process_table(root=Path("/")):
    return ProcessTable(frozenset, time.monotonic, lambda *_: ([], []), root=root)


def learned(looks, last=WATCH):
    """Return whether the last process only repeats these polls, each (processes, busy), a second apart."""
    habits = Habits()
    for number, (processes, busy) in enumerate(looks):
        habits.learned(processes, NOON + timedelta(seconds=number), busy=busy)
    (found,) = habits.learned([replace(last, began_s=99.0)], NOON + timedelta(minutes=1), busy=False)
    return found.repeats


def after(runs, last=WATCH):
    """Return whether the last process only repeats these, each of which was seen once."""
    looks = [([replace(run, began_s=10.0 + number)], False) for number, run in enumerate(runs)]
    return learned([look for run in looks for look in (run, ([], False))], last)


def test_the_fourth_run_that_comes_to_nothing_is_a_repetition_unless_it_is_another_or_does_more():
    changes = [
        *({"command": "nvidia-smi -q"}, {"parent": (6, 1.0)}, {"user": "bob"}),
        *({"on_gpu": True}, {"cpu_s": 0.5}, {"age_s": 2.7}),
    ]

    assert [after([WATCH] * count) for count in range(5)] == [False, False, False, True, True]
    assert [change for change in changes if after([WATCH] * 3, replace(WATCH, **change))] == []


def test_a_command_that_did_something_in_one_of_its_last_three_runs_counts_from_its_first_moment():
    for change in ({"on_gpu": True}, {"cpu_s": 1.1}, {"age_s": 601.0}):
        worked = replace(WATCH, **change)

        assert not any(after(runs) for runs in set(permutations([worked, WATCH, WATCH])))


@pytest.mark.parametrize("worked", [(True,), (True, False), (False, True)])
def test_runs_beside_which_the_instance_was_busy_at_one_of_their_looks_teach_nothing(worked):
    runs = [[replace(WATCH, began_s=10.0 + number)] for number in range(4)]

    assert not learned([look for run in runs for look in (*((run, busy) for busy in worked), ([], False))])


def test_what_ran_more_than_a_day_ago_is_forgotten():
    habits = Habits()
    for number in range(3):
        at = NOON + number * timedelta(hours=9)
        habits.learned([replace(WATCH, began_s=10.0 + number)], at, busy=False)
        habits.learned([], at + timedelta(seconds=5), busy=False)

    (found,) = habits.learned([replace(WATCH, began_s=99.0)], NOON + timedelta(hours=27), busy=False)

    assert not found.repeats


def numbered(*pids, **more):
    return [replace(WATCH, pid=pid, **more) for pid in pids]


def test_a_run_that_some_looks_missed_is_one_run_whose_past_is_not_forgotten():
    missed = [(numbered(1, 2), False), ([], False)] * 4
    on_gpu = [numbered(1, on_gpu=True), [], numbered(1), [], numbered(2), [], numbered(3), []]
    itself = [(numbered(3, began_s=99.0), False), ([], False)]

    assert not learned(missed, *numbered(3))
    assert not learned([*missed, *itself], *numbered(3))
    assert not learned([(look, False) for look in on_gpu], *numbered(4))


@pytest.mark.parametrize("missed_ones", [True, False])
def test_one_run_that_lasts_is_no_three(missed_ones):
    habits, seen = Habits(), []
    for age_s in range(0, 300, 5):
        look = [] if missed_ones and age_s % 10 else [replace(WATCH, age_s=age_s)]
        seen += habits.learned(look, NOON + timedelta(seconds=age_s), busy=False)

    assert not any(entry.repeats for entry in seen)


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


@given(
    st.lists(st.tuples(st.lists(started, max_size=3, unique_by=lambda process: process.pid), st.booleans()))
)
def test_only_a_light_process_after_three_other_runs_of_its_command_is_a_repetition(looks):
    habits, runs = Habits(), set()
    for number, (processes, busy) in enumerate(looks):
        for process in habits.learned(processes, NOON + timedelta(seconds=number), busy=busy):
            own = (process.command, process.pid, process.began_s)
            others = {run for run in runs if run[0] == process.command and run != own}
            light = not process.on_gpu and process.cpu_s <= 1.0 and process.age_s <= 600.0
            assert not process.repeats or (len(others) >= 3 and light and not busy)
            runs.add(own)


def learned_with(last=(), **reading):
    """Return whether a command is known after three runs with this reading; then the sensors `last` fail."""
    habits, seconds = Habits(), iter(range(100))

    def look(*begun, **more):
        at = NOON + timedelta(seconds=5 * next(seconds))
        return habits.marked(
            replace(sample(presence=Presence(started=begun), **more), at=at)
        ).presence.started

    for number in range(3):
        look(replace(WATCH, began_s=float(number)), **reading)
        look()
    return look(replace(WATCH, began_s=99.0), failures=last)[0].repeats


LOST = ("gpu: NVML_ERROR_GPU_IS_LOST in nvmlDeviceGetUtilizationRates",)


def test_three_runs_on_an_instance_at_rest_are_a_habit_and_beside_work_or_unknown_use_they_are_not():
    beside = [
        {"rates": Rates(cpu_cores=1.0)},
        {"gpus": (Gpu("0", 50.0, 1.0, 80.0, 300.0, 700.0),)},
        {"failures": ("processes: half of it could not be read",)},
        {"failures": ("instance: no counters",)},
        {"failures": LOST},
    ]

    assert learned_with()
    assert [reading for reading in beside if learned_with(**reading)] == []
    assert not learned_with(last=LOST), "it is unknown whether this run uses the GPU"


@pytest.mark.parametrize("read", [Sensors.poll, partial(Sensors.sample, everything=True)])
def test_every_reading_of_the_sensors_marks_what_only_repeats(read):
    begun = [Presence(started=(replace(WATCH, began_s=float(number)),)) for number in range(4)]
    looks = iter([look for presence in begun for look in (presence, Presence())])
    sensors = Sensors(reads(Rates()), reads(()), Mock(read=lambda **_keep: next(looks)))

    readings = [read(sensors, NOON + timedelta(seconds=5 * number)) for number in range(7)]

    assert [reading.presence.started[0].repeats for reading in readings[::2]] == [False, False, False, True]


def test_a_loop_in_a_real_pane_is_known():
    """The test checks only its own processes; others here belong to other tests."""
    read, habits, looks = process_table().read, Habits(), iter(range(10**6))
    sleeping = blake2b(b"sleep\0" + b"0.11\0", digest_size=16).hexdigest()
    with at_a_terminal("sh", "-c", "while :; do sleep 0.11; done"):

        def known():
            own = [process for process in read().started if process.command == sleeping]
            at = NOON + timedelta(seconds=next(looks))
            return any(process.repeats for process in habits.learned(own, at, busy=False))

        assert until(known, "a sleep that only repeats the others")


# what a process is called, and whose it is


def shown(monkeypatch, *looks):
    """Return the started processes by a process table, poll by poll."""
    looked = iter(looks)
    monkeypatch.setattr(PROCESSES, lambda _root: [next(looked)])
    table = process_table()
    return [table.read().started for _ in looks]


def a_process(*command, **more):
    line = b"\0".join(word.encode() for word in command) + b"\0"
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME) - 5
    return Process(2**30, command, began_s=began_s, **({"line": line} | more))


def test_a_process_of_root_that_becomes_a_user_s_counts_as_that_user_s(monkeypatch):
    """`su`, a queue's daemon and a login do so: the id and the start time do not change."""
    root = a_process("python", "train.py", uid=0)

    before, after = shown(monkeypatch, root, replace(root, uid=4242))

    assert before == ()
    assert [process.user for process in after] == ["4242"]


def test_the_first_account_of_an_image_is_a_user_s_and_a_daemon_s_is_not(monkeypatch):
    daemons, users = shown(monkeypatch, *(a_process("python", "train.py", uid=uid) for uid in (999, 1000)))

    assert (len(daemons), len(users)) == (0, 1)


def test_a_process_that_is_put_into_a_container_counts_from_then_on(monkeypatch, tmp_path):
    process = a_process("python", "train.py")
    group = tmp_path / f"proc/{process.pid}/cgroup"
    group.parent.mkdir(parents=True)
    (tmp_path / "dev/pts").mkdir(parents=True)
    monkeypatch.setattr(PROCESSES, lambda _root: [process])
    table = process_table(tmp_path)

    group.write_text("0::/system.slice/other.service\n")
    before = table.read().started
    group.write_text("0::/system.slice/docker-0123.scope\n")
    inside = table.read().started
    group.unlink()

    assert (before, len(inside), len(table.read().started)) == ((), 1, 1)


def test_commands_that_differ_in_one_byte_that_is_no_text_are_two(monkeypatch):
    lines = [b"train\0\xff\0", b"train\0\xfe\0"]
    alike = [a_process("train", "\ufffd", uid=4242, line=line) for line in lines]

    (first,), (second,) = shown(monkeypatch, *alike)

    assert first.command != second.command


def test_no_argument_is_kept_logged_or_shown(monkeypatch, caplog):
    caplog.set_level("DEBUG")
    long = "--token=" + "s3cret" * 100_000
    for command in (("/opt/train", long), (f"worker: {long}",), (f"/opt/worker {long}",)):
        started, _ = shown(monkeypatch, *[a_process(*command, uid=4242)] * 2)
        (process,) = started
        habits = Habits()
        habits.learned(started, NOON, busy=False)
        looked = seen(sample(presence=Presence(started=started)), NOON - timedelta(hours=1), Limits())

        assert "s3cret" not in f"{process} {looked} {vars(habits)}"
        assert len(process.command) == 32
    assert "s3cret" not in caplog.text


# through the product's door


def left_in_a_pane(monkeypatch, every_s, lasts_s):
    """Put a loop that no user watches into a pane of every instance."""
    real = Instance.reading

    def shown(self, now, *, everything):
        found = real(self, now, everything=everything)
        at = now.timestamp()
        age_s = at % every_s
        if not everything or age_s >= lasts_s:
            return found
        number = int(at // every_s)
        run = replace(WATCH, pid=number % 30000, age_s=age_s, began_s=number * every_s)
        return replace(found, presence=replace(found.presence, started=(*found.presence.started, run)))

    monkeypatch.setattr(Instance, "reading", shown)


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
