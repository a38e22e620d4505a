"""The watchdog: a rank that hangs is named with its step and place, its stacks are kept, and it ends."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_fleet.core.exit_codes import FAILED_PERHAPS
from gpu_fleet.preemption.watchdog import Peers, Post, Watchdog, held_up_by


@dataclass
class Watched:
    """Time that passes only when the test advances it, and the exit statuses that the watchdog asked for."""

    directory: Path
    now_s: float = 1000.0
    ended: list[int] = field(default_factory=list)

    def watchdog(self, clock: Callable[[], float] | None = None) -> Watchdog:
        clock = clock or (lambda: self.now_s)
        return Watchdog(3, 60, self.directory, step=lambda: 7, clock=clock, end=self.ended.append)


@pytest.fixture
def watched(tmp_path) -> Watched:
    return Watched(tmp_path)


def test_a_run_that_moves_is_left_alone(watched):
    watchdog = watched.watchdog()

    for _ in range(5):
        watchdog.beat()
        watched.now_s += 59
        watchdog.poll()

    assert watched.ended == []


def test_a_run_that_rests_is_not_watched_until_it_moves_again_and_is_named_once_it_hangs(watched, caplog):
    watchdog = watched.watchdog()
    watchdog.rest()
    watched.now_s += 1000
    watchdog.poll()
    assert watched.ended == []

    watchdog.beat()
    watched.now_s += 60
    watchdog.poll()

    assert watched.ended == [FAILED_PERHAPS]
    assert "event=stalled rank=3 step=7 silent_s=60.0 limit_s=60.0" in caplog.text


def test_the_stacks_of_all_threads_are_kept(watched, tmp_path):
    watchdog, release = watched.watchdog(), threading.Event()
    other = threading.Thread(target=lambda: wait_for_a_lost_rank(release))
    other.start()
    watched.now_s += 60

    watchdog.poll()

    release.set()
    other.join()
    stacks = (tmp_path / "stacks-rank-3.txt").read_text()
    assert "wait_for_a_lost_rank" in stacks
    assert "test_the_stacks_of_all_threads_are_kept" in stacks


def wait_for_a_lost_rank(release: threading.Event) -> None:
    release.wait()


def test_the_line_of_the_room_where_the_run_hangs_is_named(watched, caplog):
    """The watched thread hangs inside `beat`, below the clock; another thread looks."""
    inside, release = threading.Event(), threading.Event()

    def hanging_clock() -> float:
        if threading.current_thread().name == "hangs" and inside.is_set():
            release.wait()
        return watched.now_s

    found = []

    def hang() -> None:
        found.append(watched.watchdog(hanging_clock))
        inside.set()
        found[0].beat()

    thread = threading.Thread(target=hang, name="hangs")
    thread.start()
    inside.wait()
    watched.now_s += 60

    found[0].poll()

    release.set()
    thread.join()
    assert " beat'" in caplog.text
    assert "watchdog.py:" in caplog.text


def test_stacks_that_cannot_be_written_do_not_keep_the_process_alive(tmp_path):
    watched = Watched(tmp_path / "absent")
    watchdog = watched.watchdog()
    watched.now_s += 60

    watchdog.poll()

    assert watched.ended == [FAILED_PERHAPS]


def test_the_thread_looks_by_itself_until_it_is_closed(tmp_path):
    ended = threading.Event()

    with Watchdog(0, 0.01, tmp_path, step=lambda: 7, end=lambda _status: ended.set()) as watchdog:
        assert ended.wait(timeout=120)

    watchdog._thread.join(timeout=120)
    assert not watchdog._thread.is_alive()


@pytest.mark.parametrize(
    ("posts", "ranks", "blamed"),
    [
        (
            {0: Post(7, 20, "a", 100.0), 1: Post(7, 20, "a", 60.0), 2: Post(7, 19, "b", 99.0)},
            3,
            "rank 1: stopped or gone, silent for 41 s after step 7",
        ),
        (
            {0: Post(7, 20, "loop.py:90", 100.0), 1: Post(7, 19, "loop.py:70", 100.0)},
            2,
            "rank 1: behind the others, after step 7 at loop.py:70",
        ),
        (
            {rank: Post(7, 20, "loop.py:90", 100.0) for rank in range(2)},
            2,
            "no rank alone: all are after step 7 at the same collective",
        ),
        ({0: Post(0, 0, "", 100.0)}, 2, "rank 1: has never posted"),
    ],
    ids=["silent", "behind", "all wait for the same", "never came"],
)
def test_the_rank_that_holds_the_others_up_is_blamed(posts, ranks, blamed):
    assert held_up_by(posts, ranks, now_s=101.0, silence_s=20.0) == blamed


def test_a_store_that_is_gone_is_said_and_waited_for_no_longer(monkeypatch):
    """The store is in the process of rank 0; once that is stopped, calls never return."""
    monkeypatch.setattr("gpu_fleet.preemption.watchdog.ANSWER_S", 0.01)
    never = threading.Event()
    store = SimpleNamespace(set=lambda *_: never.wait(), check=lambda _: False, multi_get=lambda _: [])
    peers = Peers(1, 2, store, every_s=1.0)

    peers.exchange(7, 20, "a", read=True)

    assert peers.verdict().startswith("unknown: the rendezvous store does not answer")
    never.set()
