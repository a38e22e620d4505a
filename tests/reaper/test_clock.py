"""The agent's clock, over a wall clock and a monotonic one that a test moves."""

import time
from datetime import timedelta

import pytest

from image.reaper.agent.loop import REAL_PAUSE_S, Clock
from tests.reaper.samples import NOON


@pytest.fixture
def real(monkeypatch):
    """Real seconds as a list of one; sleeping adds to them."""
    passed = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: passed.insert(0, passed.pop() + seconds))
    return passed


def test_it_shows_what_it_was_set_to_and_runs_and_waits_as_fast_as_it_was_set(real):
    clock = Clock(NOON, speed=60)

    real[0] += 2
    assert clock.now() == NOON + timedelta(minutes=2)
    clock.wait_until(NOON + timedelta(minutes=5))

    assert real[0] == pytest.approx(1005.0)


@pytest.mark.parametrize("ahead_s", [-60, 0, 1])
def test_two_looks_are_never_closer_than_the_kernel_counts(real, ahead_s):
    Clock(NOON, speed=1000).wait_until(NOON + timedelta(seconds=ahead_s))

    assert real[0] == pytest.approx(1000.0 + REAL_PAUSE_S)


def test_only_the_wall_s_time_at_its_own_speed_is_real():
    assert Clock().is_real
    assert not Clock(NOON).is_real
    assert not Clock(speed=2).is_real
