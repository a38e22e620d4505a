"""The watchdog: a rank that hangs is named with its step and place, its stacks are kept, and it ends."""

import logging
import threading
from types import SimpleNamespace

import pytest

from gpu_fleet.core.exit_codes import FAILED_PERHAPS
from gpu_fleet.preemption.watchdog import Peers, Post, Watchdog, held_up_by


class Clock:
    """Time that passes only when the test advances it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ended():
    """Return the list of exit statuses that the watchdog asked for."""
    return []


@pytest.fixture
def watchdog(clock, ended, tmp_path):
    return Watchdog(3, limit_s=60, directory=tmp_path, step=lambda: 7, clock=clock, end=ended.append)


def test_a_run_that_moves_is_left_alone(watchdog, clock, ended):
    for _ in range(5):
        watchdog.beat()
        clock.now_s += 59
        watchdog.poll()

    assert ended == []


def test_a_run_that_hangs_is_terminated_with_a_failure(watchdog, clock, ended):
    watchdog.beat()
    clock.now_s += 60

    watchdog.poll()

    assert ended == [FAILED_PERHAPS]


def test_a_run_that_rests_is_not_watched_until_it_moves_again(watchdog, clock, ended):
    watchdog.rest()
    clock.now_s += 1000
    watchdog.poll()
    assert ended == []

    watchdog.beat()
    clock.now_s += 60
    watchdog.poll()

    assert ended == [FAILED_PERHAPS]


def test_rank_step_and_seconds_are_named(watchdog, clock, caplog):
    watchdog.beat()
    clock.now_s += 61

    with caplog.at_level(logging.CRITICAL):
        watchdog.poll()

    assert "event=stalled rank=3 step=7 silent_s=61.0 limit_s=60.0" in caplog.text


def test_the_stacks_of_all_threads_are_kept(watchdog, clock, tmp_path):
    release = threading.Event()
    other = threading.Thread(target=lambda: wait_for_a_lost_rank(release))
    other.start()
    clock.now_s += 60

    watchdog.poll()

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

    found[0].poll()

    release.set()
    thread.join()
    assert " beat'" in caplog.text
    assert "watchdog.py:" in caplog.text


def test_stacks_that_cannot_be_written_do_not_keep_the_process_alive(clock, ended, tmp_path):
    absent = tmp_path / "absent"
    watchdog = Watchdog(3, limit_s=60, directory=absent, step=lambda: 7, clock=clock, end=ended.append)
    clock.now_s += 60

    watchdog.poll()

    assert ended == [FAILED_PERHAPS]


def test_the_thread_looks_by_itself(tmp_path):
    ended = threading.Event()

    with Watchdog(0, 0.01, tmp_path, step=lambda: 7, end=lambda _status: ended.set()):
        assert ended.wait(timeout=120)


def test_a_closed_watchdog_looks_no_more(tmp_path):
    with Watchdog(0, 1000, tmp_path, step=lambda: 7) as watchdog:
        thread = watchdog._thread

    thread.join(timeout=120)
    assert not thread.is_alive()


def test_a_rank_that_posts_no_more_is_blamed():
    posts = {0: Post(7, 20, "a", at_s=100.0), 1: Post(7, 20, "a", at_s=60.0), 2: Post(7, 19, "b", at_s=99.0)}

    assert held_up_by(posts, 3, now_s=101.0, silence_s=20.0) == (
        "rank 1: stopped or gone, silent for 41 s after step 7"
    )


def test_of_ranks_that_all_live_the_last_one_is_blamed_with_its_place():
    posts = {0: Post(7, 20, "loop.py:90", at_s=100.0), 1: Post(7, 19, "loop.py:70", at_s=100.0)}

    assert held_up_by(posts, 2, 101.0, 20.0) == "rank 1: behind the others, after step 7 at loop.py:70"


def test_where_all_wait_for_the_same_no_rank_is_blamed():
    posts = {rank: Post(7, 20, "loop.py:90", at_s=100.0) for rank in range(2)}

    assert held_up_by(posts, 2, 101.0, 20.0).startswith("no rank alone")


def test_a_rank_that_never_came_is_blamed():
    assert held_up_by({0: Post(0, 0, "", at_s=100.0)}, 2, 101.0, 20.0) == "rank 1: has never posted"


def test_a_store_that_is_gone_is_said_and_waited_for_no_longer(monkeypatch):
    """The store is in the process of rank 0; once that is stopped, calls never return."""
    monkeypatch.setattr("gpu_fleet.preemption.watchdog.ANSWER_S", 0.01)
    never = threading.Event()
    store = SimpleNamespace(set=lambda *_: never.wait(), check=lambda _: False, multi_get=lambda _: [])
    peers = Peers(1, 2, store, every_s=1.0)

    peers.exchange(7, 20, "a", read=True)

    assert peers.verdict().startswith("unknown: the rendezvous store does not answer")
    never.set()
