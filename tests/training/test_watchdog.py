"""The watchdog: a rank that hangs is named with its step and place, its stacks are kept, and it ends."""

import logging
import threading

import pytest

from gpu_fleet.stopping.watchdog import EXIT_STATUS, Watchdog


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ended():
    """The exit statuses that the watchdog asked for."""
    return []


@pytest.fixture
def watchdog(clock, ended, tmp_path):
    return Watchdog(3, limit_s=60, directory=tmp_path, step=lambda: 7, clock=clock, end=ended.append)


def test_a_run_that_moves_is_left_alone(watchdog, clock, ended):
    for _ in range(5):
        watchdog.beat()
        clock.now_s += 59
        watchdog.look()

    assert ended == []


def test_a_run_that_hangs_is_ended_with_a_failure(watchdog, clock, ended):
    watchdog.beat()
    clock.now_s += 60

    watchdog.look()

    assert ended == [EXIT_STATUS]
    assert EXIT_STATUS != 0


def test_a_run_that_rests_is_not_watched_until_it_moves_again(watchdog, clock, ended):
    watchdog.rest()
    clock.now_s += 1000
    watchdog.look()
    assert ended == []

    watchdog.beat()
    clock.now_s += 60
    watchdog.look()

    assert ended == [EXIT_STATUS]


def test_rank_step_and_seconds_are_named(watchdog, clock, caplog):
    watchdog.beat()
    clock.now_s += 61

    with caplog.at_level(logging.CRITICAL):
        watchdog.look()

    assert "event=stalled rank=3 step=7 silent_s=61.0 limit_s=60.0" in caplog.text


def test_the_stacks_of_all_threads_are_kept(watchdog, clock, tmp_path):
    release = threading.Event()
    other = threading.Thread(target=lambda: wait_for_a_lost_rank(release))
    other.start()
    clock.now_s += 60

    watchdog.look()

    release.set()
    other.join()
    stacks = (tmp_path / "stacks-rank-3.txt").read_text()
    assert "wait_for_a_lost_rank" in stacks
    assert "test_the_stacks_of_all_threads_are_kept" in stacks


def wait_for_a_lost_rank(release: threading.Event) -> None:
    release.wait()


def test_the_line_of_the_room_where_the_run_hangs_is_named(clock, ended, tmp_path, caplog):
    """The watched thread hangs inside `beat`, below the clock; another thread looks."""
    inside, release = threading.Event(), threading.Event()

    def hanging_clock() -> float:
        if threading.current_thread().name == "hangs" and inside.is_set():
            release.wait()
        return clock.now_s

    found = []

    def hang() -> None:
        found.append(
            Watchdog(3, limit_s=60, directory=tmp_path, step=lambda: 7, clock=hanging_clock, end=ended.append)
        )
        inside.set()
        found[0].beat()

    thread = threading.Thread(target=hang, name="hangs")
    thread.start()
    inside.wait()
    clock.now_s += 60

    found[0].look()

    release.set()
    thread.join()
    assert " beat'" in caplog.text
    assert "watchdog.py:" in caplog.text


def test_stacks_that_cannot_be_written_do_not_keep_the_process_alive(clock, ended, tmp_path):
    absent = tmp_path / "absent"
    watchdog = Watchdog(3, limit_s=60, directory=absent, step=lambda: 7, clock=clock, end=ended.append)
    clock.now_s += 60

    watchdog.look()

    assert ended == [EXIT_STATUS]


def test_the_thread_looks_by_itself(tmp_path):
    ended = threading.Event()

    with Watchdog(0, 0.01, tmp_path, step=lambda: 7, end=lambda _status: ended.set()):
        assert ended.wait(timeout=30)


def test_a_closed_watchdog_looks_no_more(tmp_path):
    with Watchdog(0, 1000, tmp_path, step=lambda: 7) as watchdog:
        thread = watchdog._thread

    thread.join(timeout=30)
    assert not thread.is_alive()
