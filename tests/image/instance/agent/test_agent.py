"""The agent's loop on a clock that a test advances, and its own clock."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Minute
from gpu_fleet_image.instance.agent.loop import REAL_PAUSE_S, Agent, Clock, next_multiple
from gpu_fleet_image.instance.agent.sensors.counters import Counters, RateSensor
from gpu_fleet_image.instance.agent.sensors.poll import Sensors
from gpu_fleet_image.instance.agent.sensors.reading import Rates
from tests.image.samples import NOON, gpu, reads, sample

RESTING = Rates()


class FakeClock:
    """Clock that stands at the end of the last wait, plus delays that a test sets."""

    def __init__(self, start=NOON, *, is_real=True, late_s=()):
        self.start = start
        self.is_real = is_real
        self._now = start
        self._late_s = list(late_s)

    def now(self):
        return self._now

    def real_s(self):
        return (self._now - NOON).total_seconds()

    def wait_until(self, moment):
        late_s = self._late_s.pop(0) if self._late_s else 0.0
        self._now = max(self._now, moment) + timedelta(seconds=late_s)


class Looking:
    def __init__(self, rates_at=lambda _at: RESTING):
        self._rates_at = rates_at
        self.looks = []

    def sample(self, now, *, everything):
        self.looks.append((now, everything))
        return sample(self._rates_at(now), at=now)


def judged(clock, look=None, minutes=3, **options):
    outcomes = []
    Agent(clock, look or Looking(), outcomes.append, **options).run(NOON + timedelta(minutes=minutes))
    return outcomes


def test_no_mistake_in_reading_an_instance_ends_the_agent_or_makes_it_idle():
    resting = RateSensor(lambda: Counters(0, 0, 0), lambda: 0.0)
    mistaken = reads(error=UnicodeDecodeError("utf-8", b"\xe8", 0, 1, "no text"))

    outcomes = judged(FakeClock(), Sensors(resting, reads(()), mistaken))

    assert [outcome.state for outcome in outcomes] == [Minute.UNKNOWN] * 4


@pytest.mark.parametrize(
    ("late_s", "memory", "idle_s"), [((), None, 0), ((0, 20), None, 0), ((), NOON - timedelta(hours=1), 3600)]
)
def test_it_judges_each_whole_minute_and_idle_time_counts_from_the_start_or_from_before_a_restart(
    late_s, memory, idle_s
):
    """A short delay is made up for."""
    outcomes = judged(FakeClock(late_s=late_s), memory=memory and JudgeMemory(memory))

    assert [outcome.at for outcome in outcomes] == [NOON + timedelta(minutes=m) for m in range(4)]
    assert [outcome.seconds_since_activity - idle_s for outcome in outcomes] == [0, 60, 120, 180]


def test_it_looks_every_five_seconds_at_the_process_table_once_a_minute_and_logs_only_a_change(caplog):
    caplog.set_level("INFO")
    look = Looking()

    judged(FakeClock(), look, minutes=2)

    assert len(look.looks) == 1 + 1 + 24
    assert sum(everything for _, everything in look.looks) == 1 + 1 + 2
    assert caplog.text.count("event=state") == 1


def test_a_gpu_that_computes_in_any_one_of_a_minute_s_twelve_samples_makes_it_active_and_ends_the_idle_time():
    for number in range(1, 13):
        at = NOON + timedelta(seconds=5 * number)
        look = SimpleNamespace(
            sample=lambda now, *, everything, at=at: sample(gpus=[gpu(utilisation=1.0 * (now == at))], at=now)
        )

        outcomes = judged(FakeClock(), look, minutes=2)

        assert [outcome.state for outcome in outcomes] == [Minute.IDLE, Minute.ACTIVE, Minute.IDLE]
        assert [outcome.seconds_since_activity for outcome in outcomes] == [0, 0, 60]
        assert outcomes[1].reasons == ("gpu 0: utilisation",)


def test_a_long_gap_starts_the_idle_time_anew_and_no_minute_is_invented(caplog):
    outcomes = judged(
        FakeClock(late_s=[0] * 5 + [600]), minutes=15, memory=JudgeMemory(NOON - timedelta(hours=9))
    )

    after = [outcome for outcome in outcomes if outcome.at > NOON + timedelta(minutes=1)]
    assert after[0].at >= NOON + timedelta(minutes=10)
    assert all(outcome.seconds_since_activity < 600 for outcome in after)
    assert "event=gap seconds=600" in caplog.text


def test_on_a_fast_clock_one_look_stands_for_all_samples_it_spans():
    look = Looking()
    outcomes = judged(FakeClock(is_real=False, late_s=[0] + [1195] * 9), look, minutes=60)

    assert len(outcomes) == 61
    assert len(look.looks) < 10


@given(
    start_s=st.integers(0, 1200),
    length_s=st.integers(60, 600),
    late_s=st.lists(st.floats(0, 55), max_size=60),
)
def test_a_minute_of_one_busy_core_is_never_taken_for_idleness(start_s, length_s, late_s):
    clock = FakeClock(late_s=late_s)
    end_s = start_s + length_s

    def counters():
        return Counters(min(max(0.0, clock.real_s() - start_s), length_s), 0.0, 0.0)

    rates = RateSensor(counters, clock.real_s)
    for outcome in judged(clock, Looking(lambda _at: rates.read()), minutes=40):
        since_end_s = (outcome.at - NOON).total_seconds() - end_s
        if since_end_s >= 0:
            assert outcome.seconds_since_activity <= since_end_s + 120


@given(
    st.datetimes(timezones=st.just(NOON.tzinfo), min_value=NOON.replace(tzinfo=None)),
    st.sampled_from([timedelta(seconds=5), timedelta(seconds=60)]),
)
def test_the_next_multiple_is_a_whole_step_and_less_than_one_away(moment, step):
    found = next_multiple(moment, step) if moment.year < 9000 else moment

    assert timedelta(0) <= found - moment < step
    assert moment.year >= 9000 or found.timestamp() % step.total_seconds() == pytest.approx(0, abs=1e-6)


def test_it_shows_what_it_was_set_to_runs_as_fast_and_two_looks_are_never_closer_than_the_kernel_counts(
    monkeypatch,
):
    real = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: real[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: real.insert(0, real.pop() + seconds))
    clock = Clock(NOON, speed=60)

    real[0] += 2
    assert clock.now() == NOON + timedelta(minutes=2)
    clock.wait_until(NOON + timedelta(minutes=5))

    assert real[0] == pytest.approx(1005.0)
    for ahead_s in (-60, 0, 1):
        before_s = real[0]
        Clock(NOON, speed=1000).wait_until(NOON + timedelta(seconds=ahead_s))
        assert real[0] == pytest.approx(before_s + REAL_PAUSE_S)


def test_only_the_wall_s_time_at_its_own_speed_is_real():
    assert [clock.is_real for clock in (Clock(), Clock(NOON), Clock(speed=2))] == [True, False, False]
