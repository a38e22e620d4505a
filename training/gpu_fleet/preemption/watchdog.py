"""The watchdog: it reports where a rank hangs and ends the process, so that torchrun can restart it.

It is a thread: a collective hangs in C++, where Python can raise no exception and run no signal handler. When
one rank hangs, all wait, and the first at its time limit is seldom the one at fault. So each posts in the
rendezvous store while it trains. A rank that no longer posts is stopped or gone. If all post, they wait for
the one with the fewest steps and collectives.
"""

import faulthandler
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import torch.distributed as dist
from torch._C._distributed_c10d import Store, _dump_fr_trace  # type: ignore[attr-defined]  # missing from its hints

from gpu_fleet.core import exit_codes
from gpu_fleet.core.outcome import COLLECTIVES
from gpu_fleet.core.world import store_of_world

LOOKS_PER_LIMIT = 20
SOONER = 0.8  # of a collective's timeout: its own error would name neither step nor place, so be sooner
ANSWER_S = 5.0  # longest wait for the store, which may be in the process that hangs
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Post:
    """Report of one rank about itself."""

    step: int  # steps done
    collectives: int  # begun since the start
    place: str  # line of code where its training thread is
    at_s: float  # seconds of the epoch


@dataclass
class Peers:
    """Posts of this rank and of the others. One thread calls `exchange` repeatedly."""

    rank: int
    size: int
    store: Store  # a connection of its own
    every_s: float  # from one post to the next
    clock: Callable[[], float] = time.time
    _known: Mapping[int, Post] = field(default_factory=dict)
    _read_at: float = 0.0

    def exchange(self, step: int, collectives: int, place: str, *, read: bool) -> None:
        """Post, and with `read` also read the posts of all ranks; returns after ANSWER_S at most."""
        thread = threading.Thread(
            target=self._exchange, args=(Post(step, collectives, place, self.clock()), read), daemon=True
        )
        thread.start()
        thread.join(ANSWER_S)

    def _exchange(self, mine: Post, read: bool) -> None:
        try:
            self.store.set(_key(self.rank), json.dumps(asdict(mine)))
            if read:
                ranks = [rank for rank in range(self.size) if self.store.check([_key(rank)])]
                posts = self.store.multi_get([_key(rank) for rank in ranks])
                self._known = {
                    rank: Post(**json.loads(post)) for rank, post in zip(ranks, posts, strict=True)
                }
                self._read_at = self.clock()
        except (RuntimeError, ValueError, TypeError) as error:  # torch raises these if the store is gone
            log.debug("event=store-silent error=%r", str(error))

    def verdict(self) -> str:
        """Return the rank that delays this one, for users."""
        if self.clock() - self._read_at > 3 * self.every_s + ANSWER_S:
            return "unknown: the rendezvous store does not answer; rank 0 or its instance is stopped or gone"
        return held_up_by(self._known, self.size, self._read_at, 3 * self.every_s)


def held_up_by(posts: Mapping[int, Post], size: int, now_s: float, silence_s: float) -> str:
    """Return the rank that the others wait for, for users; one that is silent for `silence_s` is gone."""
    if missing := sorted(set(range(size)) - posts.keys()):
        return f"rank {missing[0]}: has never posted"
    rank, oldest = min(posts.items(), key=lambda item: item[1].at_s)
    if now_s - oldest.at_s > silence_s:
        silent_s = now_s - oldest.at_s
        return f"rank {rank}: stopped or gone, silent for {silent_s:.0f} s after step {oldest.step}"
    rank, last = min(posts.items(), key=lambda item: (item[1].step, item[1].collectives, item[0]))
    if all((post.step, post.collectives) == (last.step, last.collectives) for post in posts.values()):
        return f"no rank alone: all are after step {last.step} at the same collective"
    return f"rank {rank}: behind the others, after step {last.step} at {last.place}"


def _key(rank: int) -> str:
    return f"gpu-fleet/beat/{rank}"


def of_world(rank: int, size: int, every_s: float) -> Peers | None:
    """Return the peers of this rank; None if there are no others."""
    return Peers(rank, size, store_of_world(), every_s) if size > 1 else None


def collectives_begun() -> int:
    """Return the number of collectives that this rank has begun; 0 without a process group."""
    group = dist.group.WORLD
    return int(group._get_sequence_number_for_group()) if group is not None else 0  # type: ignore[attr-defined]  # missing from its hints


class Watchdog:
    """A context around the run that ends this process when `beat` was not called for `limit_s` seconds."""

    def __init__(
        self,
        rank: int,
        limit_s: float,
        directory: Path,
        step: Callable[[], int],
        *,
        peers: Peers | None = None,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Watch the calling thread from `__enter__` on; stacks and collectives are written to `directory`."""
        self._rank, self._limit_s, self._directory = rank, limit_s, directory
        self._clock, self._end = clock, end
        self._step, self._peers = step, peers
        self._beaten_at = clock()
        self._watched = threading.get_ident()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._exchange(read=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def beat(self) -> None:
        self._beaten_at = self._clock()

    def rest(self) -> None:
        """Suspend the limit until the next beat, for work that may take long, such as the last save."""
        self._beaten_at = math.inf

    def poll(self) -> None:
        silent_s = self._clock() - self._beaten_at
        self._exchange(read=silent_s > self._limit_s / 2)
        if silent_s < self._limit_s:
            return
        blamed = self._peers.verdict() if self._peers is not None else ""
        file = self._directory / f"stacks-rank-{self._rank}.txt"
        log.critical(
            "event=stalled rank=%d step=%d silent_s=%.1f limit_s=%.1f at=%r held_up_by=%r stacks=%s",
            self._rank,
            self._step(),
            silent_s,
            self._limit_s,
            self._place(),
            blamed,
            file,
        )
        _dump_stacks(file, blamed)
        _dump_collectives(self._directory / f"{COLLECTIVES}{self._rank}")
        if self._peers is not None:  # when one rank ends, the others fail: leave them time to report
            self._closed.wait(2 * self._limit_s / LOOKS_PER_LIMIT)
        self._end(exit_codes.FAILED_PERHAPS)

    def _exchange(self, *, read: bool) -> None:
        if self._peers is not None:
            self._peers.exchange(self._step(), collectives_begun(), self._place(), read=read)

    def _watch(self) -> None:
        while not self._closed.wait(self._limit_s / LOOKS_PER_LIMIT):
            self.poll()

    def _place(self) -> str:
        """Return the innermost line of code in gpu_fleet of the watched thread."""
        frame = sys._current_frames().get(self._watched)
        here = str(Path(__file__).parents[1])
        while frame is not None and not frame.f_code.co_filename.startswith(here):
            frame = frame.f_back
        if frame is None:
            return "outside of the trainer"
        code = frame.f_code
        return f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"


def _dump_stacks(file: Path, blamed: str) -> None:
    """Write the stacks of all threads; a full disk must not keep the process alive."""
    try:
        with file.open("w", encoding="utf-8") as out:
            out.write(f"held up by {blamed}\n\n" if blamed else "")
            out.flush()
            faulthandler.dump_traceback(out, all_threads=True)
    except OSError as error:
        log.error("event=no-stacks file=%s error=%r", file, str(error))
        faulthandler.dump_traceback(all_threads=True)


def _dump_collectives(file: Path) -> None:
    """Write the last collectives of this rank from the flight recorder of torch.distributed.

    `torchfrtrace --prefix collectives-rank- RUN_DIRECTORY` compares the files of all ranks.
    """
    try:
        file.write_bytes(_dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))
    except (OSError, RuntimeError) as error:
        log.error("event=no-flight-record file=%s error=%r", file, str(error))
