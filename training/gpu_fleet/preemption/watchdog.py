"""The watchdog: it reports where a rank hangs and ends the process, so that torchrun can restart it.

It is a thread: a collective hangs in C++, where Python can raise no exception and run no signal handler.
"""

import faulthandler
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]  # missing from its hints

from gpu_fleet.core import exit_codes
from gpu_fleet.core.outcome import COLLECTIVES
from gpu_fleet.preemption.peers import Peers, collectives_begun

LOOKS_PER_LIMIT = 20
SOONER = 0.8  # of a collective's timeout: its own error would name neither step nor place, so be sooner
log = logging.getLogger(__name__)


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
